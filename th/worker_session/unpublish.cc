#include "th/worker_session/unpublish.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "th/status/status_macros.h"
#include "th/worker_session/operation.h"

namespace th::session {
namespace {

bool IsLost(const Buffer& buffer) {
  return buffer.lost.has_value() && buffer.contract.state() != BufferState::kPublished;
}

absl::Status CanUnpublish(const State& state, const Buffer& buffer,
                          const UnpublishRequest& request) {
  TH_RETURN_IF_ERROR(CanBegin(state, buffer, request.timeout));
  if (FindUpdate(buffer) != nullptr) {
    return absl::FailedPreconditionError("an update of the buffer is in progress");
  }
  if (FindAskedUnpublish(buffer) != nullptr) {
    return absl::FailedPreconditionError("an unpublish of the buffer is in progress already");
  }
  return IsLost(buffer) ? absl::OkStatus() : buffer.contract.CanUnpublish();
}

// The contract is left alone where the publication is lost already: then this operation only keeps
// the ranks' numbers alike, and tells why.
void Drain(Buffer& buffer, Operation& operation, absl::Time now) {
  UnpublishOperation& unpublish = operation.unpublish();
  unpublish.phase = UnpublishPhase::kDraining;
  if (IsLost(buffer)) return;
  buffer.seal_by = now + unpublish.drain_timeout;
  // Can fail only where it has become lost or undefined meanwhile: then nobody reads it.
  (void)buffer.contract.Unpublish(now, unpublish.drain_timeout);
}

// While joined, only its own deadline counts: the link is not broken.
absl::Time ServerGivenUpAt(const State& state, const Operation& operation) {
  return std::min(state.link.broken_since + kServerAway, operation.local_deadline());
}

// Asked, and not answered: until when it waits for the server's leave to drain. Infinite where the
// end of its copy wakes it.
absl::Time AskingEndsAt(const State& state, const Operation& operation) {
  if (WaitsForCopy(operation)) {
    const bool asks = IsOffloadingOffline(operation) && state.joined();
    return asks ? operation.local_deadline() : absl::InfiniteFuture();
  }
  return ServerGivenUpAt(state, operation);
}

// True when a copy is made before it drains though no server has asked for one: nobody can say what
// is retained, and who else holds it.
bool MustCopyAlone(const State& state, const Buffer& buffer, const Operation& operation) {
  const UnpublishOperation& unpublish = operation.unpublish();
  const bool keeps = operation.start.keep_retained && !operation.orphaned &&
                     unpublish.phase != UnpublishPhase::kMayDrain;
  const bool failed = operation.verdict.has_value() && !operation.verdict->status.ok();
  const bool has_tried = unpublish.copy.tries > 0;
  if (!keeps || failed || has_tried || state.options.spot) return false;
  const bool holds_version = buffer.contract.state() == BufferState::kPublished &&
                             buffer.contract.version() != VersionSequence();
  return holds_version && HasRoomForCopy(state, buffer);
}

// Takes the steps up to the drain. True: it drains, or has. A verdict that leaves the buffer
// published ends it instead.
bool AdvanceToDrain(State& state, Buffer& buffer, Operation& operation, absl::Time now) {
  if (HasBegunToDrain(operation)) return true;
  if (IsOffloadingOffline(operation)) return false;
  const std::optional<Verdict>& verdict = operation.verdict;
  if (verdict.has_value() && verdict->must_offload) {
    End(state, buffer, operation, now);
    return false;
  }
  UnpublishOperation& unpublish = operation.unpublish();
  const bool answered = verdict.has_value() || unpublish.phase == UnpublishPhase::kMayDrain;
  if (!answered && now < AskingEndsAt(state, operation)) return false;
  if (MustCopyAlone(state, buffer, operation)) {
    unpublish.phase = UnpublishPhase::kCopyingAlone;
    unpublish.copy.wanted = buffer.version;
    return false;
  }
  Drain(buffer, operation, now);
  return true;
}

void NoteDrained(State& state, Buffer& buffer, Operation& operation, absl::Time now) {
  UnpublishOperation& unpublish = operation.unpublish();
  unpublish.phase = UnpublishPhase::kDrained;
  unpublish.took_away = buffer.version;
  unpublish.readers_cut = buffer.drain_cut;
  NoteRankDone(operation, now);
  ForgetVersion(buffer);
  if (operation.verdict.has_value() && operation.verdict->server_knows) {
    // The server has ended it before this rank drained, and takes it for a holder still.
    Reannounce(state, buffer, now);
  } else if (operation.orphaned) {
    Reannounce(state, buffer, now);  // it was announced as published when its group counted anew
  } else if (operation.start_sent) {
    SendRankDone(state, buffer, operation, now);
  }
}

// The server is away: what is known here has to do. The next one hears which version it was, for
// nobody else may know of it any more. A publication that it has not named by now is
// one that never was.
void ConcludeWithoutServer(Buffer& buffer, Operation& operation) {
  for (Operation& earlier : buffer.operations) {
    if (&earlier == &operation) break;
    Conclude(earlier, {.status = absl::UnavailableError(
                           "unpublished before the server, which is away, had named the version")});
  }
  Conclude(operation, {.status = absl::OkStatus(), .version = operation.unpublish().took_away});
}

// A lost publication is told by the unpublish that ends it, whatever the server says of that: it
// may wait in vain for the rank that is gone.
void ReportLost(Buffer& buffer, Operation& operation) {
  if (!buffer.lost.has_value()) return;
  operation.verdict->status = *std::exchange(buffer.lost, std::nullopt);
  operation.verdict->code = ErrorCode::kPublicationLost;
}

}  // namespace

absl::Status BeginUnpublish(State& state, Buffer& buffer, CallId call,
                            const UnpublishRequest& request, absl::Time now) {
  const absl::Status can = CanUnpublish(state, buffer, request);
  if (!can.ok()) return RefuseVerb(state, ErrorCode::kUnpublishRefused, can);
  StartOperation start;
  start.kind = OperationKind::kUnpublish;
  start.timeout = request.timeout;
  start.keep_retained = request.on_retention == OnRetention::kOffload;
  Operation& operation = Begin(buffer, call, std::move(start), now);
  UnpublishOperation& unpublish = operation.unpublish();
  unpublish.drain_timeout = std::min(request.drain_timeout, request.timeout);
  unpublish.copy.timeout = request.offload_timeout;
  if (!operation.start.keep_retained) Drain(buffer, operation, now);
  return absl::OkStatus();
}

void PumpUnpublish(State& state, Buffer& buffer, Operation& operation, absl::Time now) {
  if (operation.detached || !AdvanceToDrain(state, buffer, operation, now)) return;
  if (!HasDrained(operation) && buffer.contract.state() != BufferState::kDraining) {
    NoteDrained(state, buffer, operation, now);
  }
  if (!HasDrained(operation)) return;
  if (!operation.verdict.has_value() && now >= UnpublishWaitsUntil(state, operation)) {
    ConcludeWithoutServer(buffer, operation);
  }
  if (!operation.verdict.has_value()) return;
  ReportLost(buffer, operation);
  End(state, buffer, operation, now);
}

void NoteEndWhileCopying(Buffer& buffer, Operation& operation, Verdict answer) {
  if (answer.must_offload && answer.status.ok()) {
    operation.unpublish().phase = UnpublishPhase::kCopying;
  }
  RememberFinished(buffer, operation, answer);
  if (IsOffloadingOffline(operation)) Conclude(operation, std::move(answer));
}

absl::Time UnpublishWaitsUntil(const State& state, const Operation& operation) {
  const bool concluded = operation.verdict.has_value();
  if (!HasBegunToDrain(operation) && !concluded) return AskingEndsAt(state, operation);
  if (!HasDrained(operation) || concluded) return absl::InfiniteFuture();
  return ServerGivenUpAt(state, operation);
}

}  // namespace th::session
