#include "th/server/event_log_lines.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace th {
namespace {

using nlohmann::ordered_json;

EventKind KindNamed(absl::string_view name) {
  const absl::string_view unknown = EventKindName(EventKind::kNone);
  for (uint8_t kind = 1; EventKindName(static_cast<EventKind>(kind)) != unknown; ++kind) {
    if (EventKindName(static_cast<EventKind>(kind)) == name) return static_cast<EventKind>(kind);
  }
  return EventKind::kNone;
}

// Empty where the field is missing or no text.
std::string TextOf(const ordered_json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// 0 where the field is missing or no such number.
uint64_t NumberOf(const ordered_json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

}  // namespace

std::string EventLogLine(const LoggedEvent& logged) {
  const RecentEvent& event = logged.event;
  const ordered_json object = {{"time", EventTimeText(event.at)},
                               {"epoch", logged.epoch.value},
                               {"number", event.number},
                               {"event", event.id.ToString()},
                               {"kind", std::string(EventKindName(event.kind))},
                               {"run", event.key.run},
                               {"model", event.key.model},
                               {"who", event.who},
                               {"what", event.what}};
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

absl::StatusOr<LoggedEvent> ParseEventLogLine(absl::string_view line) {
  const ordered_json object =
      ordered_json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  LoggedEvent logged;
  std::string error;
  const std::string kind = object.is_object() ? TextOf(object, "kind") : "";
  if (kind.empty() ||
      !absl::ParseTime(absl::RFC3339_full, TextOf(object, "time"), &logged.event.at, &error)) {
    return absl::InvalidArgumentError("no line of an event log");
  }
  logged.epoch = Epoch(static_cast<uint32_t>(NumberOf(object, "epoch")));
  logged.event.number = NumberOf(object, "number");
  if (const auto id = ParseEventId(TextOf(object, "event")); id.ok()) logged.event.id = *id;
  logged.event.kind = KindNamed(kind);
  logged.event.key = {.run = TextOf(object, "run"), .model = TextOf(object, "model")};
  logged.event.who = TextOf(object, "who");
  logged.event.what = TextOf(object, "what");
  if (logged.event.kind == EventKind::kNone && kind != EventKindName(EventKind::kNone)) {
    logged.event.what = absl::StrCat(kind, ": ", logged.event.what);
  }
  return logged;
}

}  // namespace th
