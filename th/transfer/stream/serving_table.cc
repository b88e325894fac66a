#include "th/transfer/stream/serving_table.h"

#include <utility>

namespace th::stream {

ServingTable::ServingTable(uint64_t uplink_bytes_per_second, absl::Time now)
    : has_uplink_cap_(uplink_bytes_per_second > 0) {
  if (has_uplink_cap_) bucket_.emplace(uplink_bytes_per_second, now);
}

// ---- holders

bool ServingTable::AddHolder(WorkerId worker, HolderDelegate* delegate) {
  absl::MutexLock lock(&mu_);
  // A holder that is being removed is refused too: its transfers are not released yet.
  const auto [holder, added] = holders_.try_emplace(worker);
  if (!added) return false;
  holder->second.delegate = delegate;
  transfers_.AddHolder(worker);
  return true;
}

void ServingTable::RemoveHolder(WorkerId worker) {
  Steps steps;
  {
    absl::MutexLock lock(&mu_);
    const auto found = holders_.find(worker);
    if (found == holders_.end()) return;
    found->second.removed = true;
    transfers_.RemoveHolder(worker);
    steps = TakeSteps();
  }
  for (const auto& step : steps) step();
  absl::MutexLock lock(&mu_);
  const auto quiet = [this, worker]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return holders_[worker].calls == 0 && transfers_.IsQuiet(worker);
  };
  mu_.Await(absl::Condition(&quiet));
  transfers_.ForgetHolder(worker);
  holders_.erase(worker);
}

void ServingTable::EndTransfer(TransferId transfer, ServingEnd end) {
  Steps steps;
  {
    absl::MutexLock lock(&mu_);
    transfers_.End(transfer, end);
    steps = TakeSteps();
  }
  for (const auto& step : steps) step();
}

// ---- connections

void ServingTable::Open(ServingConnection connection, const stream::Open& open, Report on_report) {
  AdmissionRequest request{.transfer = NextTransferId(),
                           .buffer = open.capability.claims.source.buffer,
                           .capability = open.capability,
                           .generation = open.generation};
  Steps steps;
  {
    absl::MutexLock lock(&mu_);
    reports_[connection] = std::move(on_report);
    transfers_.HandleOpened(connection, request.transfer,
                            {.joins = open.joins,
                             .nonce = open.nonce,
                             .capability = open.capability,
                             .layout = open.layout});
    steps = TakeSteps(std::move(request));
  }
  for (const auto& step : steps) step();
}

void ServingTable::Decided(TransferId transfer, Admission admission) {
  ServedTransfers::Decision decision{.status = admission.status};
  if (admission.store != nullptr) decision.layout = admission.store->layout().digest();
  Steps steps;
  {
    absl::MutexLock lock(&mu_);
    const ServedTransfers::Opening* const opening = transfers_.FindOpening(transfer);
    if (opening == nullptr) return;
    served_.try_emplace(
        transfer, std::make_shared<Transfer>(transfer, opening->capability.claims, admission));
    transfers_.HandleDecided(transfer, std::move(decision));
    steps = TakeSteps();
    if (transfers_.FindOpening(transfer) == nullptr) served_.erase(transfer);
  }
  for (const auto& step : steps) step();
}

void ServingTable::Close(ServingConnection connection) {
  Report dropped;  // destroyed outside of the lock
  Steps steps;
  {
    absl::MutexLock lock(&mu_);
    const auto found = reports_.find(connection);
    if (found == reports_.end()) return;
    dropped = std::move(found->second);
    reports_.erase(found);
    transfers_.HandleClosed(connection);
    steps = TakeSteps();
  }
  for (const auto& step : steps) step();
}

// ---- what ServedTransfers decides

ServingTable::Steps ServingTable::TakeSteps(AdmissionRequest request) {
  Steps steps;
  while (std::optional<ServedTransfersOutput> output = transfers_.PollOutput()) {
    if (const auto* ask = std::get_if<AskHolder>(&*output)) {
      steps.push_back(
          CallHolder(ask->holder, [table = shared_from_this(), request](HolderDelegate& holder) {
            holder.OnAdmission(request, [table, transfer = request.transfer](Admission admission) {
              table->Decided(transfer, std::move(admission));
            });
          }));
    } else if (const auto* admit = std::get_if<AdmitConnection>(&*output)) {
      steps.push_back(ReportConnection(admit->connection, served_.at(admit->transfer)));
    } else if (const auto* refuse = std::get_if<RefuseConnection>(&*output)) {
      steps.push_back(ReportConnection(refuse->connection, refuse->why));
    } else if (const auto* end = std::get_if<EndConnection>(&*output)) {
      steps.push_back(ReportConnection(end->connection, end->end));
    } else if (const auto* release = std::get_if<ReleaseTransfer>(&*output)) {
      auto served = served_.extract(release->transfer);
      Transfer& transfer = *served.mapped();
      steps.push_back(CallHolder(release->holder,
                                 [id = transfer.id, bytes = transfer.bytes_sent_.load(),
                                  why = std::move(transfer.why_ended_)](HolderDelegate& holder) {
                                   holder.OnReaderReleased(id, bytes, why);
                                 }));
    }
  }
  return steps;
}

std::function<void()> ServingTable::CallHolder(WorkerId worker,
                                               std::function<void(HolderDelegate&)> call) {
  Holder& holder = holders_[worker];
  ++holder.calls;
  // RemoveHolder waits for the count: the delegate is still there.
  return [this, worker, delegate = holder.delegate, call = std::move(call)] {
    call(*delegate);
    absl::MutexLock lock(&mu_);
    --holders_[worker].calls;
  };
}

std::function<void()> ServingTable::ReportConnection(ServingConnection connection, News news) {
  const auto found = reports_.find(connection);
  if (found == reports_.end()) return [] {};
  return [on_report = found->second, news = std::move(news)] { on_report(news); };
}

void ServingTable::CountSent(Transfer& transfer, uint64_t payload_bytes, absl::Time now) {
  bytes_sent_.fetch_add(payload_bytes);
  const uint64_t total = transfer.bytes_sent_.fetch_add(payload_bytes) + payload_bytes;
  const int64_t now_ns = absl::ToUnixNanos(now);
  int64_t reported_at = transfer.reported_at_ns_.load();
  if (now_ns - reported_at < absl::ToInt64Nanoseconds(kReaderBytesInterval)) return;
  if (!transfer.reported_at_ns_.compare_exchange_strong(reported_at, now_ns)) return;
  std::function<void()> report;
  {
    absl::MutexLock lock(&mu_);
    const auto found = holders_.find(transfer.claims.source.worker);
    if (found == holders_.end() || found->second.removed) return;
    report = CallHolder(found->first, [id = transfer.id, total](HolderDelegate& holder) {
      holder.OnReaderBytes(id, total);
    });
  }
  report();
}

void ServingTable::NoteWhyEnded(Transfer& transfer, const std::string& why) {
  absl::MutexLock lock(&mu_);
  if (transfer.why_ended_.empty()) transfer.why_ended_ = why;
}

uint64_t ServingTable::transfers_served() const {
  absl::MutexLock lock(&mu_);
  return transfers_.served();
}

uint64_t ServingTable::transfers_refused() const {
  absl::MutexLock lock(&mu_);
  return transfers_.refused();
}

// ---- the uplink

bool ServingTable::IsCapped(const Transfer& transfer) const {
  return has_uplink_cap_ && transfer.claims.reader != transfer.claims.source.worker;
}

UplinkBucket::Grant ServingTable::TakeUplink(const Transfer& transfer, uint64_t wanted,
                                             absl::Time now) {
  absl::MutexLock lock(&bucket_mu_);
  return bucket_->Take(transfer.id, wanted, now);
}

void ServingTable::RefundUplink(uint64_t bytes) {
  absl::MutexLock lock(&bucket_mu_);
  bucket_->Refund(bytes);
}

}  // namespace th::stream
