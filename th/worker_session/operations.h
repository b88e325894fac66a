// All operations of all buffers together: the steps that became possible, what the server says of
// them, their deadlines, and what is sent again after a join.
#ifndef TH_WORKER_SESSION_OPERATIONS_H_
#define TH_WORKER_SESSION_OPERATIONS_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/worker_session/session_state.h"

namespace th::session {

// Takes every step that the state allows now: tells the server of operations that it does not know
// yet (or not any more), goes on with drains, operations, admissions that waited. Called after each
// event that touched the buffer.
void Pump(State& state, Buffer& buffer, absl::Time now);
// Tells how far the operations are whose starts went ahead of the answer to the buffer's
// registration, which has just come: until then nothing else could be said of them.
void SendWhatFollowsTheStart(State& state, Buffer& buffer, absl::Time now);
void PumpAll(State& state, absl::Time now);

// Ends what nobody ended in time, sends progress that is due, goes on with drains.
void TickOperations(State& state, absl::Time now);
absl::Time NextOperationDeadline(const State& state);

void HandleResolved(State& state, const OperationResolved& message, absl::Time now);
void HandleAssigned(State& state, const AssignSources& message, absl::Time now);
void HandleFinished(State& state, const OperationFinished& message, absl::Time now);
void HandleRoot(State& state, const RootKnown& message);
void HandlePublicationRefused(State& state, const PublicationRefused& message, absl::Time now);

// The stream is gone: what was told in it counts as untold.
void ForgetSent(State& state);
// Another server answers from now on. It knows neither the assignments of the one before nor what a
// publish that has no name yet holds.
void NoteOtherServer(State& state);

// Ends every operation of a buffer with `why`; the server is not told, and the numbers restart.
void OrphanOperations(Buffer& buffer, const absl::Status& why, ErrorCode code);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_OPERATIONS_H_
