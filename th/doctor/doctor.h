// The doctor: what of this host helps or hinders TensorHub, and what to do about it.
//
//   const std::vector<Finding> findings = Examine({});
//   std::cout << FindingsAsText(findings);
//   return CountOf(findings, Verdict::kProblem) == 0 ? 0 : 1;
//
// It looks and changes nothing. Thread-safe.
#ifndef TH_DOCTOR_DOCTOR_H_
#define TH_DOCTOR_DOCTOR_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/doctor/facts.h"
#include "th/doctor/finding.h"
#include "th/doctor/route_facts.h"

namespace th::doctor {

struct ExamineOptions {
  std::optional<HostAndPort> to;                      // a peer whose route is examined too
  absl::Duration connect_timeout = absl::Seconds(3);  // for each address of it
};

// Gathers the facts of this host and judges them. Blocks while libraries are opened, a name is
// resolved, and a connection is made.
std::vector<Finding> Examine(const ExamineOptions& options);

// All checks of these facts, in the order in which they are shown. Pure.
std::vector<Finding> Judge(const HostFacts& facts);

size_t CountOf(const std::vector<Finding>& findings, Verdict verdict);

// A paragraph a finding, and a last line of counts.
std::string FindingsAsText(const std::vector<Finding>& findings);
// {"checks": [{"check", "verdict", "found", "means", "advice"}], "problems": N, "notes": N}; no
// "advice" where there is none.
nlohmann::json FindingsAsJson(const std::vector<Finding>& findings);

}  // namespace th::doctor

#endif  // TH_DOCTOR_DOCTOR_H_
