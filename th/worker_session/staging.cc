#include "th/worker_session/staging.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/weights/status_macros.h"
#include "th/worker_session/buffers.h"
#include "th/worker_session/operation.h"
#include "th/worker_session/operations.h"
#include "th/worker_session/update.h"

namespace th::session {
namespace {

absl::Status CanStage(const State& state, const Buffer& original, const UpdateRequest& request) {
  TH_RETURN_IF_ERROR(CanBegin(state, original, request.timeout));
  if (FindUpdate(original) != nullptr) {
    return absl::FailedPreconditionError("an update of the buffer is in progress");
  }
  const bool staging =
      std::any_of(state.staged.begin(), state.staged.end(), [&](const auto& entry) {
        return entry.second.original == original.id && entry.second.phase == StagedPhase::kFilling;
      });
  if (staging) return absl::FailedPreconditionError("a version is being staged already");
  return absl::OkStatus();
}

// Held, and not let go of. Null: none.
const Staged* FindHeld(const State& state, BufferId original) {
  for (const auto& [copy, staged] : state.staged) {
    if (staged.original != original || staged.release_wanted) continue;
    if (staged.phase == StagedPhase::kHeld) return &staged;
  }
  return nullptr;
}

// Which Stage of the original this is since its last operation: alike at all ranks.
uint32_t CountStage(const State& state, Buffer& original) {
  const std::pair since(state.membership.group_generation, original.next_number);
  if (std::exchange(original.staged_since, since) != since) original.stages = 0;
  return ++original.stages;
}

void Free(State& state, BufferId copy, absl::Time now) {
  const bool allocated = state.staged.at(copy).memory == StagedMemory::kThere;
  (void)RemoveBuffer(state, copy, now);  // cannot fail: it is there
  if (allocated) state.Emit(FreeOffload{copy});
}

// The server gives its readers others first, so that they go on at once.
void BeginRelease(State& state, BufferId copy, absl::Time now) {
  state.staged.at(copy).phase = StagedPhase::kReleasing;
  Buffer& buffer = *state.FindBuffer(copy);
  SendAbout(state, buffer, BufferReset{copy}, now);
  // Of one that is not published there is nothing to drain.
  (void)buffer.contract.Unpublish(now, state.limits.drain_timeout);
  Pump(state, buffer, now);
}

// The spare memory holds one version at a time: the one before drains first.
bool MayHaveMemory(const State& state, BufferId copy, const Staged& staged) {
  const Operation* update = FindUpdate(*state.FindBuffer(copy));
  if (update == nullptr || update->update.phase != UpdatePhase::kBeginning) return false;
  return std::none_of(state.staged.begin(), state.staged.end(), [&](const auto& entry) {
    return entry.first != copy && entry.second.original == staged.original &&
           entry.second.memory != StagedMemory::kNone;
  });
}

void PumpCopy(State& state, BufferId copy, absl::Time now) {
  Staged& staged = state.staged.at(copy);
  const Buffer& buffer = *state.FindBuffer(copy);
  switch (staged.phase) {
    case StagedPhase::kFilling:
      if (staged.memory != StagedMemory::kNone || !MayHaveMemory(state, copy, staged)) return;
      staged.memory = StagedMemory::kAsked;
      return state.Emit(AllocateOffload{copy, buffer.name, buffer.layout, /*staged=*/true});
    case StagedPhase::kHeld:
      // One that holds nothing any more (it was refused, its version rolled back) is of no use.
      if (staged.release_wanted || buffer.contract.state() != BufferState::kPublished) {
        BeginRelease(state, copy, now);
      }
      return;
    case StagedPhase::kReleasing:
      if (buffer.contract.state() != BufferState::kDraining) staged.phase = StagedPhase::kOver;
      return;
    case StagedPhase::kOver:
      if (staged.memory != StagedMemory::kAsked) Free(state, copy, now);
      return;
  }
}

}  // namespace

absl::StatusOr<BufferId> BeginStage(State& state, Buffer& original, CallId call,
                                    UpdateRequest request, absl::Time now) {
  const absl::Status can = CanStage(state, original, request);
  if (!can.ok()) return RefuseVerb(state, ErrorCode::kUpdateRefused, can);
  for (auto& [copy, staged] : state.staged) staged.release_wanted |= staged.original == original.id;
  const uint32_t count = CountStage(state, original);
  absl::StatusOr<BufferId> copy = AddStagedBuffer(state, original, count, now);
  if (!copy.ok()) return RefuseVerb(state, ErrorCode::kUpdateRefused, copy.status());
  state.staged[*copy].original = original.id;
  request.on_retention = OnRetention::kDrop;  // it holds nothing that could go
  Buffer& buffer = *state.FindBuffer(*copy);
  const absl::Status begun = BeginUpdate(state, buffer, call, std::move(request), now);
  if (!begun.ok()) {
    (void)RemoveBuffer(state, *copy, now);
    return begun;
  }
  Pump(state, buffer, now);
  return copy;
}

absl::Status BeginApply(State& state, Buffer& original, CallId call, UpdateRequest request,
                        absl::Time now) {
  const Staged* held = FindHeld(state, original.id);
  if (held == nullptr) {
    return RefuseVerb(state, ErrorCode::kUpdateRefused,
                      absl::FailedPreconditionError("nothing is staged; call Stage first"));
  }
  request.selector = held->version.sequence;
  TH_RETURN_IF_ERROR(BeginUpdate(state, original, call, std::move(request), now));
  FindUpdate(original)->applies = held->version;
  return absl::OkStatus();
}

void DiscardStaged(State& state, BufferId original, absl::Time now) {
  for (auto& [copy, staged] : state.staged) {
    if (staged.original != original) continue;
    staged.release_wanted = true;
    if (staged.phase != StagedPhase::kFilling) continue;
    Buffer& buffer = *state.FindBuffer(copy);
    if (Operation* update = FindUpdate(buffer)) {
      Conclude(*update, {.status = absl::CancelledError("what is staged was discarded")});
      Pump(state, buffer, now);
    }
  }
  PumpStaged(state, now);
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
  // Each step of a copy may allow the next one of it, or of another.
  for (int pass = 0; pass < kMaxStagedPasses; ++pass) {
    for (auto it = state.staged.begin(); it != state.staged.end();) {
      const BufferId copy = it->first;
      ++it;  // before the step, which may remove it
      PumpCopy(state, copy, now);
    }
  }
}

}  // namespace th::session
