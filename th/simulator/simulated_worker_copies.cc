// Copies in host memory of a simulated worker: of retained versions, of those that seed its site,
// and of those that it stages.
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/simulator/cluster.h"
#include "th/simulator/simulated_worker.h"

namespace th {

CallId SimulatedWorker::Stage(VersionSelector selector, absl::Duration timeout) {
  const CallId call(++calls_);
  UpdateRequest request{.selector = std::move(selector), .timeout = timeout};
  request.when_seeding = when_seeding_;
  const SessionAnswer begun =
      session_.Handle(event::Stage{call, buffer_id_, std::move(request)}, now());
  if (begun.status.ok()) names_[begun.buffer] = absl::StrCat(kSimulatedBufferName, ".staged");
  return BeginCall(begun.status, call);
}

CallId SimulatedWorker::Apply(absl::Duration timeout) {
  const CallId call(++calls_);
  UpdateRequest request{.timeout = timeout};
  request.on_retention = on_retention_;
  return BeginCall(
      session_.Handle(event::Apply{call, buffer_id_, std::move(request)}, now()).status, call);
}

void SimulatedWorker::CancelUpdate() {
  session_.Handle(event::CancelUpdate{buffer_id_}, now());
  Settle();
}

void SimulatedWorker::DiscardStaged() {
  session_.Handle(event::DiscardStaged{buffer_id_}, now());
  Settle();
}

std::vector<BufferId> SimulatedWorker::BuffersThat(bool (Holding::*are)() const) const {
  std::vector<BufferId> buffers;
  for (const auto& [id, holding] : holdings_) {
    const bool beside = id != buffer_id_ && !holding.freed;
    if (beside && (holding.*are)()) buffers.push_back(id);
  }
  return buffers;
}

std::vector<BufferId> SimulatedWorker::copies() const { return BuffersThat(&Holding::IsOffload); }

std::vector<BufferId> SimulatedWorker::staged_copies() const {
  return BuffersThat(&Holding::IsStaged);
}

void SimulatedWorker::Do(const AllocateOffload& asked) {
  const uint64_t bytes = cluster_->LayoutOf(spec_.shard)->bytes();
  if (asked.staged && bytes > spec_.staging_limit_bytes) {
    const absl::Status refused = absl::ResourceExhaustedError("staging_limit_bytes is too small");
    session_.Handle(event::OffloadAllocated{asked.copy, refused}, now());
    return;
  }
  const bool counts = !asked.staged && spec_.copies_refused_every > 0;
  if (counts && ++copies_asked_ % spec_.copies_refused_every == 0) {
    const absl::Status refused = absl::ResourceExhaustedError("the host has no memory left");
    session_.Handle(event::OffloadAllocated{asked.copy, refused}, now());
    return;
  }
  Holding& made =
      holdings_.try_emplace(asked.copy, asked.name, spec_.shard, cluster_->spec().segment_count)
          .first->second;
  made.staged = asked.staged;
  names_[asked.copy] = asked.name;
  JudgeCopies();
  session_.Handle(event::OffloadAllocated{asked.copy, absl::OkStatus()}, now());
}

void SimulatedWorker::Do(const FreeOffload& freed) {
  const auto found = holdings_.find(freed.copy);
  if (found == holdings_.end()) return;
  const SimulatedFill* const fill = found->second.fill.get();
  cluster_->checker().Expect(fill == nullptr || fill->completed(),
                             "is told to free memory that a fill still writes", Name());
  if (!found->second.staged) {  // those stay registered
    cluster_->checker().Unregistered(this, found->second.name);
    names_.erase(freed.copy);
  }
  serving_.EndAllOf(freed.copy);
  FreeMemory(freed.copy);
}

// A copy that an arena of the rank's limit could not hold would be refused; the server is to ask
// for none.
void SimulatedWorker::JudgeCopies() {
  const uint64_t bytes = copies().size() * cluster_->LayoutOf(spec_.shard)->bytes();
  cluster_->checker().Expect(bytes <= spec_.offload_limit_bytes,
                             "is asked for more copies than it has memory for", Name());
}

// `told` is the server's result.
void SimulatedWorker::JudgeStaged(const OperationDone& finished,
                                  const OperationFinished& reported) {
  const auto here = [](UpdateOutcome outcome) {
    return outcome == UpdateOutcome::kMoved || outcome == UpdateOutcome::kAlreadyThere;
  };
  cluster_->checker().Expect(here(reported.outcome) == here(finished.outcome),
                             "tells who stages what the server has not said", Name());
  if (!here(finished.outcome)) return;
  // A version that the caller's buffer has already is not staged.
  const bool staged = finished.outcome == UpdateOutcome::kMoved;
  const SimulatedBuffer* const where = FindBuffer(staged ? finished.buffer : buffer_id_);
  if (where == nullptr) return cluster_->checker().Violated(Name() + " has staged nothing");
  cluster_->checker().Moved(Name(), finished.version, *where, state_joined());
}

}  // namespace th
