// Update in place: the version is resolved for the group, the buffer drained, filled, and published
// when every rank has its shard.
//
//   asked ─(OperationResolved)─► beginning ─► draining ─(drained)─► filling ─(FillCompleted)─►
//     │                                                                             shard done
//     └─(this rank has it already)─► holding
//   any of them ─(OperationFinished, or a failure here)─► ended. Nothing is written any more when
//   the caller hears the result: a failed one goes from filling or shard done through stopping,
//   one that moved ends from shard done or holding, and one that drains ends when the drain has.
//   (EndStreamingUpdate waits for nothing.)
//
// The *verdict* is how the update ended, known before the buffer has come to rest; with both, the
// caller is answered.
#ifndef TH_WORKER_SESSION_UPDATE_H_
#define TH_WORKER_SESSION_UPDATE_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/worker_session/session_state.h"

namespace th::session {

// "draining": for errors and logs.
absl::string_view UpdatePhaseName(UpdatePhase phase);

// Asks the server for the version; an error leaves the buffer as it is.
absl::Status BeginUpdate(State& state, Buffer& buffer, CallId call, UpdateRequest request,
                         absl::Time now);
// Ends a streaming reader's update, if one is under way, with `why` unless it has a verdict, and
// without waiting for the fill to stop: the driver ends that by itself.
void EndStreamingUpdate(State& state, Buffer& buffer, const absl::Status& why, absl::Time now);
// For a buffer that goes: nobody waits for FillStopped.
void StopFillOf(State& state, const Buffer& buffer, const Operation& operation);
// Takes every step that the state allows now; UpdatePhase in session_state.h names them.
void PumpUpdate(State& state, Buffer& buffer, Operation& operation, absl::Time now);

// The server's word on which version the update is to. It is ignored after the verdict. A second
// word for another version ends the update with ABORTED, one that is no answer to what was asked
// with INTERNAL.
void ResolveUpdate(State& state, Buffer& buffer, Operation& operation,
                   const OperationResolved& resolved, absl::Time now);
// Makes these the sources that it pulls from, whatever its phase and the assignment's number: for
// AssignUpdate, and for a copy that fills while no server is there.
void PullFrom(State& state, Buffer& buffer, Operation& operation, const AssignSources& assigned,
              absl::Time now);
// The server's assignment; kept until the buffer is drained, the last one that comes. Once the
// buffer fills, one that is not newer than the present one is ignored; so is one for another
// version, and one that comes before the resolution or when nothing is to be filled any more.
void AssignUpdate(State& state, Buffer& buffer, Operation& operation, const AssignSources& assigned,
                  absl::Time now);
// The version is sealed: what its fill must come to.
void LearnRoot(State& state, Buffer& buffer, VersionSequence version, const Digest& root);
// Keeps the receipt where the buffer has that version, published or received, or moves to it.
void LearnReceipt(Buffer& buffer, VersionSequence version, const RootReceipt& receipt);
// The meaning of the server's result for this rank: an outcome that its own phase contradicts is an
// error.
Verdict JudgeFinishedUpdate(const State& state, const Buffer& buffer, const Operation& operation,
                            const OperationFinished& finished);

// The server's answer to `operation` is that each rank copies the version to seed its site: noted
// in State::site_copies_wanted. Call before the operation is concluded.
void WantSiteCopy(State& state, const Operation& operation, const OperationFinished& answer);

// Says again to the server how far this update is, after a join.
void ResendUpdate(State& state, Buffer& buffer, Operation& operation, absl::Time now);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_UPDATE_H_
