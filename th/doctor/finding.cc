#include "th/doctor/finding.h"

namespace th::doctor {

absl::string_view VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kNote:
      return "note";
    case Verdict::kProblem:
      return "problem";
  }
  return "";
}

nlohmann::json FindingAsJson(const Finding& finding) {
  nlohmann::json check = {{"check", finding.check},
                          {"verdict", std::string(VerdictName(finding.verdict))},
                          {"found", finding.found},
                          {"means", finding.means}};
  if (!finding.advice.empty()) check["advice"] = finding.advice;
  return check;
}

}  // namespace th::doctor
