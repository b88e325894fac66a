#include "th/registry_state/kept_results.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/protocol/answer.h"
#include "th/protocol/messages.h"
#include "th/registry_state/floor.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

// One copy of the attributes of a version, however many results name it.
std::shared_ptr<const Attributes> ShareAttributes(Model& model, VersionInfo& info) {
  Attributes attributes = std::exchange(info.attributes, {});
  Version* version = FindVersion(model, info.sequence);
  const bool known = version != nullptr && version->info.attributes == attributes;
  std::shared_ptr<const Attributes> shared = known ? version->kept_attributes.lock() : nullptr;
  if (shared != nullptr && *shared == attributes) return shared;
  shared = std::make_shared<const Attributes>(std::move(attributes));
  if (known) version->kept_attributes = shared;
  return shared;
}

VersionInfo VersionOf(const KeptResult& kept) {
  VersionInfo version = kept.finished.version;
  version.attributes = *kept.attributes;
  return version;
}

// True when the result tells that its rank works with weights of the present lineage, so that what
// it publishes next follows from them. A copy beside the buffer, or a publish, tells nothing of
// that.
bool ShowsPresentLineage(const Buffer& buffer, const FinishedOperation& result) {
  const bool moved = result.status.ok() && result.kind == OperationKind::kUpdate &&
                     !result.must_offload && result.outcome != UpdateOutcome::kNotAvailable;
  const bool primary =
      TH_MUTATE(kTrainOnCopies, buffer.replica->role == BufferRole::kPrimary, true);
  const bool holds = buffer.content.has_value() && buffer.content->complete &&
                     !buffer.content->refused && buffer.content->version == result.version.sequence;
  const DurableModel& durable = buffer.replica->group->model->durable;
  return moved && primary && holds &&
         TH_MUTATE(kTrainOnOldVersions, IsOfPresentLineage(durable, result.version), true);
}

}  // namespace

void SendFinished(Turn& turn, const Buffer& buffer, const FinishedOperation& result,
                  EventId event) {
  Worker& worker = *buffer.worker;
  if (ShowsPresentLineage(buffer, result)) {
    worker.lineage = std::max(worker.lineage, worker.group->model->durable.lineage);
  }
  Send(turn, worker,
       OperationFinished{.key = {buffer.address.buffer, result.number},
                         .kind = result.kind,
                         .status = result.status,
                         .outcome = result.outcome,
                         .not_available = result.not_available,
                         .version = result.version,
                         .lineage = worker.lineage,
                         .must_offload = result.must_offload,
                         .site_copy = result.site_copy,
                         .event = event});
}

void SendResult(Turn& turn, const Buffer& buffer, const KeptResult& kept) {
  FinishedOperation result = kept.finished;
  result.version = VersionOf(kept);
  SendFinished(turn, buffer, result, kept.event);
}

void RememberResult(Replica& replica, FinishedOperation result, EventId event) {
  KeptResult& kept = replica.results[result.number];
  kept.attributes = ShareAttributes(*replica.group->model, result.version);
  kept.finished = std::move(result);
  kept.event = event;
  while (replica.results.contains(replica.finished.Next())) {
    replica.finished = replica.finished.Next();
  }
  while (replica.results.size() > kMaxResultsKept) replica.results.erase(replica.results.begin());
}

absl::Status CheckAnswer(const Buffer& buffer, const FinishedOperation& result,
                         const StartOperation& request) {
  // A group that must offload offloads what it holds, not what it asked for.
  const bool names =
      result.status.ok() && !result.must_offload && result.outcome != UpdateOutcome::kNotAvailable;
  if (!names) return absl::OkStatus();
  const std::string why =
      TH_MUTATE(kHandOutAnyResult, WhyNoAnswer(request, result.version), std::string());
  if (!why.empty()) {
    return absl::AbortedError(absl::StrCat(
        "the result of operation ", result.number.value, " of buffer ", buffer.name, " ", why,
        " by ", NameOf(buffer).ToString(), "; ", kNothingDoneForRank, ", ask again"));
  }
  const bool update = request.kind == OperationKind::kUpdate;
  if (!update || !IsBehindFloor(*buffer.replica, result.version.sequence, request.floor)) {
    return absl::OkStatus();
  }
  return OlderThanAskedFor(buffer, result.version.sequence, request);
}

absl::Status EndedAsAnotherKind(const Buffer& buffer, const FinishedOperation& result,
                                OperationKind asked) {
  return absl::InvalidArgumentError(
      absl::StrCat("operation ", result.number.value, " of buffer ", buffer.name, " ended as ",
                   OperationKindName(result.kind), ", and ", NameOf(buffer).ToString(),
                   " calls it ", OperationKindName(asked),
                   "; all ranks of a group must call the same operations in the same ", "order"));
}

absl::Status OlderThanAskedFor(const Buffer& buffer, VersionSequence version,
                               const StartOperation& request) {
  return absl::AbortedError(
      absl::StrCat(NameOf(buffer).ToString(), " asks for nothing older than #",
                   request.floor.ToString(), ", and operation ", request.key.number.value,
                   " of its group moves to #", version.ToString(), " already; ask again"));
}

}  // namespace th::registry
