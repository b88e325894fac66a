// Versions that a group receives beside what it holds, into spare host memory, to move them in
// later. The staged copy of a buffer is an ordinary buffer of this worker, named "BUFFER.staged",
// registered by the first Stage and kept as long as its original: so the Stages of all ranks are
// numbered alike, and a rank that comes late hears their saved results. Each Stage is an ordinary
// update of it by the whole group; it is a source from its first segment on. Its memory is made
// when there is something to put into it, and freed when that was moved in or let go of. To apply
// it is an ordinary update of the original to exactly that version, whose nearest source is the
// copy.
//
//   from       on                                                     to
//   idle       Stage                                                  filling
//   idle       the original is unregistered                           (removed)
//   filling    the group has it                                       held
//   filling    not available, an error, discarded, nothing touched:   held
//              what was staged before is staged still
//   filling    already there, not available, an error, discarded      over
//   held       Stage                                                  filling
//   held       applied, discarded, taken back by the server           releasing
//   over       at once                                                releasing
//   releasing  Stage                                                  filling
//   releasing  drained (FreeOffload)                                  idle
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
// The version that is staged for `original`, and not let go of; an empty sequence: none.
VersionInfo StagedVersion(const State& state, BufferId original);

// The driver's answer to AllocateOffload, when `copy` is a staged one.
void NoteStagedAllocated(State& state, BufferId copy, const absl::Status& status, absl::Time now);

// Takes every step that staged copies allow now: after every event, outside of any walk over the
// buffers.
void PumpStaged(State& state, absl::Time now);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_STAGING_H_
