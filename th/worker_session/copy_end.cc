#include "th/worker_session/copy_end.h"

#include "absl/status/status.h"

namespace th::session {
namespace {

bool HasMoved(const OperationDone& done) {
  return done.status.ok() && done.outcome != UpdateOutcome::kNotAvailable;
}

void EndFilling(const Buffer& buffer, HostCopy& copy, OperationDone& done) {
  const auto holds = [&buffer](const VersionInfo& version) {
    return buffer.contract.state() == BufferState::kPublished &&
           buffer.contract.version() == version.sequence;
  };
  const bool moved = HasMoved(done) && holds(done.version);
  // A copy that was held before a fill that has written nothing is held still.
  copy.phase = moved || holds(copy.version) ? CopyPhase::kHeld : CopyPhase::kOver;
  if (moved) {
    copy.version = done.version;
    done.outcome = UpdateOutcome::kMoved;
  }
  if (KeptCopy* kept = copy.kept(); kept != nullptr && copy.phase == CopyPhase::kOver) {
    kept->failed = done.status.ok() ? absl::UnavailableError("nobody holds the version any more")
                                    : done.status;
  }
}

}  // namespace

void NoteCopyEnd(State& state, const Buffer& buffer, OperationDone& done) {
  if (done.kind != OperationKind::kUpdate) return;
  if (HostCopy* own = state.FindHostCopy(buffer.id)) return EndFilling(buffer, *own, done);
  if (!HasMoved(done)) return;
  for (auto& [id, copy] : state.host_copies) {
    const StagedCopy* staged = copy.staged();
    const bool applied = staged != nullptr && staged->original == buffer.id &&
                         copy.phase == CopyPhase::kHeld &&
                         copy.version.sequence == done.version.sequence;
    copy.release_wanted |= applied;
  }
}

}  // namespace th::session
