#include "th/transfer/tcp/serving_table.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace th::tcp {

ServingTable::ServingTable(uint64_t uplink_bytes_per_second, absl::Time now)
    : has_uplink_cap_(uplink_bytes_per_second > 0) {
  if (has_uplink_cap_) bucket_.emplace(uplink_bytes_per_second, now);
}

// ---- holders

void ServingTable::AddHolder(WorkerId worker, HolderDelegate* delegate) {
  absl::MutexLock lock(&mu_);
  // A server that has lost its state may give a number twice: what is under way is still counted.
  Holder& holder = holders_[worker];
  holder.delegate = delegate;
  holder.removed = false;
}

void ServingTable::RemoveHolder(WorkerId worker) {
  std::vector<Cut> cuts;
  {
    absl::MutexLock lock(&mu_);
    const auto it = holders_.find(worker);
    if (it == holders_.end()) return;
    it->second.removed = true;
    for (const auto& [id, transfer] : transfers_) {
      if (transfer->open.capability.claims.source.worker != worker) continue;
      transfer->cut_ = true;
      for (const auto& [connection, cut] : transfer->connections_) cuts.push_back(cut);
    }
  }
  for (const Cut& cut : cuts) cut(Ending::kNow);
  absl::MutexLock lock(&mu_);
  const auto quiet = [this, worker]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Holder& holder = holders_[worker];
    return holder.calls == 0 && holder.transfers == 0;
  };
  mu_.Await(absl::Condition(&quiet));
  for (auto asked = asked_.begin(); asked != asked_.end();) {
    asked = asked->second.holder == worker ? asked_.erase(asked) : std::next(asked);
  }
  holders_.erase(worker);
}

HolderDelegate* ServingTable::Enter(WorkerId worker) {
  absl::MutexLock lock(&mu_);
  const auto it = holders_.find(worker);
  if (it == holders_.end() || it->second.removed) return nullptr;
  ++it->second.calls;
  return it->second.delegate;
}

void ServingTable::Done(WorkerId worker) {
  absl::MutexLock lock(&mu_);
  --holders_[worker].calls;
}

absl::Status ServingTable::Decide(AdmissionRequest request,
                                  std::function<void(Admission)> decided) {
  const WorkerId worker = request.capability.claims.source.worker;
  HolderDelegate* delegate = Enter(worker);
  if (delegate == nullptr) {
    return absl::NotFoundError(absl::StrCat("no worker ", worker.value, " serves here"));
  }
  const TransferId transfer = request.transfer;
  {
    absl::MutexLock lock(&mu_);
    asked_.emplace(transfer, Asked{.holder = worker});
  }
  delegate->OnAdmission(std::move(request),
                        [this, transfer, decided = std::move(decided)](Admission admission) {
                          if (!admission.status.ok()) Forget(transfer);
                          decided(std::move(admission));
                        });
  Done(worker);
  return absl::OkStatus();
}

void ServingTable::Forget(TransferId transfer) {
  absl::MutexLock lock(&mu_);
  asked_.erase(transfer);
}

void ServingTable::ReleaseUnserved(WorkerId worker, TransferId transfer) {
  Forget(transfer);
  HolderDelegate* delegate = Enter(worker);
  if (delegate == nullptr) return;
  delegate->OnReaderReleased(transfer, 0);
  Done(worker);
}

// ---- transfers

std::shared_ptr<ServingTable::Transfer> ServingTable::Begin(TransferId id, const Open& open,
                                                            const Admission& admission,
                                                            uint64_t connection, Cut cut) {
  auto transfer = std::make_shared<Transfer>(id, open, admission);
  absl::MutexLock lock(&mu_);
  const auto holder = holders_.find(open.capability.claims.source.worker);
  if (holder == holders_.end() || holder->second.removed) return nullptr;
  const auto asked = asked_.find(id);
  if (asked == asked_.end() || asked->second.cut) return nullptr;
  asked_.erase(asked);
  ++holder->second.transfers;
  transfer->connections_.emplace(connection, std::move(cut));
  transfers_.emplace(id, transfer);
  by_nonce_[open.nonce] = id;
  served_.fetch_add(1);
  return transfer;
}

absl::StatusOr<std::shared_ptr<ServingTable::Transfer>> ServingTable::Join(const Open& open,
                                                                           uint64_t connection,
                                                                           Cut cut) {
  absl::MutexLock lock(&mu_);
  const auto known = by_nonce_.find(open.nonce);
  const auto it = known == by_nonce_.end() ? transfers_.end() : transfers_.find(known->second);
  if (it == transfers_.end() || it->second->cut_ ||
      it->second->open.capability != open.capability) {
    return absl::PermissionDeniedError("no admitted pull to join");
  }
  if (it->second->connections_.size() >= kMaxConnectionsPerTransfer) {
    return absl::ResourceExhaustedError("too many connections for one pull");
  }
  it->second->connections_.emplace(connection, std::move(cut));
  return it->second;
}

void ServingTable::Leave(const std::shared_ptr<Transfer>& transfer, uint64_t connection) {
  Cut dropped;  // destroyed outside of the lock
  {
    absl::MutexLock lock(&mu_);
    const auto it = transfer->connections_.find(connection);
    if (it == transfer->connections_.end()) return;
    dropped = std::move(it->second);
    transfer->connections_.erase(it);
    if (!transfer->connections_.empty()) return;
    transfers_.erase(transfer->id);
    const auto nonce = by_nonce_.find(transfer->open.nonce);
    if (nonce != by_nonce_.end() && nonce->second == transfer->id) by_nonce_.erase(nonce);
  }
  Release(transfer->open.capability.claims.source.worker, transfer->id,
          transfer->bytes_sent_.load());
}

void ServingTable::Release(WorkerId worker, TransferId transfer, uint64_t bytes) {
  HolderDelegate* delegate = nullptr;
  {
    absl::MutexLock lock(&mu_);
    delegate = holders_[worker].delegate;
  }
  // RemoveHolder waits for the count below: the delegate is still there.
  delegate->OnReaderReleased(transfer, bytes);
  absl::MutexLock lock(&mu_);
  --holders_[worker].transfers;
}

void ServingTable::EndTransfer(TransferId transfer, Ending ending) {
  std::vector<Cut> cuts;
  {
    absl::MutexLock lock(&mu_);
    const auto asked = asked_.find(transfer);
    if (asked != asked_.end()) asked->second.cut = true;
    const auto it = transfers_.find(transfer);
    if (it == transfers_.end()) return;
    it->second->cut_ = true;
    for (const auto& [connection, cut] : it->second->connections_) cuts.push_back(cut);
  }
  for (const Cut& cut : cuts) cut(ending);
}

void ServingTable::CountSent(Transfer& transfer, uint64_t payload_bytes, absl::Time now) {
  bytes_sent_.fetch_add(payload_bytes);
  const uint64_t total = transfer.bytes_sent_.fetch_add(payload_bytes) + payload_bytes;
  const int64_t now_ns = absl::ToUnixNanos(now);
  int64_t told_at = transfer.told_at_ns_.load();
  if (now_ns - told_at < absl::ToInt64Nanoseconds(kReaderBytesInterval)) return;
  if (!transfer.told_at_ns_.compare_exchange_strong(told_at, now_ns)) return;
  const WorkerId worker = transfer.open.capability.claims.source.worker;
  HolderDelegate* delegate = Enter(worker);
  if (delegate == nullptr) return;
  delegate->OnReaderBytes(transfer.id, total);
  Done(worker);
}

// ---- the uplink

bool ServingTable::IsCapped(const Transfer& transfer) const {
  const CapabilityClaims& claims = transfer.open.capability.claims;
  return has_uplink_cap_ && claims.reader != claims.source.worker;
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

}  // namespace th::tcp
