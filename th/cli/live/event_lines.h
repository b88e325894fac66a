// Recent events for people and for scripts. Pure.
#ifndef TH_CLI_LIVE_EVENT_LINES_H_
#define TH_CLI_LIVE_EVENT_LINES_H_

#include <string>

#include "nlohmann/json.hpp"
#include "th/protocol/event.h"

namespace th {

// A table, oldest first; "nothing to tell" when there is none.
std::string EventTable(const RecentEvents& events);
// One line for who follows: "7-12  r1/m  rollout-1  update moved: step-5 (#7.2) after 1.2s".
std::string EventLine(const RecentEvent& event);

// {"number", "event", "kind", "age_seconds", "run", "model", "who", "what"}.
nlohmann::json ToJson(const RecentEvent& event);
// {"epoch", "lost", "events": [...]}.
nlohmann::json ToJson(const RecentEvents& events);

}  // namespace th

#endif  // TH_CLI_LIVE_EVENT_LINES_H_
