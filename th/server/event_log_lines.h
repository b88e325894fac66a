// The lines of the event log on disk (event_log.h), one JSON object each:
//
//   {"time":"2026-11-26T18:30:00.125Z","epoch":7,"number":12,"event":"7-12","kind":"update moved",
//    "run":"r1","model":"m","who":"rollout-1","what":"step-5 (#7.2) after 1.2s"}
//
// Pure.
#ifndef TH_SERVER_EVENT_LOG_LINES_H_
#define TH_SERVER_EVENT_LOG_LINES_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/event.h"

namespace th {

struct LoggedEvent {
  Epoch epoch;
  RecentEvent event;  // its age is meaningless
};

// The line, with its end. Bytes that are no UTF-8 are replaced.
std::string EventLogLine(const LoggedEvent& logged);

// INVALID_ARGUMENT: no line of an event log, as where a server was killed while it wrote. A kind
// that this build does not know becomes kNone, and its name the beginning of `what`.
absl::StatusOr<LoggedEvent> ParseEventLogLine(absl::string_view line);

}  // namespace th

#endif  // TH_SERVER_EVENT_LOG_LINES_H_
