// The result of one check.
#ifndef TH_DOCTOR_FINDING_H_
#define TH_DOCTOR_FINDING_H_

#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace th::doctor {

enum class Verdict {
  kOk,
  kNote,    // it works, but slower, or less of it
  kProblem  // something that this host is made for does not work
};

// "ok", "note", "problem": in texts and in JSON.
absl::string_view VerdictName(Verdict verdict);

struct Finding {
  std::string check;  // stable, for scripts: "rdma-gids"
  Verdict verdict = Verdict::kOk;
  std::string found;   // what is there
  std::string means;   // what that means for the user
  std::string advice;  // what to do; empty with kOk
};

// {"check", "verdict", "found", "means", "advice"}; no "advice" where there is none.
nlohmann::json FindingAsJson(const Finding& finding);

}  // namespace th::doctor

#endif  // TH_DOCTOR_FINDING_H_
