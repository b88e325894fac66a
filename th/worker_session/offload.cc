#include "th/worker_session/offload.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/protocol/capability.h"
#include "th/protocol/copy_name.h"
#include "th/status/status_macros.h"
#include "th/topology/location.h"
#include "th/worker_session/buffers.h"
#include "th/worker_session/operation.h"
#include "th/worker_session/operations.h"
#include "th/worker_session/update.h"

namespace th::session {
namespace {

// The first open operation of any buffer whose copy is so. Null: none.
template <typename Predicate>
Operation* FindOpen(State& state, Predicate is_so) {
  for (auto& [id, buffer] : state.buffers) {
    for (Operation& operation : buffer.operations) {
      const CopyFirst* copy = FindCopyFirst(operation);
      const bool open = !operation.verdict.has_value() || IsOffloadingOffline(operation);
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
  const bool alone = IsOffloadingOffline(operation);
  FindCopyFirst(operation)->copy = BufferId();
  if (operation.kind() == OperationKind::kUnpublish) {
    operation.unpublish().phase = UnpublishPhase::kAsked;
  }
  return alone;
}

void FailOperation(State& state, Operation& operation, const absl::Status& why, absl::Time now) {
  // A version that cannot be kept without the server is given up: the ranks could not agree on
  // anything else.
  if (EndWaiting(operation)) return Pump(state, *state.FindBuffer(operation.key.buffer), now);
  const absl::Status status =
      FindCopyFirst(operation)->cancelled
          ? CancelledByCaller()
          : absl::Status(why.code(), absl::StrCat("the offload failed: ", why.message()));
  Conclude(operation, {.status = status, .server_knows = true, .must_offload = true});
  Pump(state, *state.FindBuffer(operation.key.buffer), now);
}

void GoOn(State& state, Operation& operation, absl::Time now) {
  Buffer& buffer = *state.FindBuffer(operation.key.buffer);
  if (!EndWaiting(operation)) AskAgain(buffer, operation, now);
  // The other ranks hear of it under the number that they ask with too.
  if (FindCopyFirst(operation)->cancelled) Conclude(operation, {.status = CancelledByCaller()});
  Pump(state, buffer, now);
}

// True when the server has promised the memory for a site copy of `original` to another one:
// before it heard of a copy that was made alone, or after it has released one that is still here.
bool IsPromisedTwice(const State& state, const Buffer& original) {
  bool any = false;
  for (const auto& [id, copy] : state.host_copies) {
    const KeptCopy* kept = copy.kept();
    if (kept == nullptr || copy.memory == CopyMemory::kRefused) continue;
    if (kept->made_alone) return true;
    any = true;
  }
  return any && !HasRoomForCopy(state, original);
}

// A copy of `version`, which the operation `number` of `original` is about; its memory is asked
// for. Its name is never used again.
absl::StatusOr<BufferId> AddKeptCopy(State& state, const Buffer& original, CopyFor purpose,
                                     const VersionInfo& version, OperationNumber number,
                                     absl::Duration timeout, absl::Time now) {
  const GroupGeneration generation = state.membership.group_generation;
  const bool for_site = purpose == CopyFor::kSite;
  const bool promised_twice = for_site && IsPromisedTwice(state, original);
  TH_ASSIGN_OR_RETURN(
      const BufferId copy,
      AddCopyBuffer(
          state, original, for_site ? BufferRole::kSiteCopy : BufferRole::kOffload,
          CopyName(original.name, purpose, version.sequence, generation, number),
          {.version = version, .part = KeptCopy{.timeout = timeout, .generation = generation}},
          now));
  if (promised_twice) {
    RefuseMemory(state.host_copies.at(copy),
                 absl::ResourceExhaustedError("a copy that was made before still takes the memory"),
                 now);
  } else {
    AskForMemory(state, copy);
  }
  return copy;
}

absl::StatusOr<BufferId> AddCopyFor(State& state, Operation& operation, const Buffer& buffer,
                                    const VersionInfo& version, absl::Time now) {
  CopyFirst& first = *FindCopyFirst(operation);
  if (++first.tries > kMaxOffloadsOfOperation) {
    return absl::AbortedError(absl::StrCat("whoever else held ", version.ToString(), " left it ",
                                           kMaxOffloadsOfOperation, " times"));
  }
  return AddKeptCopy(state, buffer, CopyFor::kRetention, version, operation.key.number,
                     first.timeout, now);
}

// The copy of `operation` begins: the server has ended it with must_offload, or it copies
// alone.
void BeginOffload(State& state, Operation& operation, absl::Time now) {
  Buffer& buffer = *state.FindBuffer(operation.key.buffer);
  CopyFirst& first = *FindCopyFirst(operation);
  const VersionInfo version = *std::exchange(first.wanted, std::nullopt);
  if (!IsOffloadingOffline(operation)) {
    RememberFinished(buffer, operation, {.version = version, .must_offload = true});
  }
  const absl::StatusOr<BufferId> copy = AddCopyFor(state, operation, buffer, version, now);
  if (!copy.ok()) return FailOperation(state, operation, copy.status(), now);
  first.copy = *copy;
  // Its copy's update ends first, if only by its own deadline.
  operation.timeout_at = now + first.timeout + 2 * kOperationGrace;
}

// Nobody waits for it. Where it cannot begin the other ranks' copy ends without it, in time.
void BeginSiteCopy(State& state, const SiteCopyWanted& wanted, absl::Time now) {
  const Buffer* original = state.FindBuffer(wanted.original);
  if (original == nullptr) return;
  (void)AddKeptCopy(state, *original, CopyFor::kSite, wanted.version, wanted.number, wanted.timeout,
                    now);
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

// An operation that offloads offline waits for this rank's copy only: the group's end of it has to
// come from a server.
void PumpAlone(State& state, BufferId copy, Operation& waiting, absl::Time now) {
  Buffer& buffer = *state.FindBuffer(copy);
  Operation* const update = FindUpdate(buffer);
  if (update == nullptr || update->verdict.has_value()) return;
  const Buffer& original = *state.FindBuffer(waiting.key.buffer);
  if (update->update().phase == UpdatePhase::kAsked) {
    state.host_copies.at(copy).kept()->made_alone = true;
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

absl::Status NobodyWaits() { return absl::AbortedError("nobody waits for this copy any more"); }

void ConcludeGivenUp(State& state, BufferId copy, absl::Time now) {
  Buffer& buffer = *state.FindBuffer(copy);
  Operation* const update = FindUpdate(buffer);
  if (update == nullptr) return;  // it has ended just now
  Conclude(*update, {.status = NobodyWaits()});
  Pump(state, buffer, now);
}

// True when the server that has asked for the copy is gone: nobody is there to end the group's
// update.
bool IsLeftAlone(const State& state, const Operation& waiting, absl::Time now) {
  return waiting.kind() == OperationKind::kUnpublish &&
         now >= state.link.broken_since + kServerAway;
}

}  // namespace

void HandleOffloadReleased(State& state, const OffloadReleased& message) {
  HostCopy* copy = state.FindHostCopy(message.buffer);
  if (copy != nullptr && copy->kept() != nullptr) copy->release_wanted = true;
}

void BeginWantedCopies(State& state, absl::Time now) {
  while (Operation* wanting = FindWanting(state)) BeginOffload(state, *wanting, now);
  for (const SiteCopyWanted& wanted : std::exchange(state.site_copies_wanted, {})) {
    BeginSiteCopy(state, wanted, now);
  }
}

void RefuseMemory(HostCopy& copy, absl::Status why, absl::Time now) {
  copy.memory = CopyMemory::kRefused;
  copy.kept()->failed = std::move(why);
  copy.kept()->begins_by = now + copy.kept()->timeout;
}

void BeginFilling(State& state, Buffer& buffer, HostCopy& copy, absl::Time now) {
  KeptCopy& kept = *copy.kept();
  const bool is_stale = kept.given_up || kept.generation != state.membership.group_generation;
  kept.failed =
      is_stale ? NobodyWaits()
               : BeginUpdate(state, buffer, CallId(),
                             {.selector = copy.version.sequence, .timeout = kept.timeout}, now);
  copy.phase = kept.failed.ok() ? CopyPhase::kFilling : CopyPhase::kOver;
}

void PumpFilling(State& state, BufferId copy, absl::Time now) {
  HostCopy& filling = state.host_copies.at(copy);
  if (std::exchange(filling.kept()->given_up, false)) ConcludeGivenUp(state, copy, now);
  Operation* const waiting = WaitingFor(state, copy);
  if (waiting == nullptr || filling.phase != CopyPhase::kFilling) return;
  if (IsLeftAlone(state, *waiting, now)) {
    waiting->unpublish().phase = UnpublishPhase::kCopyingAlone;
  }
  if (IsOffloadingOffline(*waiting)) PumpAlone(state, copy, *waiting, now);
}

bool ContinueWaiting(State& state, BufferId copy, absl::Time now) {
  Operation* const waiting = WaitingFor(state, copy);
  if (waiting != nullptr) GoOn(state, *waiting, now);
  return waiting != nullptr;
}

void FailWaiting(State& state, BufferId copy, const absl::Status& why, absl::Time now) {
  if (Operation* waiting = WaitingFor(state, copy)) FailOperation(state, *waiting, why, now);
}

}  // namespace th::session
