#include "th/cli/live/event_lines.h"

#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "th/command_line/text_table.h"

namespace th {
namespace {

std::string Dash(std::string text) { return text.empty() ? "-" : std::move(text); }

std::string ModelText(const ModelKey& key) {
  return key == ModelKey() ? "-" : absl::StrCat(key.run, "/", key.model);
}

std::string WhatText(const RecentEvent& event) {
  const std::string kind(EventKindName(event.kind));
  return event.what.empty() ? kind : absl::StrCat(kind, ": ", event.what);
}

}  // namespace

std::string OfAnotherEpoch(EventId asked, Epoch epoch) {
  if (asked.empty() || asked.epoch() == epoch) return "";
  if (asked.epoch() > epoch) {
    return absl::StrCat("event ", asked.ToString(), " is of another server: this one is at epoch ",
                        epoch.value);
  }
  return absl::StrCat(
      "event ", asked.ToString(), " is LOST: it is of epoch ", asked.epoch().value,
      ", the server has restarted since (now ", epoch.value,
      ") and remembers nothing of before; th events --log FILE --id shows it where the "
      "server writes an --event-log, and logs of server and workers name it");
}

std::string WhyUnknown(EventId asked, Epoch epoch) {
  const std::string why = OfAnotherEpoch(asked, epoch);
  if (!why.empty()) return why;
  return absl::StrCat("the server remembers no event ", asked.ToString(),
                      ": there was none, it is of another run or model than the one named, or so "
                      "much has happened since that it is forgotten; the logs of the server and of "
                      "the workers name it still");
}

std::string EventTable(const RecentEvents& events) {
  if (events.events.empty()) return "nothing to tell\n";
  TextTable table({{"TIME"}, {"AGO", Align::kRight}, {"EVENT"}, {"MODEL"}, {"WHO"}, {"WHAT"}});
  for (const RecentEvent& event : events.events) {
    table.AddRow(
        {Dash(EventTimeText(event.at)), absl::StrFormat("%.1f s", absl::ToDoubleSeconds(event.age)),
         Dash(event.id.ToString()), ModelText(event.key), Dash(event.who), WhatText(event)});
  }
  return table.ToString();
}

std::string EventLine(const RecentEvent& event) {
  return absl::StrCat(Dash(EventTimeText(event.at)), "  ", Dash(event.id.ToString()), "  ",
                      ModelText(event.key), "  ", Dash(event.who), "  ", WhatText(event));
}

nlohmann::json ToJson(const RecentEvent& event) {
  return {{"number", event.number},
          {"event", event.id.ToString()},
          {"kind", std::string(EventKindName(event.kind))},
          {"age_seconds", absl::ToDoubleSeconds(event.age)},
          {"time", EventTimeText(event.at)},
          {"run", event.key.run},
          {"model", event.key.model},
          {"who", event.who},
          {"what", event.what}};
}

nlohmann::json ToJson(const RecentEvents& events, EventId asked) {
  nlohmann::json listed = nlohmann::json::array();
  for (const RecentEvent& event : events.events) listed.push_back(ToJson(event));
  const bool lost = events.lost || !OfAnotherEpoch(asked, events.epoch).empty();
  return {{"epoch", events.epoch.value}, {"lost", lost}, {"events", std::move(listed)}};
}

bool DropShown(const RecentEvent& shown, std::vector<RecentEvent>* events) {
  const auto found = absl::c_find_if(*events, [&shown](const RecentEvent& event) {
    return event.number == shown.number && event.at == shown.at;
  });
  if (found == events->end()) return false;
  events->erase(events->begin(), found + 1);
  return true;
}

}  // namespace th
