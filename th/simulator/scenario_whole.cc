#include "th/simulator/scenario_whole.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace th {
namespace {

// Who joins after the first publish updates at once.
bool MakesSomebodyUpdate(const Scenario& scenario, const ScenarioEvent& event) {
  using Kind = ScenarioEvent::Kind;
  const bool joins = event.kind == Kind::kJoin || event.kind == Kind::kReplace;
  return event.kind == Kind::kUpdate || (joins && event.at >= scenario.training.first);
}

}  // namespace

absl::Status CheckWhole(const Scenario& scenario, const std::vector<int>& event_lines) {
  const std::string end = absl::FormatDuration(scenario.end);
  const auto wrong = [&](int line, absl::string_view reason) {
    return absl::InvalidArgumentError(
        absl::StrCat(scenario.name, line > 0 ? absl::StrCat(":", line) : "", ": ", reason));
  };
  if (scenario.training.first >= scenario.end) {
    return wrong(
        0, absl::StrCat("the first publish, at ", absl::FormatDuration(scenario.training.first),
                        ", comes no sooner than the end at ", end));
  }
  for (size_t i = 0; i < scenario.events.size(); ++i) {
    const absl::Duration at = scenario.events[i].at;
    // `every $pause` beyond the end is how a file turns a repeated one off.
    if (at <= scenario.end || scenario.events[i].every.has_value()) continue;
    return wrong(event_lines[i], absl::StrCat("the event at ", absl::FormatDuration(at),
                                              " would come after the end at ", end));
  }
  const bool asked =
      std::any_of(scenario.events.begin(), scenario.events.end(),
                  [&](const ScenarioEvent& event) { return MakesSomebodyUpdate(scenario, event); });
  if (asked || !scenario.updates.empty()) return absl::OkStatus();
  return wrong(0, "no 'update' and no event that makes somebody update: nobody reads");
}

}  // namespace th
