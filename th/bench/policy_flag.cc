#include "th/bench/policy_flag.h"

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "th/scheduler/scheduler.h"

namespace th {

void AddPolicyFlag(CLI::App& app, ServerFlags& flags) {
  SchedulerPolicy& policy = flags.limits.scheduler.policy;
  app.add_option_function<std::string>(
         "--policy",
         [&policy](const std::string& text) {
           const absl::StatusOr<SchedulerPolicy> parsed = ParseSchedulerPolicy(text);
           if (!parsed.ok()) {
             throw CLI::ValidationError("--policy", std::string(parsed.status().message()));
           }
           policy = *parsed;
         },
         absl::StrCat("How sources are chosen: nearest, or direct, chain or random, which model "
                      "other systems to compare with  [",
                      SchedulerPolicyName(policy), "]"))
      ->type_name("POLICY");
}

}  // namespace th
