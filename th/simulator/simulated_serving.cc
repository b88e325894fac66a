#include "th/simulator/simulated_serving.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "th/simulator/cluster.h"
#include "th/simulator/simulated_worker.h"

namespace th {
namespace {

// A pull has one connection here.
ServingConnection ConnectionOf(TransferId transfer) { return ServingConnection(transfer.value); }
TransferId TransferOf(ServingConnection connection) { return TransferId(connection.value); }

PullNonce NonceOf(TransferId transfer) {
  PullNonce nonce{};
  std::memcpy(nonce.data(), &transfer.value, sizeof(transfer.value));
  return nonce;
}

}  // namespace

SimulatedServing::Pull* SimulatedServing::Find(TransferId transfer) {
  const auto found = pulls_.find(transfer);
  return found == pulls_.end() ? nullptr : &found->second;
}

// ---- what readers say

void SimulatedServing::Open(SimulatedWorker* reader, TransferId transfer,
                            const std::string& address, const Capability& capability,
                            BufferGeneration generation) {
  Pull& pull = pulls_.try_emplace(transfer, worker_->now()).first->second;
  pull.reader = reader;
  pull.address = address;
  pull.capability = capability;
  pull.generation = generation;
  if (broken_.contains(address)) {
    ReportClosed(transfer, pull, "connection refused");
    pulls_.erase(transfer);
    return;
  }
  const WorkerId holder = worker_->session().worker();
  if (holder != WorkerId()) transfers_.AddHolder(holder);
  const absl::Status opened = pull.session.HandleOpened(worker_->now());
  if (!opened.ok()) pull.session.HandleBroken(std::string(opened.message()));
  Act(transfer);
}

void SimulatedServing::Ask(TransferId transfer, SegmentRange range) {
  Pull* const pull = Find(transfer);
  if (pull == nullptr || pull->reset) return;
  const absl::Status asked = pull->session.HandleAsk(range, worker_->now());
  worker_->cluster().checker().Expect(asked.ok(), "is asked for more than it takes",
                                      worker_->Name());
  if (!asked.ok()) pull->session.HandleBroken(std::string(asked.message()));
  Act(transfer);
}

void SimulatedServing::AskChecksums(TransferId transfer) {
  Pull* const pull = Find(transfer);
  if (pull == nullptr || pull->reset) return;
  const SegmentIndex end(worker_->cluster().spec().segment_count);
  const absl::Status asked =
      pull->session.HandleAskChecksums({SegmentIndex(0), end}, worker_->now());
  worker_->cluster().checker().Expect(asked.ok(), "is asked for sums that it does not give",
                                      worker_->Name());
  if (!asked.ok()) pull->session.HandleBroken(std::string(asked.message()));
  Act(transfer);
}

void SimulatedServing::FinishByReader(TransferId transfer) {
  Pull* const pull = Find(transfer);
  if (pull == nullptr || pull->reset) return;
  pull->session.HandleFinish(worker_->now());
  Act(transfer);
}

void SimulatedServing::CloseByReader(TransferId transfer) {
  Pull* const pull = Find(transfer);
  if (pull == nullptr) return;
  CloseFlow(*pull);
  pulls_.erase(transfer);
  transfers_.HandleClosed(ConnectionOf(transfer));
  CarryOut();
}

// ---- what the worker's session says

void SimulatedServing::Decide(const AdmissionDecided& decided) {
  ServedTransfers::Decision decision{.status = decided.status};
  if (Pull* const pull = Find(decided.transfer)) {
    pull->generation = decided.generation;
    const SimulatedBuffer* const buffer = worker_->FindBuffer(pull->buffer());
    if (buffer != nullptr) {
      decision.layout = worker_->cluster().LayoutOf(buffer->shard())->digest();
    }
  }
  transfers_.HandleDecided(decided.transfer, std::move(decision));
  CarryOut();
}

void SimulatedServing::End(const std::vector<TransferId>& transfers, ServingEnd end) {
  for (TransferId transfer : transfers) transfers_.End(transfer, end);
  CarryOut();
}

void SimulatedServing::EndAllOf(BufferId buffer) {
  for (const auto& [transfer, pull] : pulls_) {
    if (pull.buffer() == buffer) transfers_.End(transfer, ServingEnd::kNow);
  }
  CarryOut();
}

// ---- what ServedTransfers and the sessions decide

void SimulatedServing::CarryOut() {
  while (const std::optional<ServedTransfersOutput> output = transfers_.PollOutput()) Do(*output);
}

void SimulatedServing::Do(const ServedTransfersOutput& output) {
  const absl::Time now = worker_->now();
  if (const auto* ask = std::get_if<AskHolder>(&output)) {
    const Pull& pull = *Find(ask->transfer);
    worker_->mutable_session().Handle(
        event::AdmissionAsked{ask->transfer, pull.buffer(), pull.capability, pull.generation}, now);
  } else if (const auto* admit = std::get_if<AdmitConnection>(&output)) {
    Pull* const pull = Find(admit->transfer);
    if (pull == nullptr) return;
    pull->session.HandleAdmitted(pull->generation, worker_->cluster().spec().segment_count, now);
    Act(admit->transfer);
  } else if (const auto* refuse = std::get_if<RefuseConnection>(&output)) {
    Pull* const pull = Find(TransferOf(refuse->connection));
    if (pull == nullptr) return;
    pull->session.HandleRefused(refuse->why, now);
    Act(TransferOf(refuse->connection));
  } else if (const auto* end = std::get_if<EndConnection>(&output)) {
    Pull* const pull = Find(TransferOf(end->connection));
    if (pull == nullptr) return;
    pull->session.HandleEnd(end->end, now);
    Act(TransferOf(end->connection));
  } else if (const auto* release = std::get_if<ReleaseTransfer>(&output)) {
    worker_->mutable_session().Handle(event::ReaderReleased{release->transfer}, now);
  }
}

void SimulatedServing::Act(TransferId transfer) {
  for (Pull* pull = Find(transfer); pull != nullptr; pull = Find(transfer)) {
    if (const std::optional<ServingOutput> output = pull->session.PollOutput()) {
      Do(transfer, *pull, *output);
      continue;
    }
    SendChecksums(transfer, *pull);
    SendNext(transfer, *pull);
    return SetTimer(transfer, *pull);
  }
}

void SimulatedServing::Do(TransferId transfer, Pull& pull, const ServingOutput& output) {
  SimulatedWorker* const reader = pull.reader;
  Cluster& cluster = worker_->cluster();
  if (std::holds_alternative<AskToAdmit>(output)) {
    transfers_.HandleOpened(ConnectionOf(transfer), transfer,
                            {.nonce = NonceOf(transfer),
                             .capability = pull.capability,
                             .layout = cluster.LayoutOf(reader->spec().shard)->digest()});
    CarryOut();
  } else if (std::holds_alternative<SendAdmitted>(output)) {
    JudgeAdmitted(pull);
    if (!pull.reset) pull.flow = cluster.OpenFlow(worker_, *reader, transfer);
    Say(pull, [reader, transfer] { reader->HandlePullAdmitted(transfer, absl::OkStatus()); });
  } else if (const auto* refused = std::get_if<SendRefused>(&output)) {
    Say(pull,
        [reader, transfer, why = refused->why] { reader->HandlePullAdmitted(transfer, why); });
  } else if (std::holds_alternative<SendAlive>(output)) {
    Say(pull, [reader, transfer] { reader->HandleSourceAlive(transfer); });
  } else if (const auto* close = std::get_if<SendClose>(&output)) {
    if (pull.sending.has_value()) {
      pull.last_word = *close;
    } else {
      Say(pull,
          [reader, transfer, why = close->why] { reader->HandleSourceClosed(transfer, why); });
    }
  } else if (const auto* end = std::get_if<Disconnect>(&output)) {
    ReportClosed(transfer, pull, end->why.empty() ? "the source closed the connection" : end->why);
    CloseByReader(transfer);
  }
}

// A word leaves at once: a socket has room for it.
void SimulatedServing::Say(Pull& pull, SimulatedEvent word) {
  if (!pull.reset) {
    worker_->cluster().Carry(*worker_, pull.reader, &pull.wire, std::move(word));
  }
  pull.session.HandleSent(/*all=*/!pull.sending.has_value(), worker_->now());
}

void SimulatedServing::JudgeAdmitted(const Pull& pull) const {
  InvariantChecker& checker = worker_->cluster().checker();
  checker.Expect(pull.capability.claims.epoch == worker_->session().epoch(),
                 "admitted a reader of another epoch", worker_->Name());
  const BufferState state = worker_->session().buffer_state(pull.buffer());
  checker.Expect(state != BufferState::kDraining && state != BufferState::kWritable,
                 "admitted a reader of a buffer that serves nobody", worker_->Name());
  checker.Expect(!worker_->IsStreaming(pull.buffer()),
                 "admitted a reader of a receive that keeps nothing", worker_->Name());
}

void SimulatedServing::SetTimer(TransferId transfer, Pull& pull) {
  const absl::Time due = pull.session.NextDeadline();
  if (due >= pull.timer_at) return;
  pull.timer_at = due;
  worker_->Post(std::max(due - worker_->now(), absl::ZeroDuration()), [this, transfer, due] {
    Pull* const waiting = Find(transfer);
    if (waiting == nullptr || waiting->timer_at != due) return;
    waiting->timer_at = absl::InfiniteFuture();
    waiting->session.HandleTick(worker_->now());
    Act(transfer);
    worker_->Settle();
  });
}

// ---- segments

std::optional<SegmentIndex> SimulatedServing::BeingSent(TransferId transfer) const {
  const auto found = pulls_.find(transfer);
  if (found == pulls_.end() || !found->second.sending.has_value()) return std::nullopt;
  return found->second.sending->segment;
}

void SimulatedServing::Pump(TransferId transfer) { Act(transfer); }

void SimulatedServing::PumpAll() {
  std::vector<TransferId> waiting;
  for (const auto& [transfer, pull] : pulls_) {
    const bool waits = !pull.session.requests().empty() && !pull.sending.has_value();
    if (waits || !pull.session.checksums_requested().empty()) waiting.push_back(transfer);
  }
  for (TransferId transfer : waiting) Act(transfer);
}

// As far as they are known here, beside the segments: they weigh nothing.
void SimulatedServing::SendChecksums(TransferId transfer, Pull& pull) {
  if (!pull.flow.has_value() || pull.reader->stopped()) return;
  if (pull.session.checksums_requested().empty()) return;
  const SimulatedBuffer& buffer = *worker_->FindBuffer(pull.buffer());
  const auto next = pull.session.PollChecksums([&](SegmentRange asked) {
    std::vector<SegmentChecksum> checksums;
    for (SegmentIndex i = asked.begin; i < asked.end; i = i.Next()) {
      const std::optional<SegmentChecksum> checksum = buffer.ChecksumOf(i);
      if (!checksum.has_value()) break;
      checksums.push_back(IsForged(i) ? ForgeryOf(pull, *checksum) : *checksum);
    }
    return checksums;
  });
  if (!next.has_value()) return;
  Say(pull, [reader = pull.reader, transfer, sent = *next] {
    reader->HandleChecksums(transfer, sent.first, sent.checksums);
  });
}

SegmentChecksum SimulatedServing::ForgeryOf(const Pull& pull, SegmentChecksum checksum) const {
  const SegmentChecksum forgery = checksum ^ 2;
  worker_->cluster().checker().Forged(pull.capability.claims.version,
                                      worker_->FindBuffer(pull.buffer())->shard(), forgery);
  return forgery;
}

bool SimulatedServing::IsForged(SegmentIndex segment) const {
  const auto forged = forged_until_.find(segment);
  return forged != forged_until_.end() && worker_->now() < forged->second;
}

void SimulatedServing::SendNext(TransferId transfer, Pull& pull) {
  if (!pull.flow.has_value() || pull.sending.has_value()) return;
  if (pull.reader->stopped()) return;  // takes nothing; HandlePullContinues comes
  const SimulatedBuffer& buffer = *worker_->FindBuffer(pull.buffer());
  const std::optional<SegmentIndex> segment = pull.session.PollSegment(
      [&buffer](SegmentIndex asked) { return buffer.held().Contains(asked); });
  if (!segment.has_value()) return;  // PumpAll when one has arrived
  const VersionSequence here = worker_->session().buffer_version(pull.buffer()).sequence;
  worker_->cluster().checker().Expect(pull.capability.claims.version == here,
                                      "serves another version than the reader was admitted for",
                                      worker_->Name());
  pull.sending = Sending{*segment, buffer.value(*segment), buffer.rounds()};
  Cluster& cluster = worker_->cluster();
  cluster.network().Send(*pull.flow, cluster.wire_bytes_per_segment(), worker_->now());
  WatchBytes(transfer, pull);
}

void SimulatedServing::HandleChunkDelivered(TransferId transfer) {
  Pull* pull = Find(transfer);
  if (pull == nullptr || !pull->sending.has_value()) return;
  const Sending sent = *std::exchange(pull->sending, std::nullopt);
  ++segments_sent_;
  const SimulatedBuffer& buffer = *worker_->FindBuffer(pull->buffer());
  // The contract: nobody writes a segment while it is read. A fill that has started over does: what
  // it had handed on is refuted by the version's root, and so will it be at whoever received it.
  const bool started_over = buffer.rounds() != sent.round;
  worker_->cluster().checker().Expect(buffer.value(sent.segment) == sent.value || started_over,
                                      "wrote a segment that a reader was reading", worker_->Name());
  worker_->cluster().Carry(*worker_, pull->reader, &pull->wire,
                           [reader = pull->reader, transfer, segment = WhatIsSent(*pull, sent)] {
                             reader->HandleSegment(transfer, segment);
                           });
  // The process does this then, if it runs. Not posted: the flow keeps its share of the links.
  worker_->RunOrHold([this, transfer] {
    Pull* const sender = Find(transfer);
    if (sender == nullptr) return;
    worker_->mutable_session().Handle(event::ReaderBytesMoved{transfer}, worker_->now());
    sender->session.HandleSent(/*all=*/!sender->last_word.has_value(), worker_->now());
    if (const auto word = std::exchange(sender->last_word, std::nullopt)) {
      Do(transfer, *sender, *word);
    }
    Act(transfer);
    worker_->SettleAfterBytes();
  });
}

SentSegment SimulatedServing::WhatIsSent(const Pull& pull, const Sending& sent) {
  if (IsForged(sent.segment)) {
    const SegmentChecksum wrong = ForgeryOf(pull, sent.value);
    return {sent.segment, wrong, /*claimed_sum=*/wrong};
  }
  const SegmentChecksum bytes = flips_.erase(sent.segment) > 0 ? sent.value ^ 1 : sent.value;
  return {sent.segment, bytes, /*claimed_sum=*/sent.value};
}

// Bytes that move tell the contract that the reader takes them, and the reader that its source is
// there.
void SimulatedServing::WatchBytes(TransferId transfer, Pull& pull) {
  if (std::exchange(pull.watches_bytes, true)) return;
  worker_->Post(kReaderBytesInterval, [this, transfer] {
    Pull* const sender = Find(transfer);
    if (sender == nullptr) return;
    sender->watches_bytes = false;
    if (!sender->sending.has_value()) return;
    Cluster& cluster = worker_->cluster();
    if (cluster.network().FlowRate(*sender->flow, worker_->now()) > 0) {
      worker_->mutable_session().Handle(event::ReaderBytesMoved{transfer}, worker_->now());
      sender->session.HandleSent(/*all=*/false, worker_->now());
      cluster.Carry(*worker_, sender->reader, &sender->wire,
                    [reader = sender->reader, transfer] { reader->HandleSourceAlive(transfer); });
    }
    WatchBytes(transfer, *sender);
  });
}

// ---- the end

void SimulatedServing::CloseFlow(Pull& pull) {
  if (pull.flow.has_value()) worker_->cluster().CloseFlow(*pull.flow);
  pull.flow.reset();
  pull.sending.reset();
}

void SimulatedServing::ReportClosed(TransferId transfer, Pull& pull, const std::string& why) {
  if (pull.reset) return;
  worker_->cluster().Carry(
      *worker_, pull.reader, &pull.wire,
      [reader = pull.reader, transfer, why] { reader->HandleSourceClosed(transfer, why); });
}

void SimulatedServing::ReportPathBroken(TransferId transfer, Pull& pull) {
  worker_->cluster().Carry(*worker_, pull.reader, &pull.wire, [reader = pull.reader, transfer] {
    reader->HandlePathBroken(transfer, "the link is down");
  });
}

void SimulatedServing::Break(const std::string& address, Breakage how) {
  broken_.insert(address);
  for (auto& [transfer, pull] : pulls_) {
    if (pull.address != address || pull.reset) continue;
    if (how == Breakage::kPath) {
      ReportPathBroken(transfer, pull);
    } else {
      ReportClosed(transfer, pull, "connection reset");
    }
    CloseFlow(pull);
    pull.reset = true;
    // The process does this then, if it runs.
    worker_->Post(absl::ZeroDuration(),
                  [worker = worker_, transfer = transfer] { worker->HandlePullClosed(transfer); });
  }
}

void SimulatedServing::BreakAll(bool report) {
  for (auto& [transfer, pull] : pulls_) {
    if (report) ReportClosed(transfer, pull, "connection reset");
    CloseFlow(pull);
  }
  pulls_.clear();
  transfers_ = ServedTransfers();
}

}  // namespace th
