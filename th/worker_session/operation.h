// The common part of publish, unpublish and update: their numbers, their start at the server, and
// their one end.
#ifndef TH_WORKER_SESSION_OPERATION_H_
#define TH_WORKER_SESSION_OPERATION_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/worker_session/session_state.h"

namespace th::session {

// OK when one more operation may begin on this buffer. INVALID_ARGUMENT for a timeout that is not
// positive, RESOURCE_EXHAUSTED at a limit, FAILED_PRECONDITION for a session that is over or a
// buffer that the server has refused.
absl::Status CanBegin(const State& state, const Buffer& buffer, absl::Duration timeout);

// Numbers the operation and keeps it. The server is told by the next Pump, in the order of numbers.
Operation& Begin(Buffer& buffer, CallId call, StartOperation start, absl::Time now);

// To the server about `buffer`, once it knows the buffer in this membership; else what is said is
// said again after the join.
void SendAbout(State& state, const Buffer& buffer, WorkerMessage message, absl::Time now);
// Returns whether the server takes a StartOperation of the buffer. That of a streaming reader that
// is alone in its group follows its registration at once, without the answer: a registration that
// is refused ends the operation too, and no other rank has to hear of it.
bool MayBeAskedAbout(const State& state, const Buffer& buffer);
// Likewise what changes the buffer and is never said again: a buffer that was announced before it
// changed is announced once more.
void SendOrAnnounce(State& state, Buffer& buffer, WorkerMessage message, absl::Time now);

// The start of `operation` (again), with the time that is left and the version that is known.
void SendStart(State& state, const Buffer& buffer, const Operation& operation, absl::Time now);

// This rank's part is done: what it has cost so far is kept for the server.
void NoteRankDone(Operation& operation, absl::Time now);
// Tells it (again).
void SendRankDone(State& state, const Buffer& buffer, const Operation& operation, absl::Time now);

// The server's name of the operation, where it tells one.
void NoteEvent(Operation& operation, EventId event);

// This rank's part has failed: once per membership and operation.
void SendRankFailed(State& state, const Buffer& buffer, Operation& operation, absl::Time now);

// The first verdict stands; the server's word after our own only settles that it has heard.
void Conclude(Operation& operation, Verdict verdict);

// The caller hears the result. The operation is dropped, or kept until the server has heard of it.
void End(State& state, Buffer& buffer, Operation& operation, absl::Time now);

// Tells the server all about the buffer again, now or when it has answered the announcement before.
void Reannounce(State& state, Buffer& buffer, absl::Time now);

// For a server without memory: that the operation's number has ended, and how.
void RememberFinished(Buffer& buffer, const Operation& operation, const Verdict& verdict);

// Begins `operation` anew under the next number; its number so far has ended.
void AskAgain(Buffer& buffer, Operation& operation, absl::Time now);

// The status of a call that its caller has cancelled.
absl::Status CancelledByCaller();

// A refusal of a verb, in words.
absl::Status RefuseVerb(const State& state, ErrorCode code, const absl::Status& why);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_OPERATION_H_
