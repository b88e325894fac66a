// Update in place: the version is resolved for the group, the buffer drained, filled, and published
// when every rank has its shard.
//
//   asked ─(OperationResolved)─► beginning ─► draining ─(drained)─► filling ─(FillCompleted)─►
//     │                                                                             shard done
//     └─(this rank has it already)─► holding
//   any of them ─(OperationFinished, or a failure here)─► ended
//   but filling and shard done ─(a failure)─► stopping ─(FillStopped)─► ended
//
// Nothing is written any more when the caller hears the result, because
//   an update that fails in filling or shard done goes through stopping, until its fill has ended;
//   one that ends in draining does so when the drain has ended;
//   one that ends in any other phase has not begun to fill, or has received everything.
// Two answers come before that: of EndStreamingUpdate, and of an update whose buffer is
// unregistered (StopFillOf). There the driver waits for the fill before it gives the memory back.
//
// The *verdict* is how the update ended. The caller is answered once it is known and the update's
// own drain and fill have ended (but for the two above); an earlier unpublish may still drain the
// buffer.
#ifndef TH_WORKER_SESSION_UPDATE_H_
#define TH_WORKER_SESSION_UPDATE_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/worker_session/session_state.h"

namespace th::session {

// The name for errors and logs, like "draining".
absl::string_view UpdatePhaseName(UpdatePhase phase);

// Asks the server for the version. An error that is returned leaves the buffer as it is.
absl::Status BeginUpdate(State& state, Buffer& buffer, CallId call, UpdateRequest request,
                         absl::Time now);
// Ends a streaming reader's update, if one is under way, without waiting for its fill to stop: the
// driver stops that by itself. The verdict is `why`, which may be OK, unless it has one already.
void EndStreamingUpdate(State& state, Buffer& buffer, const absl::Status& why, absl::Time now);
// Call before a buffer is unregistered: stops its fill. Nobody waits for FillStopped.
void StopFillOf(State& state, const Buffer& buffer, const Operation& operation);
// Takes the steps of the update that the state allows now; UpdatePhase in session_state.h names
// them. The buffer's drain itself is advanced by Pump (operations.h).
void PumpUpdate(State& state, Buffer& buffer, Operation& operation, absl::Time now);

// The server's word on which version the update is to. It is ignored after the verdict. A first
// word that is no answer to what was asked ends the update with INTERNAL. A later one for another
// version (number or label) ends it with ABORTED, and a repetition makes this rank report again how
// far it is, where it fills, has filled or had the version.
void ResolveUpdate(State& state, Buffer& buffer, Operation& operation,
                   const OperationResolved& resolved, absl::Time now);
// Makes these the sources that it pulls from, whatever its phase and the assignment's number: for
// AssignUpdate, and for a copy that fills while no server is there.
void PullFrom(State& state, Buffer& buffer, Operation& operation, const AssignSources& assigned,
              absl::Time now);
// The server's assignment. Until the buffer has drained the newest is kept, and it is followed from
// then on. One whose number is not above the newest of this server is ignored (another server
// counts anew: NoteOtherServer); so is one for another version, and one that comes before the
// resolution or when nothing is to be filled any more.
void AssignUpdate(State& state, Buffer& buffer, Operation& operation, const AssignSources& assigned,
                  absl::Time now);
// The version is sealed: notes the root that the fill must match.
void LearnRoot(State& state, Buffer& buffer, VersionSequence version, const Digest& root);
// Keeps the receipt where the buffer has that version, published or received, or its update goes to
// it.
void LearnReceipt(Buffer& buffer, VersionSequence version, const RootReceipt& receipt);
// The meaning of the server's result for this rank. A result that is no answer to what was asked,
// or that this rank's own phase contradicts, is an error.
Verdict JudgeFinishedUpdate(const State& state, const Buffer& buffer, const Operation& operation,
                            const OperationFinished& finished);

// Notes in State::site_copies_wanted that the server wants each rank to copy the version, to seed
// its site. Call only where `answer` says so, before the operation is concluded.
void WantSiteCopy(State& state, const Operation& operation, const OperationFinished& answer);

// Says again to the server how far this update is, after a join.
void ResendUpdate(State& state, Buffer& buffer, Operation& operation, absl::Time now);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_UPDATE_H_
