#include "th/worker_session/host_copy.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/worker_session/buffers.h"
#include "th/worker_session/offload.h"
#include "th/worker_session/operation.h"
#include "th/worker_session/operations.h"
#include "tools/mutation/mutation.h"

namespace th::session {
namespace {

absl::string_view PhaseName(CopyPhase phase) {
  switch (phase) {
    case CopyPhase::kIdle:
      return "idle";
    case CopyPhase::kFilling:
      return "filling";
    case CopyPhase::kHeld:
      return "held";
    case CopyPhase::kOver:
      return "over";
    case CopyPhase::kReleasing:
      return "releasing";
  }
  return "unknown";
}

absl::string_view MemoryName(CopyMemory memory) {
  switch (memory) {
    case CopyMemory::kNone:
      return "no memory";
    case CopyMemory::kAsked:
      return "memory asked";
    case CopyMemory::kRefused:
      return "memory refused";
    case CopyMemory::kThere:
      return "memory there";
  }
  return "unknown";
}

// ---- memory

void FreeMemory(State& state, BufferId id, HostCopy& copy) {
  if (std::exchange(copy.memory, CopyMemory::kNone) != CopyMemory::kThere) return;
  TH_MUTATE(kKeepReleasedCopies, state.Emit(FreeOffload{id}), static_cast<void>(0));
}

bool WantsMemory(const Buffer& buffer, const HostCopy& copy) {
  const Operation* update = FindUpdate(buffer);
  return copy.memory == CopyMemory::kNone && update != nullptr &&
         update->update().phase == UpdatePhase::kBeginning;
}

// True when the next Stage has not resolved and the server has taken back the old version: nothing
// is in the memory, and no server knows of it.
bool HasIdleMemory(const Buffer& buffer, const HostCopy& copy) {
  const Operation* update = FindUpdate(buffer);
  return copy.memory == CopyMemory::kThere && buffer.contract.state() == BufferState::kWritable &&
         update != nullptr && update->update().phase == UpdatePhase::kAsked;
}

// ---- release

absl::Status WhyLost(const Buffer& buffer, const HostCopy& copy) {
  return absl::AbortedError(
      absl::StrCat(copy.version.ToString(), ", which was staged here, is not available any more: ",
                   buffer.lost.has_value() ? buffer.lost->message() : "it was taken back",
                   "; stage another one"));
}

// The buffer of a staged copy stays registered, so BufferReset is sent before draining: the server
// then gives the copy's readers other sources at once.
void BeginRelease(State& state, Buffer& buffer, HostCopy& copy, absl::Time now) {
  copy.phase = CopyPhase::kReleasing;
  copy.release_wanted = false;
  const bool stays_registered = copy.staged() != nullptr;
  if (stays_registered && buffer.contract.state() == BufferState::kUndefined) {
    (void)ResetBuffer(state, buffer, now);  // cannot fail: its update has ended
    return;
  }
  if (buffer.contract.state() != BufferState::kPublished) return;  // there is nothing to drain
  if (stays_registered) SendOrAnnounce(state, buffer, BufferReset{buffer.id}, now);
  (void)buffer.contract.Unpublish(now, state.limits.drain_timeout);  // cannot fail: published
  Pump(state, buffer, now);
}

void Remove(State& state, BufferId id, const HostCopy& copy, absl::Time now) {
  const absl::Status failed = copy.kept() == nullptr ? absl::OkStatus() : copy.kept()->failed;
  (void)RemoveBuffer(state, id, now);  // cannot fail: it is there
  if (!failed.ok()) FailWaiting(state, id, failed, now);
}

// Begins and fails this rank's part of the update, which tells the other ranks that it has no
// memory. Returns false while the registration of the buffer is unanswered.
bool BeginWithoutMemory(State& state, BufferId id, HostCopy& copy, absl::Time now) {
  Buffer& buffer = *state.FindBuffer(id);
  const bool awaits_answer =
      state.joined() && !buffer.registered && buffer.refused.ok() && now < copy.kept()->begins_by;
  if (awaits_answer) return false;
  copy.memory = CopyMemory::kNone;
  const absl::Status refused = copy.kept()->failed;
  BeginFilling(state, buffer, copy, now);
  if (Operation* update = FindUpdate(buffer)) Conclude(*update, {.status = refused});
  Pump(state, buffer, now);
  return true;
}

// ---- the steps drawn in docs/protocol/session.md. Each returns true when the copy may take
// another step now; after false the copy may have been removed.

bool StepIdle(State& state, BufferId id, HostCopy& copy, absl::Time now) {
  if (copy.memory == CopyMemory::kRefused) return BeginWithoutMemory(state, id, copy, now);
  const bool needed = copy.staged() != nullptr && OriginalOf(state, id) != nullptr;
  if (needed || copy.memory != CopyMemory::kNone) return false;
  Remove(state, id, copy, now);
  return false;
}

bool StepFilling(State& state, BufferId id, HostCopy& copy, absl::Time now) {
  if (copy.kept() != nullptr) {
    PumpFilling(state, id, now);
    return copy.phase != CopyPhase::kFilling;
  }
  const Buffer& buffer = *state.FindBuffer(id);
  if (HasIdleMemory(buffer, copy)) {
    FreeMemory(state, id, copy);
  } else if (WantsMemory(buffer, copy)) {
    AskForMemory(state, id);
  }
  return false;
}

bool StepHeld(State& state, BufferId id, HostCopy& copy, absl::Time now) {
  if (copy.kept() != nullptr && ContinueWaiting(state, id, now)) return true;
  Buffer& buffer = *state.FindBuffer(id);
  // One that holds nothing any more (it was refused, its version rolled back) is of no use.
  const bool lost = buffer.contract.state() != BufferState::kPublished;
  if (lost && copy.staged() != nullptr) copy.staged()->lost = WhyLost(buffer, copy);
  if (!lost && !copy.release_wanted) return false;
  BeginRelease(state, buffer, copy, now);
  return true;
}

bool StepReleasing(State& state, BufferId id, HostCopy& copy) {
  const bool drains = state.FindBuffer(id)->contract.state() == BufferState::kDraining;
  // The driver's answer comes first: memory that is being made could not be freed.
  if (drains || copy.memory == CopyMemory::kAsked) return false;
  FreeMemory(state, id, copy);
  copy.phase = CopyPhase::kIdle;
  return true;
}

bool Step(State& state, BufferId id, HostCopy& copy, absl::Time now) {
  switch (copy.phase) {
    case CopyPhase::kIdle:
      return StepIdle(state, id, copy, now);
    case CopyPhase::kFilling:
      return StepFilling(state, id, copy, now);
    case CopyPhase::kHeld:
      return StepHeld(state, id, copy, now);
    case CopyPhase::kOver:
      BeginRelease(state, *state.FindBuffer(id), copy, now);
      return true;
    case CopyPhase::kReleasing:
      return StepReleasing(state, id, copy);
  }
  return false;
}

}  // namespace

std::string DescribeCopy(const HostCopy& copy) {
  return absl::StrCat(copy.kept() != nullptr ? "kept" : "staged", " copy ", PhaseName(copy.phase),
                      ", ", MemoryName(copy.memory));
}

void HandleCopyAllocation(State& state, BufferId copy, const absl::Status& status, absl::Time now) {
  HostCopy* found = state.FindHostCopy(copy);
  if (found == nullptr || found->memory != CopyMemory::kAsked) return;
  Buffer& buffer = *state.FindBuffer(copy);
  if (status.ok()) {
    found->memory = CopyMemory::kThere;
    if (found->kept() != nullptr) BeginFilling(state, buffer, *found, now);
  } else if (found->kept() != nullptr) {
    RefuseMemory(*found, status, now);
  } else {
    found->memory = CopyMemory::kNone;
    if (Operation* update = FindUpdate(buffer)) Conclude(*update, {.status = status});
  }
  Pump(state, buffer, now);
}

absl::Time NextCopyDeadline(const State& state) {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, copy] : state.host_copies) {
    if (copy.memory == CopyMemory::kRefused) next = std::min(next, copy.kept()->begins_by);
  }
  return next;
}

void PumpHostCopies(State& state, absl::Time now) {
  BeginWantedCopies(state, now);
  for (auto it = state.host_copies.begin(); it != state.host_copies.end();) {
    auto& [id, copy] = *it;
    ++it;  // before the steps, the last of which may remove it
    for (int steps = 0; steps < kMaxCopySteps && Step(state, id, copy, now); ++steps) {
    }
  }
}

}  // namespace th::session
