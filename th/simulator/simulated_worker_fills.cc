// Fills of a simulated worker: what its session asks of them and hears of them, and whose memory
// it is while they stop. Driven as //th/client does.
#include <algorithm>
#include <utility>
#include <variant>

#include "th/simulator/cluster.h"
#include "th/simulator/simulated_worker.h"

namespace th {

void SimulatedWorker::ForEachFill(absl::FunctionRef<void(SimulatedFill&)> visit) {
  for (auto& [id, holding] : holdings_) {
    if (holding.fill != nullptr) visit(*holding.fill);
  }
}

SimulatedFill* SimulatedWorker::FindFill(const OperationKey& operation) {
  const auto found = holdings_.find(operation.buffer);
  if (found == holdings_.end() || found->second.fill == nullptr) return nullptr;
  SimulatedFill* const fill = found->second.fill.get();
  return fill->operation() == operation ? fill : nullptr;
}

bool SimulatedWorker::AnyFillHasEvents() const {
  return std::any_of(holdings_.begin(), holdings_.end(), [](const auto& entry) {
    return entry.second.fill != nullptr && entry.second.fill->has_events();
  });
}

void SimulatedWorker::HandleFillOutput(BufferId buffer, const FillOutput& event) {
  if (std::holds_alternative<FillFirstWrite>(event)) {
    session_.Handle(event::FirstWrite{buffer}, now());
  } else if (auto* progressed = std::get_if<FillProgressed>(&event)) {
    session_.Handle(event::FillProgressed{buffer,
                                          {progressed->held, progressed->bytes_held,
                                           progressed->throughputs, progressed->transports}},
                    now());
  } else if (std::holds_alternative<FillReceived>(event)) {
    ReportWait(buffer, WaitsFor::kChecksums);
    session_.Handle(event::AllReceived{buffer}, now());
  } else if (auto* completed = std::get_if<FillCompleted>(&event)) {
    session_.Handle(event::FillCompleted{buffer, completed->root}, now());
  } else if (auto* failed = std::get_if<FillFailed>(&event)) {
    session_.Handle(event::FillFailed{buffer, failed->why}, now());
  } else if (auto* lost = std::get_if<FillSourceFailed>(&event)) {
    const SimulatedFill* fill = holdings_.at(buffer).fill.get();
    if (fill != nullptr && !fill->has_source()) ReportWait(buffer, WaitsFor::kSource);
    session_.Handle(event::SourceFailed{buffer, lost->assignment, lost->source, lost->failure,
                                        lost->detail, lost->endpoint},
                    now());
  } else if (auto* suspected = std::get_if<FillSourceSuspected>(&event)) {
    session_.Handle(
        event::SourceSuspected{buffer, suspected->assignment, suspected->source, suspected->detail},
        now());
  }
}

// Reports a wait of the caller's buffer, or of the copy into which it stages.
void SimulatedWorker::ReportWait(BufferId buffer, WaitsFor what) const {
  if (on_wait == nullptr) return;
  const auto found = holdings_.find(buffer);
  const bool staged = found != holdings_.end() && found->second.IsStaged();
  if (buffer == buffer_id_ || staged) on_wait(what);
}

void SimulatedWorker::Do(const StartFill& start) {
  EndFill(start.buffer);
  if (start.buffer == buffer_id_) published_falsely_ = false;
  Holding& holding = holdings_.at(start.buffer);
  holding.buffer.Lend();
  holding.held_before_fill = holding.buffer.held();
  holding.buffer.SetHeld(start.resume);
  holding.fill =
      std::make_unique<SimulatedFill>(this, &holding.buffer, start, holding.stream.get());
}

void SimulatedWorker::Do(const SetSources& set) {
  SimulatedFill* const fill = FindFill(set.operation);
  if (fill == nullptr) return;
  fill->SetSources(set);
  ReportWait(set.buffer, fill->has_source() ? WaitsFor::kBytes : WaitsFor::kSource);
}

void SimulatedWorker::Do(const SetRoot& set) {
  const auto found = holdings_.find(set.buffer);
  if (found == holdings_.end() || found->second.fill == nullptr) return;
  SimulatedFill& fill = *found->second.fill;
  if (fill.version().sequence == set.version) fill.SetRoot(set.root);
}

void SimulatedWorker::Do(const th::StopFill& stop) {
  const auto stopped = [this, buffer = stop.buffer] {
    session_.Handle(event::FillStopped{buffer}, now());
  };
  if (FindFill(stop.operation) == nullptr) return stopped();
  BeginStop(stop.buffer, stopped);
}

void SimulatedWorker::BeginStop(BufferId buffer, std::function<void()> then) {
  Holding& holding = holdings_.at(buffer);
  const OperationKey operation = holding.fill->operation();
  const absl::Duration lasting = cluster_->DrawStoppingTime();
  if (answers_stops_early_) {
    then();
  } else {
    holding.stopping = true;
    holding.when_stopped.insert(holding.when_stopped.begin(), std::move(then));
    if (lasting == absl::ZeroDuration()) return EndFill(buffer);
  }
  holding.fill->BeginStop();
  Post(lasting, [this, operation] {
    if (FindFill(operation) == nullptr) return;
    EndFill(operation.buffer);
    Settle();
  });
}

void SimulatedWorker::EndFill(BufferId buffer) {
  const auto found = holdings_.find(buffer);
  if (found == holdings_.end() || found->second.fill == nullptr) return;
  Holding& holding = found->second;
  holding.fill->Stop(/*report=*/true);
  if (!holding.fill->wrote()) holding.buffer.SetHeld(std::move(holding.held_before_fill));
  holding.fill.reset();
  holding.stopping = false;
  for (const auto& task : std::exchange(holding.when_stopped, {})) task();  // it may go with one
}

void SimulatedWorker::StopAllFills() {
  std::vector<BufferId> stopping;
  for (const auto& [id, holding] : holdings_) {
    if (holding.stopping) stopping.push_back(id);
  }
  for (const BufferId id : stopping) EndFill(id);
}

void SimulatedWorker::WhenQuiet(BufferId buffer, std::function<void()> task) {
  const auto found = holdings_.find(buffer);
  if (found == holdings_.end() || !found->second.stopping) return task();
  found->second.when_stopped.push_back(std::move(task));
}

bool SimulatedWorker::IsBeingFreed(BufferId buffer) const {
  const auto found = holdings_.find(buffer);
  return found != holdings_.end() && found->second.freed;
}

void SimulatedWorker::FreeMemory(BufferId buffer) {
  const auto found = holdings_.find(buffer);
  if (found == holdings_.end()) return;
  found->second.freed = true;
  if (answers_stops_early_) return;  // where bytes land is judged as long as it is there
  const SimulatedFill* const fill = found->second.fill.get();
  if (fill != nullptr && !fill->completed() && !found->second.stopping) BeginStop(buffer, [] {});
  WhenQuiet(buffer, [this, buffer] { holdings_.erase(buffer); });
}

// A fill that is complete has stopped by itself; any other the session has stopped before.
void SimulatedWorker::TakeBack(BufferId buffer) {
  const auto found = holdings_.find(buffer);
  if (found == holdings_.end()) return;
  found->second.buffer.TakeBack();
  const SimulatedFill* const fill = found->second.fill.get();
  if (fill != nullptr && fill->completed()) EndFill(buffer);
}

}  // namespace th
