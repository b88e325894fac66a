#include "th/worker_session/staging.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "th/weights/status_macros.h"
#include "th/worker_session/buffers.h"
#include "th/worker_session/operation.h"
#include "th/worker_session/operations.h"
#include "th/worker_session/update.h"

namespace th::session {
namespace {

using StagedEntry = std::pair<const BufferId, Staged>;

// The copy of `original`. Null: none was ever staged.
StagedEntry* FindCopy(State& state, BufferId original) {
  for (StagedEntry& entry : state.staged) {
    if (entry.second.original == original) return &entry;
  }
  return nullptr;
}

// Held, and not let go of. Null: none.
const Staged* FindHeld(const State& state, BufferId original) {
  for (const auto& [copy, staged] : state.staged) {
    const bool held = staged.phase == StagedPhase::kHeld && !staged.release_wanted;
    if (staged.original == original && held) return &staged;
  }
  return nullptr;
}

absl::Status CanStage(State& state, const Buffer& original, const UpdateRequest& request) {
  TH_RETURN_IF_ERROR(CanBegin(state, original, request.timeout));
  if (FindUpdate(original) != nullptr) {
    return absl::FailedPreconditionError("an update of the buffer is in progress");
  }
  const StagedEntry* copy = FindCopy(state, original.id);
  if (copy != nullptr && copy->second.phase == StagedPhase::kFilling) {
    return absl::FailedPreconditionError("a version is being staged already");
  }
  return absl::OkStatus();
}

absl::StatusOr<BufferId> EnsureCopy(State& state, const Buffer& original, absl::Time now) {
  if (const StagedEntry* copy = FindCopy(state, original.id)) return copy->first;
  TH_ASSIGN_OR_RETURN(const BufferId id, AddStagedBuffer(state, original, now));
  state.staged[id].original = original.id;
  return id;
}

absl::Status WhyLost(const Buffer& copy, const Staged& staged) {
  return absl::AbortedError(absl::StrCat(
      staged.version.ToString(), ", which was staged here, is not available any more: ",
      copy.lost.has_value() ? copy.lost->message() : "it was taken back", "; stage another one"));
}

// Why there is nothing to apply.
absl::Status NothingHeld(State& state, BufferId original) {
  const StagedEntry* copy = FindCopy(state, original);
  if (copy != nullptr && !copy->second.lost.ok()) return copy->second.lost;
  return absl::FailedPreconditionError("nothing is staged; call Stage first");
}

// The server gives its readers others first, so that they go on at once.
void BeginRelease(State& state, BufferId copy, absl::Time now) {
  Staged& staged = state.staged.at(copy);
  staged.phase = StagedPhase::kReleasing;
  staged.release_wanted = false;
  Buffer& buffer = *state.FindBuffer(copy);
  if (buffer.contract.state() == BufferState::kUndefined) {
    (void)ResetBuffer(state, buffer, now);  // cannot fail: its update has ended
    return;
  }
  if (buffer.contract.state() != BufferState::kPublished) return;  // there is nothing to drain
  SendOrAnnounce(state, buffer, BufferReset{copy}, now);
  (void)buffer.contract.Unpublish(now, state.limits.drain_timeout);  // cannot fail: published
  Pump(state, buffer, now);
}

// Its buffer stays registered: the next Stage is its next operation.
void EndRelease(State& state, BufferId copy, Staged& staged) {
  if (staged.memory == StagedMemory::kAsked) return;  // the answer comes first
  if (std::exchange(staged.memory, StagedMemory::kNone) == StagedMemory::kThere) {
    state.Emit(FreeOffload{copy});
  }
  staged.phase = StagedPhase::kIdle;
}

bool WantsMemory(const Buffer& buffer, const Staged& staged) {
  const Operation* update = FindUpdate(buffer);
  return update != nullptr && update->update().phase == UpdatePhase::kBeginning &&
         staged.memory == StagedMemory::kNone;
}

// Whether what was staged has been taken back since the next stage was asked for: until that is
// resolved there is nothing to put into the memory, and no server knows of it.
bool HasIdleMemory(const Buffer& buffer, const Staged& staged) {
  const Operation* update = FindUpdate(buffer);
  return staged.memory == StagedMemory::kThere &&
         buffer.contract.state() == BufferState::kWritable && update != nullptr &&
         update->update().phase == UpdatePhase::kAsked;
}

void PumpCopy(State& state, BufferId copy, absl::Time now) {
  Staged& staged = state.staged.at(copy);
  const Buffer& buffer = *state.FindBuffer(copy);
  const BufferState contract = buffer.contract.state();
  switch (staged.phase) {
    case StagedPhase::kFilling:
      if (HasIdleMemory(buffer, staged)) {
        staged.memory = StagedMemory::kNone;
        return state.Emit(FreeOffload{copy});
      }
      if (!WantsMemory(buffer, staged)) return;
      staged.memory = StagedMemory::kAsked;
      return state.Emit(AllocateOffload{copy, buffer.name, buffer.layout, /*staged=*/true});
    case StagedPhase::kHeld:
      // One that holds nothing any more (it was refused, its version rolled back) is of no use.
      if (contract != BufferState::kPublished) staged.lost = WhyLost(buffer, staged);
      if (staged.release_wanted || !staged.lost.ok()) BeginRelease(state, copy, now);
      return;
    case StagedPhase::kOver:
      return BeginRelease(state, copy, now);
    case StagedPhase::kReleasing:
      if (contract != BufferState::kDraining) EndRelease(state, copy, staged);
      return;
    case StagedPhase::kIdle:
      if (state.FindBuffer(staged.original) == nullptr) (void)RemoveBuffer(state, copy, now);
      return;
  }
}

}  // namespace

absl::StatusOr<BufferId> BeginStage(State& state, Buffer& original, CallId call,
                                    UpdateRequest request, absl::Time now) {
  const absl::Status can = CanStage(state, original, request);
  if (!can.ok()) return RefuseVerb(state, ErrorCode::kUpdateRefused, can);
  const absl::StatusOr<BufferId> copy = EnsureCopy(state, original, now);
  if (!copy.ok()) return RefuseVerb(state, ErrorCode::kUpdateRefused, copy.status());
  request.on_retention = OnRetention::kDrop;  // a staged copy keeps nothing that is retained
  Buffer& buffer = *state.FindBuffer(*copy);
  TH_RETURN_IF_ERROR(BeginUpdate(state, buffer, call, std::move(request), now));
  Staged& staged = state.staged.at(*copy);
  staged.phase = StagedPhase::kFilling;
  staged.release_wanted = false;
  staged.lost = absl::OkStatus();
  Pump(state, buffer, now);
  return *copy;
}

absl::Status BeginApply(State& state, Buffer& original, CallId call, UpdateRequest request,
                        absl::Time now) {
  const Staged* held = FindHeld(state, original.id);
  if (held == nullptr) {
    return RefuseVerb(state, ErrorCode::kUpdateRefused, NothingHeld(state, original.id));
  }
  request.selector = held->version.sequence;
  TH_RETURN_IF_ERROR(BeginUpdate(state, original, call, std::move(request), now));
  FindUpdate(original)->update().applies = held->version;
  return absl::OkStatus();
}

void DiscardStaged(State& state, BufferId original, absl::Time now) {
  StagedEntry* entry = FindCopy(state, original);
  if (entry == nullptr) return;
  entry->second.release_wanted = true;
  Buffer& buffer = *state.FindBuffer(entry->first);
  if (Operation* update = FindUpdate(buffer)) {
    Conclude(*update, {.status = absl::CancelledError("what is staged was discarded")});
    Pump(state, buffer, now);
  }
}

VersionInfo StagedVersion(const State& state, BufferId original) {
  const Staged* held = FindHeld(state, original);
  return held == nullptr ? VersionInfo() : held->version;
}

void NoteStagedAllocated(State& state, BufferId copy, const absl::Status& status, absl::Time now) {
  const auto found = state.staged.find(copy);
  if (found == state.staged.end() || found->second.memory != StagedMemory::kAsked) return;
  found->second.memory = status.ok() ? StagedMemory::kThere : StagedMemory::kNone;
  Buffer& buffer = *state.FindBuffer(copy);
  Operation* update = FindUpdate(buffer);
  if (!status.ok() && update != nullptr) Conclude(*update, {.status = status});
  Pump(state, buffer, now);
}

void PumpStaged(State& state, absl::Time now) {
  // Each step of a copy may allow the next one of it.
  for (int pass = 0; pass < kMaxStagedPasses; ++pass) {
    for (auto it = state.staged.begin(); it != state.staged.end();) {
      const BufferId copy = it->first;
      ++it;  // before the step, which may remove it
      PumpCopy(state, copy, now);
    }
  }
}

}  // namespace th::session
