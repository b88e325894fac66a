// Versions that a group receives beside what it holds, into spare host memory, to move them in
// later. The staged copy of a buffer (host_copy.h) is named "BUFFER.staged". Each Stage is an
// update of it by the whole group; its memory is made when there is something to put into it, and
// freed when that was moved in or discarded. To apply it is an update of the original to exactly
// that version, whose nearest source is the copy.
#ifndef TH_WORKER_SESSION_STAGING_H_
#define TH_WORKER_SESSION_STAGING_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/worker_session/session_state.h"

namespace th::session {

// The copy that it fills; its OperationDone comes under that buffer. What was staged before is
// written over.
absl::StatusOr<BufferId> BeginStage(State& state, Buffer& original, CallId call,
                                    UpdateRequest request, absl::Time now);
// To the version that is staged; `request.selector` is not looked at.
absl::Status BeginApply(State& state, Buffer& original, CallId call, UpdateRequest request,
                        absl::Time now);
// Ends a Stage that is under way (CANCELLED), lets go of what is held. Nothing to do is no error.
void DiscardStaged(State& state, BufferId original, absl::Time now);
// Ends the update of `original` that is under way, or its Stage (CANCELLED). Nothing to do is no
// error.
void CancelUpdate(State& state, BufferId original, absl::Time now);
// The version that is staged for `original`, and not let go of; an empty sequence: none.
VersionInfo StagedVersion(const State& state, BufferId original);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_STAGING_H_
