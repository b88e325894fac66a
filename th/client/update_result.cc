#include "th/client/update_result.h"

#include <algorithm>
#include <utility>

#include "th/status/status_macros.h"

namespace th {
namespace {

SourceShare ShareOf(const FillSourceReport& report) {
  SourceShare share;
  share.name = report.name.ToString();
  share.peer = report.peer;
  share.transport = report.transport;
  share.passed_over = DescribePassedOver(report.passed_over);
  share.bytes = report.bytes;
  share.distance = report.distance;
  share.active = report.active;
  share.failure = report.failed && report.failure.empty() ? "failed" : report.failure;
  return share;
}

}  // namespace

absl::StatusOr<UpdateResult> ComposeUpdateResult(const Call& call) {
  const OperationDone& done = call.done;
  TH_RETURN_IF_ERROR(done.status);
  UpdateResult result;
  result.outcome = done.outcome;
  result.reason = done.not_available;
  result.info = done.version;
  result.event = done.event;
  result.resolve = done.resolve;
  result.queue = done.queue;
  result.transfer = done.transfer;
  result.verify = done.verify;
  result.apply = done.apply;
  result.bytes_unchanged = call.fill.bytes_unchanged;
  result.reroutes = call.fill.reroutes;
  result.rerouted_bytes = call.fill.rerouted_bytes;
  result.reread_bytes = call.fill.reread_bytes;
  result.corrupt_segments = call.fill.corrupt_segments;
  result.packing_overhead_bytes = call.fill.packing_overhead_bytes;
  for (const FillSourceReport& report : call.fill.sources) {
    result.bytes_received += report.bytes;
    result.sources.push_back(ShareOf(report));
  }
  result.peak_extra_bytes = call.fill.peak_extra_bytes;
  return result;
}

absl::StatusOr<UpdateResult> ComposeStageResult(const Call& call, uint64_t staged_bytes) {
  TH_ASSIGN_OR_RETURN(UpdateResult result, ComposeUpdateResult(call));
  result.beside = true;
  if (!result.moved()) return result;
  result.staged_bytes = staged_bytes;
  result.peak_extra_bytes += staged_bytes;
  return result;
}

absl::StatusOr<UpdateResult> ComposeApplyResult(const Call& call, uint64_t staged_bytes) {
  TH_ASSIGN_OR_RETURN(UpdateResult result, ComposeUpdateResult(call));
  result.staged_bytes = staged_bytes;
  result.peak_extra_bytes += staged_bytes;
  return result;
}

UpdateResult StagedThenApplied(UpdateResult staged, const UpdateResult& applied) {
  staged.beside = false;  // the caller waited for both
  staged.outcome = applied.outcome;
  staged.info = applied.info;
  staged.resolve += applied.resolve;
  staged.queue += applied.queue;
  staged.transfer += applied.transfer;
  staged.verify += applied.verify;
  staged.apply += applied.apply;
  staged.peak_extra_bytes = std::max(staged.peak_extra_bytes, applied.peak_extra_bytes);
  return staged;
}

}  // namespace th
