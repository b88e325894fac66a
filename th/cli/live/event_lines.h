// Recent events for people and for scripts. Pure.
#ifndef TH_CLI_LIVE_EVENT_LINES_H_
#define TH_CLI_LIVE_EVENT_LINES_H_

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "th/protocol/event.h"

namespace th {

// The events as a table, oldest first, or that there are none.
std::string EventTable(const RecentEvents& events);
// The reason why a server at `epoch` remembers nothing of `asked`.
std::string WhyUnknown(EventId asked, Epoch epoch);
// Empty where the server that answered is the one that minted `asked`.
std::string OfAnotherEpoch(EventId asked, Epoch epoch);
// One line for who follows: "2026-11-26T18:30:00.125Z  7-12  r1/m  rollout-1  update moved: step-5
// (#7.2) after 1.2s".
std::string EventLine(const RecentEvent& event);

// {"number", "event", "kind", "age_seconds", "time", "run", "model", "who", "what"}.
nlohmann::json ToJson(const RecentEvent& event);
// {"epoch", "lost", "events": [...]}; what is of another epoch is lost.
nlohmann::json ToJson(const RecentEvents& events, EventId asked);

// Drops `shown` and the events before it, and returns true, where `events` has it: the server that
// showed it goes on in a higher epoch, as one does whose state was lost or older. False: another
// process answers, which does not know it.
bool DropShown(const RecentEvent& shown, std::vector<RecentEvent>* events);

}  // namespace th

#endif  // TH_CLI_LIVE_EVENT_LINES_H_
