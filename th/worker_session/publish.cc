#include "th/worker_session/publish.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/protocol/answer.h"
#include "th/status/status_macros.h"
#include "th/worker_session/operation.h"
#include "th/worker_session/update.h"
#include "tools/mutation/mutation.h"

namespace th::session {
namespace {

absl::Status CanPublish(const State& state, const Buffer& buffer, const PublishRequest& request) {
  TH_RETURN_IF_ERROR(CanBegin(state, buffer, request.timeout));
  if (buffer.role == BufferRole::kStreaming) {
    return absl::FailedPreconditionError("the buffer of a streaming reader keeps nothing");
  }
  if (request.label.empty()) return absl::InvalidArgumentError("a version needs a label");
  TH_RETURN_IF_ERROR(ValidateAttributes(request.attributes));
  if (FindUpdate(buffer) != nullptr) {
    return absl::FailedPreconditionError("an update of the buffer is in progress");
  }
  if (FindAskedUnpublish(buffer) != nullptr) {
    return absl::FailedPreconditionError("an unpublish of the buffer is in progress");
  }
  return absl::OkStatus();
}

// True when the buffer still is this very publication, without a name.
bool Unnamed(const Buffer& buffer, const Operation& operation) {
  return buffer.contract.state() == BufferState::kPublished &&
         buffer.contract.version() == VersionSequence() &&
         buffer.contract.generation() == operation.publish().published_under;
}

void Name(State& state, Buffer& buffer, const VersionInfo& version) {
  // Cannot fail: Unnamed() holds.
  (void)buffer.contract.SetPublishedVersion(version.sequence);
  buffer.version = version;
  buffer.group_committed = true;
  state.ReportServing(buffer);
  state.Emit(StartSealing{buffer.id, version.sequence, buffer.contract.generation()});
}

void TakeBack(Buffer& buffer, const absl::Status& why, absl::Time now) {
  // Nobody was admitted to what has no name: the drain is over at once.
  (void)buffer.contract.Unpublish(now, absl::ZeroDuration());
  buffer.contract.Advance(now);
  buffer.lost = why;
}

// Why the server's word that it is published cannot be about this publish; OK: it is.
absl::Status CheckAnswer(const Operation& operation, const VersionInfo& answer) {
  if (answer.sequence == VersionSequence()) {
    return absl::InternalError("the server gave the version no sequence");
  }
  const std::string why =
      TH_MUTATE(kTakeAnyAnswer, WhyNoAnswer(operation.start, answer), std::string());
  if (why.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the server's answer ", why,
                                          "; nothing was published by this call, call again"));
}

}  // namespace

absl::Status BeginPublish(State& state, Buffer& buffer, CallId call, PublishRequest request,
                          absl::Time now) {
  const absl::Status can = CanPublish(state, buffer, request);
  if (!can.ok()) return RefuseVerb(state, ErrorCode::kPublishRefused, can);
  const absl::Status frozen = buffer.contract.Publish(VersionSequence());
  if (!frozen.ok()) return RefuseVerb(state, ErrorCode::kPublishRefused, frozen);
  buffer.version =
      VersionInfo{VersionSequence(), request.label, state.membership.lineage, request.attributes};
  buffer.publisher = true;
  buffer.group_committed = false;
  buffer.root.reset();
  buffer.read_since_publish = false;
  buffer.held.Clear();
  buffer.lost.reset();
  StartOperation start;
  start.kind = OperationKind::kPublish;
  start.timeout = request.timeout;
  start.generation = buffer.contract.generation();
  start.label = std::move(request.label);
  start.attributes = std::move(request.attributes);
  start.derived_from = request.derived_from;
  start.snapshot_bytes = request.snapshot_bytes;
  Operation& operation = Begin(buffer, call, std::move(start), now);
  operation.publish().published_under = buffer.contract.generation();
  return absl::OkStatus();
}

Verdict JudgeFinishedPublish(const Operation& operation, Verdict heard) {
  if (heard.status.ok()) heard.status = CheckAnswer(operation, heard.version);
  return heard;
}

void PumpPublish(State& state, Buffer& buffer, Operation& operation, absl::Time now) {
  if (!operation.verdict.has_value() || operation.detached) return;
  Verdict& verdict = *operation.verdict;
  if (!verdict.status.ok()) SendRankFailed(state, buffer, operation, now);
  if (Unnamed(buffer, operation)) {
    if (verdict.status.ok()) {
      Name(state, buffer, verdict.version);
      // The join announced nothing, and this server may have the result from other ranks alone.
      const bool unannounced =
          TH_MUTATE(kNameWithoutAnnouncing, operation.publish().outlived_server, false);
      if (unannounced) Reannounce(state, buffer, now);
    } else {
      TakeBack(buffer, verdict.status, now);
    }
  }
  End(state, buffer, operation, now);
}

void SealPublication(State& state, Buffer& buffer, VersionSequence version,
                     BufferGeneration generation, const Digest& root, absl::Time now) {
  const MutabilityContract& contract = buffer.contract;
  const bool frozen =
      contract.state() == BufferState::kPublished || contract.state() == BufferState::kDraining;
  const bool same = contract.version() == version && contract.generation() == generation;
  if (!frozen || !same || !buffer.publisher) return;
  buffer.root = root;
  for (auto& [id, copy] : state.buffers) {  // a copy that is made without a server
    if (IsHostCopy(copy.role) && copy.layout == buffer.layout)
      LearnRoot(state, copy, version, root);
  }
  SendOrAnnounce(state, buffer, ShardSealed{buffer.id, version, root}, now);
}

void LosePublication(State& state, Buffer& buffer, VersionSequence version, const absl::Status& why,
                     absl::Time now) {
  if (buffer.contract.version() != version ||
      !buffer.contract.Unpublish(now, state.limits.drain_timeout).ok()) {
    return;
  }
  buffer.seal_by = now;  // nobody needs the sums of what is taken back
  buffer.lost = why.ok() ? absl::AbortedError("the server took the version back") : why;
  state.Emit(PublicationLost{buffer.id, version, *buffer.lost});
}

}  // namespace th::session
