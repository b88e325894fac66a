// Mutating calls that are no group operation. Each carries the caller's idempotency key, so that it
// can be sent again after every join until it is answered.
#ifndef TH_WORKER_SESSION_UNANSWERED_COMMANDS_H_
#define TH_WORKER_SESSION_UNANSWERED_COMMANDS_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/worker_session/session_state.h"

namespace th::session {

absl::Status BeginCommand(State& state, CallId call, RunCommand command, absl::Time now);
void HandleCommandFinished(State& state, const CommandFinished& message);
void ResendCommands(State& state, absl::Time now);
void TickCommands(State& state, absl::Time now);
absl::Time NextCommandDeadline(const State& state);
void EndCommands(State& state, const absl::Status& why);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_UNANSWERED_COMMANDS_H_
