#include "th/simulator/scenarios/scenario_whole.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/status/status_macros.h"
#include "th/topology/location.h"

namespace th {
namespace {

// True for an event that makes somebody update: a group that joins after the first publish does at
// once.
bool MakesSomebodyUpdate(const Scenario& scenario, const ScenarioEvent& event) {
  using Kind = ScenarioEvent::Kind;
  const bool joins = event.kind == Kind::kJoin || event.kind == Kind::kReplace;
  return event.kind == Kind::kUpdate || (joins && event.at >= scenario.training.first);
}

absl::Status Wrong(const Scenario& scenario, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat(scenario.name, ": ", reason));
}

absl::Status WrongLine(const Scenario& scenario, int line, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat(scenario.name, ":", line, ": ", reason));
}

// Somebody publishes, and only that one trains; somebody reads.
absl::Status CheckRoles(const Scenario& scenario) {
  if (scenario.training.family.empty()) return Wrong(scenario, "no 'train': nobody publishes");
  const bool reads =
      std::any_of(scenario.families.begin(), scenario.families.end(),
                  [](const ScenarioFamily& family) { return family.role != GroupRole::kTrainer; });
  if (!reads) return Wrong(scenario, "no group with role=rollout or role=spot: nobody reads");
  for (const ScenarioFamily& family : scenario.families) {
    if (family.role != GroupRole::kTrainer || family.name == scenario.training.family) continue;
    return Wrong(scenario, absl::StrCat("the trainer '", family.name, "' does not train"));
  }
  return absl::OkStatus();
}

absl::Status CheckLinksBetweenSites(const Scenario& scenario) {
  std::set<std::string> used = {scenario.server_site};
  for (const ScenarioFamily& family : scenario.families) {
    for (const std::vector<Location>& places : family.places) {
      for (const Location& place : places) used.insert(place.site);
    }
  }
  for (const std::string& from : used) {
    for (const std::string& to : used) {
      if (from == to || scenario.fabric.site_links.contains({from, to})) continue;
      return Wrong(scenario, absl::StrCat("no 'link ", from, " ", to,
                                          "', and both have groups or the server"));
    }
  }
  return absl::OkStatus();
}

// OK when something happens that could be measured.
absl::Status CheckCourse(const Scenario& scenario, const std::vector<int>& event_lines) {
  const std::string end = absl::FormatDuration(scenario.end);
  if (scenario.training.first >= scenario.end) {
    return Wrong(scenario, absl::StrCat("the first publish, at ",
                                        absl::FormatDuration(scenario.training.first),
                                        ", comes no sooner than the end at ", end));
  }
  for (size_t i = 0; i < scenario.events.size(); ++i) {
    const absl::Duration at = scenario.events[i].at;
    // `every $pause` beyond the end is how a file turns a repeated one off.
    if (at <= scenario.end || scenario.events[i].every.has_value()) continue;
    return WrongLine(scenario, event_lines[i],
                     absl::StrCat("the event at ", absl::FormatDuration(at),
                                  " would come after the end at ", end));
  }
  const bool asked =
      std::any_of(scenario.events.begin(), scenario.events.end(),
                  [&](const ScenarioEvent& event) { return MakesSomebodyUpdate(scenario, event); });
  if (asked || !scenario.updates.empty()) return absl::OkStatus();
  return Wrong(scenario, "no 'update' and no event that makes somebody update: nobody reads");
}

}  // namespace

absl::Status CheckWhole(const Scenario& scenario, const std::vector<int>& event_lines) {
  TH_RETURN_IF_ERROR(CheckRoles(scenario));
  if (scenario.end <= absl::ZeroDuration()) return Wrong(scenario, "no 'end'");
  TH_RETURN_IF_ERROR(CheckLinksBetweenSites(scenario));
  return CheckCourse(scenario, event_lines);
}

}  // namespace th
