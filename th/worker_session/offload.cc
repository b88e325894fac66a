#include "th/worker_session/offload.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "th/protocol/capability.h"
#include "th/topology/location.h"
#include "th/weights/status_macros.h"
#include "th/worker_session/buffers.h"
#include "th/worker_session/operation.h"
#include "th/worker_session/operations.h"
#include "th/worker_session/update.h"
#include "tools/mutation/mutation.h"

namespace th::session {
namespace {

// The first open operation of any buffer whose copy is so. Null: none.
template <typename Predicate>
Operation* FindOpen(State& state, Predicate is_so) {
  for (auto& [id, buffer] : state.buffers) {
    for (Operation& operation : buffer.operations) {
      const CopyFirst* copy = FindCopyFirst(operation);
      const bool open = !operation.verdict.has_value() || CopiesAlone(operation);
      if (copy != nullptr && open && is_so(*copy)) return &operation;
    }
  }
  return nullptr;
}

Operation* FindWanting(State& state) {
  return FindOpen(state, [](const CopyFirst& first) { return first.wanted.has_value(); });
}

Operation* WaitingFor(State& state, BufferId copy) {
  return FindOpen(state, [copy](const CopyFirst& first) { return first.copy == copy; });
}

// It waits for no copy any more. Whether it had copied alone.
bool EndWaiting(Operation& operation) {
  const bool alone = CopiesAlone(operation);
  FindCopyFirst(operation)->copy = BufferId();
  if (operation.kind() == OperationKind::kUnpublish) {
    operation.unpublish().phase = UnpublishPhase::kAsked;
  }
  return alone;
}

void FailWaiting(State& state, Operation& operation, const absl::Status& why, absl::Time now) {
  // What cannot be kept without the server is given up: the ranks could not agree on anything else.
  if (EndWaiting(operation)) return Pump(state, *state.FindBuffer(operation.key.buffer), now);
  Conclude(operation,
           {.status = absl::Status(why.code(), absl::StrCat("the offload failed: ", why.message())),
            .server_knows = true,
            .offload_first = true});
  Pump(state, *state.FindBuffer(operation.key.buffer), now);
}

void GoOn(State& state, Operation& operation, absl::Time now) {
  Buffer& buffer = *state.FindBuffer(operation.key.buffer);
  if (!EndWaiting(operation)) AskAgain(buffer, operation, now);
  Pump(state, buffer, now);
}

void Free(State& state, BufferId copy, absl::Time now) {
  (void)RemoveBuffer(state, copy, now);  // cannot fail: it is there
  TH_MUTATE(kKeepReleasedCopies, state.Emit(FreeOffload{copy}), static_cast<void>(0));
}

absl::StatusOr<BufferId> AddCopyFor(State& state, Operation& operation, const Buffer& buffer,
                                    const VersionInfo& version, absl::Time now) {
  CopyFirst& first = *FindCopyFirst(operation);
  if (++first.tries > kMaxOffloadsOfOperation) {
    return absl::AbortedError(absl::StrCat("whoever else held ", version.ToString(), " left it ",
                                           kMaxOffloadsOfOperation, " times"));
  }
  TH_ASSIGN_OR_RETURN(const BufferId copy,
                      AddOffloadBuffer(state, buffer, CopyFor::kRetention, version.sequence,
                                       operation.key.number, now));
  state.offloads[copy] = {.version = version,
                          .timeout = first.timeout,
                          .generation = state.membership.group_generation};
  return copy;
}

// The copy of `operation` begins: the server has ended it with offload_first, or it copies
// alone.
void BeginOffload(State& state, Operation& operation, absl::Time now) {
  Buffer& buffer = *state.FindBuffer(operation.key.buffer);
  CopyFirst& first = *FindCopyFirst(operation);
  const VersionInfo version = *std::exchange(first.wanted, std::nullopt);
  if (!CopiesAlone(operation)) {
    RememberFinished(buffer, operation, {.version = version, .offload_first = true});
  }
  const absl::StatusOr<BufferId> copy = AddCopyFor(state, operation, buffer, version, now);
  if (!copy.ok()) return FailWaiting(state, operation, copy.status(), now);
  first.copy = *copy;
  // Its copy's update ends first, if only by its own deadline.
  operation.timeout_at = now + first.timeout + 2 * kOperationGrace;
}

// Nobody waits for it. Where it cannot begin the other ranks' copy ends without it, in time.
void BeginSeed(State& state, const SeedWanted& wanted, absl::Time now) {
  const Buffer* original = state.FindBuffer(wanted.original);
  if (original == nullptr) return;
  const absl::StatusOr<BufferId> copy = AddOffloadBuffer(
      state, *original, CopyFor::kSite, wanted.version.sequence, wanted.number, now);
  if (!copy.ok()) return;
  state.offloads[*copy] = {.version = wanted.version,
                           .timeout = wanted.timeout,
                           .generation = state.membership.group_generation};
}

// As the server would have it, which hears of this update when it is back: the group's copies are
// one replica then.
void FillAlone(State& state, Buffer& copy, Operation& update, const Buffer& original,
               absl::Time now) {
  ResolveUpdate(state, copy, update,
                {.key = update.key,
                 .version = original.version,
                 .root = original.root,
                 .receipt = ReceiptOf(original)},
                now);
  Pump(state, copy, now);
}

void PullFromOriginal(State& state, Buffer& copy, Operation& update, const Buffer& original,
                      absl::Time now) {
  const Membership& membership = state.membership;
  const BufferAddress source{membership.worker, original.id};
  const CapabilityClaims claims{.reader = membership.worker,
                                .source = source,
                                .version = original.version.sequence,
                                .epoch = membership.epoch};
  PullFrom(state, copy, update,
           {.key = update.key,
            .version = original.version.sequence,
            .sources = {{.buffer = source,
                         .name = state.options.name,
                         .endpoints = state.options.endpoints,
                         .generation = original.contract.generation(),
                         .distance = Distance::kSameHost,
                         .publisher = original.publisher,
                         .capability = MintCapability(membership.key, claims)}}},
           now);
}

// What copies alone waits for this rank's copy only: the group's end of it has to come from a
// server.
void PumpAlone(State& state, BufferId copy, Operation& waiting, absl::Time now) {
  Buffer& buffer = *state.FindBuffer(copy);
  Operation* const update = FindUpdate(buffer);
  if (update == nullptr || update->verdict.has_value()) return;
  const Buffer& original = *state.FindBuffer(waiting.key.buffer);
  if (update->update().phase == UpdatePhase::kAsked) {
    FillAlone(state, buffer, *update, original, now);
  }
  // Also where a server has been back and knew of no source: to it this rank holds nothing any more
  // once another has told an end.
  const bool has_source = !update->update().sources.empty();
  if (update->update().phase == UpdatePhase::kFilling && !has_source) {
    PullFromOriginal(state, buffer, *update, original, now);
  } else if (update->update().phase == UpdatePhase::kShardDone) {
    // Ends when a server is back and has heard of it, not by its own time.
    update->timeout_at = now + kMaxOperationTimeout;
    // A server that is back may still want the whole group's copies first.
    const bool asks = state.joined() && !waiting.verdict.has_value();
    if (asks && now < waiting.local_deadline()) return;
    Reannounce(state, buffer, now);
    GoOn(state, waiting, now);
  }
}

void EndFilling(State& state, BufferId copy, const absl::Status& filled, absl::Time now) {
  state.offloads.at(copy).phase = OffloadPhase::kHeld;
  Operation* waiting = WaitingFor(state, copy);
  if (!filled.ok()) Free(state, copy, now);
  if (waiting == nullptr) return;
  if (filled.ok()) {
    GoOn(state, *waiting, now);
  } else {
    FailWaiting(state, *waiting, filled, now);
  }
}

void BeginRelease(State& state, BufferId copy, absl::Time now) {
  state.offloads.at(copy).phase = OffloadPhase::kReleasing;
  Buffer& buffer = *state.FindBuffer(copy);
  // Of one that is not published there is nothing to drain.
  (void)buffer.contract.Unpublish(now, state.limits.drain_timeout);
  Pump(state, buffer, now);
}

void ConcludeGivenUp(State& state, BufferId copy, absl::Time now) {
  Buffer& buffer = *state.FindBuffer(copy);
  Operation* const update = FindUpdate(buffer);
  if (update == nullptr) return;  // it has ended just now
  Conclude(*update, {.status = absl::AbortedError("nobody waits for this copy any more")});
  Pump(state, buffer, now);
}

// Whether the server that has asked for the copy is gone: nobody is there to end the group's
// update.
bool IsLeftAlone(const State& state, const Operation& waiting, absl::Time now) {
  return waiting.kind() == OperationKind::kUnpublish &&
         now >= state.link.broken_since + kServerAway;
}

void PumpOffload(State& state, BufferId copy, absl::Time now) {
  Offload& offload = state.offloads.at(copy);
  if (offload.phase == OffloadPhase::kFilling && std::exchange(offload.given_up, false)) {
    ConcludeGivenUp(state, copy, now);
  }
  Operation* const waiting = WaitingFor(state, copy);
  if (offload.phase == OffloadPhase::kFilling && waiting != nullptr) {
    if (IsLeftAlone(state, *waiting, now)) {
      waiting->unpublish().phase = UnpublishPhase::kCopyingAlone;
    }
    if (CopiesAlone(*waiting)) PumpAlone(state, copy, *waiting, now);
  }
  if (offload.phase == OffloadPhase::kFilling && offload.filled.has_value()) {
    EndFilling(state, copy, *std::exchange(offload.filled, std::nullopt), now);
    if (!state.offloads.contains(copy)) return;
  }
  // One that holds nothing any more (it was refused, its version rolled back) is of no use.
  const BufferState contract = state.FindBuffer(copy)->contract.state();
  const bool useless = offload.release_wanted || contract != BufferState::kPublished;
  if (offload.phase == OffloadPhase::kHeld && useless) BeginRelease(state, copy, now);
  const bool drained = state.FindBuffer(copy)->contract.state() != BufferState::kDraining;
  if (offload.phase == OffloadPhase::kReleasing && drained) Free(state, copy, now);
}

}  // namespace

void NoteOffloadAllocated(State& state, BufferId copy, const absl::Status& status, absl::Time now) {
  const auto found = state.offloads.find(copy);
  if (found == state.offloads.end() || found->second.phase != OffloadPhase::kAllocating) return;
  Offload& offload = found->second;
  Buffer& buffer = *state.FindBuffer(copy);
  offload.phase = OffloadPhase::kFilling;
  if (offload.given_up || offload.generation != state.membership.group_generation) {
    offload.filled = absl::AbortedError("nobody waits for this copy any more");
    return;
  }
  const absl::Status begun =
      BeginUpdate(state, buffer, CallId(),
                  {.selector = offload.version.sequence, .timeout = offload.timeout}, now);
  if (!begun.ok()) {
    offload.filled = begun;
  } else if (!status.ok()) {
    Conclude(*FindUpdate(buffer), {.status = status});  // the other ranks hear of it
  }
  Pump(state, buffer, now);
}

void HandleOffloadReleased(State& state, const OffloadReleased& message) {
  const auto found = state.offloads.find(message.buffer);
  if (found != state.offloads.end()) found->second.release_wanted = true;
}

void PumpOffloads(State& state, absl::Time now) {
  while (Operation* wanting = FindWanting(state)) BeginOffload(state, *wanting, now);
  for (const SeedWanted& wanted : std::exchange(state.seeds_wanted, {})) {
    BeginSeed(state, wanted, now);
  }
  for (auto it = state.offloads.begin(); it != state.offloads.end();) {
    const BufferId copy = it->first;
    ++it;  // before the step, which may remove it
    PumpOffload(state, copy, now);
  }
}

}  // namespace th::session
