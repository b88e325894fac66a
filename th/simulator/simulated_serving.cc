#include "th/simulator/simulated_serving.h"

#include <algorithm>
#include <utility>

#include "th/simulator/cluster.h"
#include "th/simulator/simulated_worker.h"

namespace th {

SimulatedServing::Pull* SimulatedServing::Find(TransferId transfer) {
  const auto found = pulls_.find(transfer);
  return found == pulls_.end() ? nullptr : &found->second;
}

// ---- admission

void SimulatedServing::Open(SimulatedWorker* reader, TransferId transfer,
                            const std::string& address, const Capability& capability,
                            BufferGeneration generation) {
  Pull& pull = pulls_[transfer];
  pull.reader = reader;
  pull.address = address;
  pull.capability = capability;
  if (broken_.contains(address)) {
    TellClosed(transfer, pull, "connection refused");
    pulls_.erase(transfer);
    return;
  }
  worker_->mutable_session().HandleAdmission(transfer, capability.claims.source.buffer, capability,
                                             generation, worker_->now());
}

void SimulatedServing::Decide(const AdmissionDecided& decided) {
  Pull* pull = Find(decided.transfer);
  if (pull == nullptr) return;
  Cluster& cluster = worker_->cluster();
  if (decided.status.ok()) {
    cluster.judge().Expect(pull->capability.claims.epoch == worker_->session().epoch(),
                           "admitted a reader of another epoch", worker_->Name());
    const BufferState state = worker_->session().buffer_state(pull->buffer());
    cluster.judge().Expect(state != BufferState::kDraining && state != BufferState::kWritable,
                           "admitted a reader of a buffer that serves nobody", worker_->Name());
    cluster.judge().Expect(!worker_->KeepsNothing(pull->buffer()),
                           "admitted a reader of a receive that keeps nothing", worker_->Name());
    pull->admitted = true;
    pull->flow = cluster.OpenFlow(worker_, *pull->reader, decided.transfer);
  }
  cluster.Carry(*worker_, pull->reader, &pull->wire,
                [reader = pull->reader, transfer = decided.transfer, status = decided.status] {
                  reader->HandlePullAdmitted(transfer, status);
                });
  if (!decided.status.ok()) pulls_.erase(decided.transfer);
}

// ---- segments

void SimulatedServing::Ask(TransferId transfer, SegmentRange range) {
  Pull* pull = Find(transfer);
  if (pull == nullptr || pull->finishing) return;
  for (SegmentIndex segment = range.begin; segment < range.end; segment = segment.Next()) {
    pull->asked.push_back(segment);
  }
  Pump(transfer);
}

void SimulatedServing::AskSums(TransferId transfer) {
  Pull* pull = Find(transfer);
  if (pull == nullptr || pull->finishing) return;
  const SimulatedBuffer& buffer = *worker_->FindBuffer(pull->buffer());
  pull->sums_asked = {SegmentIndex(0), SegmentIndex(buffer.segment_count())};
  Pump(transfer);
}

// As far as they are known here, beside the segments: they weigh nothing.
void SimulatedServing::TellSums(TransferId transfer, Pull& pull) {
  const SimulatedBuffer& buffer = *worker_->FindBuffer(pull.buffer());
  const SegmentIndex first = pull.sums_asked.begin;
  std::vector<SegmentSum> sums;
  for (SegmentIndex& next = pull.sums_asked.begin; next < pull.sums_asked.end; next = next.Next()) {
    const std::optional<SegmentSum> sum = buffer.SumOf(next);
    if (!sum.has_value()) break;
    sums.push_back(IsForged(next) ? *sum ^ 2 : *sum);
  }
  if (sums.empty()) return;
  worker_->cluster().Carry(*worker_, pull.reader, &pull.wire,
                           [reader = pull.reader, transfer, first, sums = std::move(sums)] {
                             reader->HandleSums(transfer, first, sums);
                           });
}

void SimulatedServing::Pump(TransferId transfer) {
  Pull* pull = Find(transfer);
  if (pull == nullptr || !pull->admitted) return;
  if (pull->asked.empty() && pull->sums_asked.empty()) return;
  StartBeating(transfer, *pull);
  if (pull->reader->stopped()) return;  // takes nothing; HandlePullContinues comes
  TellSums(transfer, *pull);
  if (pull->asked.empty() || pull->sending.has_value()) return;
  const SimulatedBuffer& buffer = *worker_->FindBuffer(pull->buffer());
  const auto next = std::find_if(pull->asked.begin(), pull->asked.end(), [&](SegmentIndex segment) {
    return buffer.held().Contains(segment);
  });
  if (next == pull->asked.end()) return;  // PumpAll when one has arrived
  const SegmentIndex segment = *next;
  pull->asked.erase(next);
  const VersionSequence here = worker_->session().buffer_version(pull->buffer()).sequence;
  worker_->cluster().judge().Expect(pull->capability.claims.version == here,
                                    "serves another version than the reader was admitted for",
                                    worker_->Name());
  pull->sending = Sending{segment, buffer.value(segment)};
  Cluster& cluster = worker_->cluster();
  cluster.network().Send(pull->flow, cluster.wire_bytes_per_segment(), worker_->now());
}

void SimulatedServing::PumpAll() {
  std::vector<TransferId> waiting;
  for (const auto& [transfer, pull] : pulls_) {
    const bool waits = !pull.asked.empty() && !pull.sending.has_value();
    if (waits || !pull.sums_asked.empty()) waiting.push_back(transfer);
  }
  for (TransferId transfer : waiting) Pump(transfer);
}

void SimulatedServing::HandleChunkDelivered(TransferId transfer) {
  Pull* pull = Find(transfer);
  if (pull == nullptr || !pull->sending.has_value()) return;
  const Sending sent = *std::exchange(pull->sending, std::nullopt);
  ++segments_sent_;
  const SimulatedBuffer& buffer = *worker_->FindBuffer(pull->buffer());
  // The contract: nobody writes a segment while it is read.
  // A forged one that was received here may be written again: the publisher's sums refute it.
  Judge& judge = worker_->cluster().judge();
  judge.Expect(buffer.value(sent.segment) == sent.value || judge.WasForged(sent.value),
               "wrote a segment that a reader was reading", worker_->Name());
  worker_->cluster().Carry(*worker_, pull->reader, &pull->wire,
                           [reader = pull->reader, transfer, segment = WhatIsSent(*pull, sent)] {
                             reader->HandleSegment(transfer, segment);
                           });
  // What the process does then, if it runs. Not posted: the flow keeps its share of the links.
  const auto then = [this, transfer] {
    if (Find(transfer) == nullptr) return;
    worker_->mutable_session().HandleReaderBytes(transfer, worker_->now());
    if (Find(transfer)->finishing) {
      Cut({transfer});
    } else {
      Pump(transfer);
    }
    worker_->Settle();
  };
  worker_->RunOrHold(then);
}

SentSegment SimulatedServing::WhatIsSent(const Pull& pull, const Sending& sent) {
  if (IsForged(sent.segment)) {
    const SegmentSum wrong = sent.value ^ 2;
    worker_->cluster().judge().Forged(wrong);
    return {sent.segment, wrong, /*claimed_sum=*/wrong};
  }
  const SegmentSum bytes = flips_.erase(sent.segment) > 0 ? sent.value ^ 1 : sent.value;
  return {sent.segment, bytes, /*claimed_sum=*/sent.value};
}

bool SimulatedServing::IsForged(SegmentIndex segment) const {
  const auto forged = forged_until_.find(segment);
  return forged != forged_until_.end() && worker_->now() < forged->second;
}

// ---- keep-alives

void SimulatedServing::StartBeating(TransferId transfer, Pull& pull) {
  if (std::exchange(pull.beating, true)) return;
  worker_->Post(kSimulatedKeepAlive, [this, transfer] { Beat(transfer); });
}

// Bytes that move tell the contract that the reader takes them, and the reader that its source is
// there; a source that waits for its own upstream says so.
void SimulatedServing::Beat(TransferId transfer) {
  Pull* pull = Find(transfer);
  if (pull == nullptr) return;
  pull->beating = false;
  if (pull->asked.empty() && pull->sums_asked.empty() && !pull->sending.has_value()) return;
  const bool moves = pull->sending.has_value() &&
                     worker_->cluster().network().FlowRate(pull->flow, worker_->now()) > 0;
  if (moves) worker_->mutable_session().HandleReaderBytes(transfer, worker_->now());
  if (moves || !pull->sending.has_value()) {
    worker_->cluster().Carry(
        *worker_, pull->reader, &pull->wire,
        [reader = pull->reader, transfer] { reader->HandleSourceAlive(transfer); });
  }
  StartBeating(transfer, *pull);
}

// ---- the end

void SimulatedServing::Drop(TransferId transfer) {
  const Pull* pull = Find(transfer);
  if (pull == nullptr) return;
  if (pull->admitted) worker_->cluster().CloseFlow(pull->flow);
  pulls_.erase(transfer);
}

void SimulatedServing::Release(TransferId transfer) {
  Drop(transfer);
  worker_->mutable_session().HandleReaderReleased(transfer, worker_->now());
}

void SimulatedServing::TellClosed(TransferId transfer, Pull& pull, const std::string& why) {
  worker_->cluster().Carry(
      *worker_, pull.reader, &pull.wire,
      [reader = pull.reader, transfer, why] { reader->HandleSourceClosed(transfer, why); });
}

void SimulatedServing::Finish(const std::vector<TransferId>& transfers) {
  for (TransferId transfer : transfers) {
    Pull* const pull = Find(transfer);
    if (pull == nullptr) continue;
    pull->finishing = true;
    pull->asked.clear();
    pull->sums_asked = {};
    if (!pull->sending.has_value()) Cut({transfer});
  }
}

void SimulatedServing::Cut(const std::vector<TransferId>& transfers) {
  for (TransferId transfer : transfers) {
    if (Pull* pull = Find(transfer))
      TellClosed(transfer, *pull, pull->finishing ? "finished" : "cut at the end of the drain");
    Release(transfer);
  }
}

void SimulatedServing::BreakAllOf(BufferId buffer) {
  std::vector<TransferId> transfers;
  for (const auto& [transfer, pull] : pulls_) {
    if (pull.buffer() == buffer) transfers.push_back(transfer);
  }
  for (TransferId transfer : transfers) {
    TellClosed(transfer, *Find(transfer), "the buffer is gone");
    Drop(transfer);
  }
}

void SimulatedServing::Break(const std::string& address) {
  broken_.insert(address);
  std::vector<TransferId> transfers;
  for (const auto& [transfer, pull] : pulls_) {
    if (pull.address == address) transfers.push_back(transfer);
  }
  for (TransferId transfer : transfers) {
    TellClosed(transfer, *Find(transfer), "connection reset");
    Drop(transfer);
    // What the process does then, if it runs.
    worker_->RunOrHold([worker = worker_, transfer] { worker->HandlePullClosed(transfer); });
  }
}

void SimulatedServing::BreakAll(bool tell) {
  for (auto& [transfer, pull] : pulls_) {
    if (tell) TellClosed(transfer, pull, "connection reset");
    if (pull.admitted) worker_->cluster().CloseFlow(pull.flow);
  }
  pulls_.clear();
}

}  // namespace th
