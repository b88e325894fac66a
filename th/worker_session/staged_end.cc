#include "th/worker_session/staged_end.h"

namespace th::session {

void NoteStagedEnd(State& state, const Buffer& buffer, OperationDone& done) {
  if (done.kind != OperationKind::kUpdate) return;
  const bool here = done.status.ok() && done.outcome != UpdateOutcome::kNotAvailable;
  for (auto& [copy, staged] : state.staged) {
    if (copy == buffer.id) {
      // One that was staged before is staged still: to the caller there is no difference.
      const bool holds = here && buffer.contract.state() == BufferState::kPublished &&
                         buffer.contract.version() == done.version.sequence;
      const bool untouched = buffer.contract.state() == BufferState::kPublished &&
                             buffer.contract.version() == staged.version.sequence;
      staged.phase = holds || untouched ? StagedPhase::kHeld : StagedPhase::kOver;
      if (holds || !untouched) staged.version = done.version;
      if (holds) done.outcome = UpdateOutcome::kMoved;
    } else if (staged.original == buffer.id && here) {
      staged.release_wanted |=
          staged.phase == StagedPhase::kHeld && staged.version.sequence == done.version.sequence;
    }
  }
}

}  // namespace th::session
