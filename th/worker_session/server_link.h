// The stream to the server and the membership that it carries: open, join, speak often enough,
// come back after a loss, end.
//
//   idle ─(Start)─► opening ─(open)─► joining ─(Joined)─► joined
//                      ▲                 │                  │
//                      └──── backoff ◄───┴──(stream lost, no answer, Refused for now)
//   any of them ─(Refused for good, no server in time, Leave)─► ending ─(last call ended)─► ended
#ifndef TH_WORKER_SESSION_SERVER_LINK_H_
#define TH_WORKER_SESSION_SERVER_LINK_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/worker_session/session_state.h"

namespace th::session {

void StartLink(State& state, absl::Time now);
void NoteStreamOpen(State& state, absl::Time now);
void NoteStreamClosed(State& state, const absl::Status& why, absl::Time now);
void HandleJoined(State& state, const Joined& message, absl::Time now);
void HandleRefused(State& state, const Refused& message, absl::Time now);
void HandleGroupChanged(State& state, const GroupChanged& message, absl::Time now);

// Ends every pending call with `status` and stops serving; SessionEnded follows the last of them.
void EndSession(State& state, absl::Status status, ErrorCode code, absl::Time now);
// Readers end the segment under way, for `grace` at most; then the session ends.
void LeaveSession(State& state, absl::Duration grace, absl::Time now);
// Tells the server that this worker leaves in `notice`, and leaves then. INVALID_ARGUMENT,
// FAILED_PRECONDITION where the session is over.
absl::Status GiveNotice(State& state, absl::Duration notice, absl::Time now);
// SessionEnded, once nothing is pending and nobody reads any more.
void FinishEnding(State& state, absl::Time now);

// Heartbeats, retries, deadlines of the join.
void TickLink(State& state, absl::Time now);
absl::Time NextLinkDeadline(const State& state);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_SERVER_LINK_H_
