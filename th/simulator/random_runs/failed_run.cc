#include "th/simulator/random_runs/failed_run.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace th {
namespace {

std::string CommandFor(const RandomRunSpec& spec) {
  const std::string command = absl::StrCat("th simulate --seeds 1 --first-seed ", spec.seed);
  if (spec.without.empty()) return command;
  return absl::StrCat(command, " --without ", absl::StrJoin(spec.without, ","));
}

RandomRunSpec ShortenFaults(const RandomRunSpec& spec, size_t faults) {
  RandomRunSpec shortest = spec;
  shortest.trace = nullptr;
  for (bool shortened = true; shortened;) {
    shortened = false;
    for (size_t fault = faults; fault-- > 0;) {
      if (shortest.without.contains(fault)) continue;
      RandomRunSpec shorter = shortest;
      shorter.without.insert(fault);
      if (RunAtRandom(shorter).violations.empty()) continue;
      shortest = std::move(shorter);
      shortened = true;
    }
  }
  return shortest;
}

}  // namespace

std::string FailedRun::ToString() const {
  std::string text = absl::StrCat(command, "\nviolates what must hold:\n");
  for (const std::string& violation : violations) absl::StrAppend(&text, "  ", violation, "\n");
  absl::StrAppend(&text, "these faults are enough (", shortest_command, "):\n");
  for (const std::string& fault : faults) absl::StrAppend(&text, "  ", fault, "\n");
  return text;
}

FailedRun DescribeFailedRun(const RandomRunSpec& spec, const RandomRunResult& result) {
  const RandomRunSpec shortest = ShortenFaults(spec, result.faults.size());
  FailedRun failed{.seed = spec.seed,
                   .command = CommandFor(spec),
                   .violations = result.violations,
                   .shortest_command = CommandFor(shortest)};
  for (size_t i = 0; i < result.faults.size(); ++i) {
    if (!shortest.without.contains(i)) failed.faults.push_back(result.faults[i].ToString());
  }
  return failed;
}

}  // namespace th
