// The state that the connections of a process share: a ServedTransfers behind a lock, the delegates
// of the holders, the buffers that are served, the bytes that went out, and the uplink.
//
// Lives as long as a holder may decide, which may be after the transport is gone. Thread-safe.
#ifndef TH_TRANSFER_STREAM_SERVING_TABLE_H_
#define TH_TRANSFER_STREAM_SERVING_TABLE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "th/pipeline_replicator/served_transfers.h"
#include "th/transfer/stream/frames.h"
#include "th/transfer/stream/uplink_bucket.h"
#include "th/transfer/transport.h"

namespace th::stream {

class ServingTable : public std::enable_shared_from_this<ServingTable> {
 public:
  // Shared by the connections of one transfer that is served.
  class Transfer;
  // News for a connection's session: it is admitted, refused, or to end.
  using News = std::variant<std::shared_ptr<Transfer>, absl::Status, ServingEnd>;
  // May be called on any thread; it posts.
  using Report = std::function<void(News)>;

  ServingTable(uint64_t uplink_bytes_per_second, absl::Time now);

  // See Transport::AddHolder.
  bool AddHolder(WorkerId worker, HolderDelegate* delegate);
  // See Transport::RemoveHolder.
  void RemoveHolder(WorkerId worker);
  void EndTransfer(TransferId transfer, ServingEnd end);

  // The reader at the other end of `connection` has said what it wants. `tell` is called until
  // Close.
  void Open(ServingConnection connection, const Open& open, Report on_report);
  // The connection reads no byte of the buffer any more. Idempotent.
  void Close(ServingConnection connection);
  // `payload_bytes` went out: tells the holder now and then.
  void CountSent(Transfer& transfer, uint64_t payload_bytes, absl::Time now);
  // One of its connections is closed by the source because of `why`, which its holder hears when
  // the transfer is released; the first one counts.
  void NoteWhyEnded(Transfer& transfer, const std::string& why);

  // True if its bytes count against the uplink: not those of a worker that copies from itself.
  bool IsCapped(const Transfer& transfer) const;
  UplinkBucket::Grant TakeUplink(const Transfer& transfer, uint64_t wanted, absl::Time now);
  void RefundUplink(uint64_t bytes);

  uint64_t bytes_sent() const { return bytes_sent_.load(); }
  uint64_t transfers_served() const;
  uint64_t transfers_refused() const;

 private:
  struct Holder {
    HolderDelegate* delegate = nullptr;
    uint32_t calls = 0;  // under way
    bool removed = false;
  };
  // Calls to be made once the lock is released.
  using Steps = std::vector<std::function<void()>>;

  void Decided(TransferId transfer, Admission admission);
  // `request`: of the reader that has just opened.
  Steps TakeSteps(AdmissionRequest request = {}) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Calls the holder's delegate, which stays until then.
  std::function<void()> CallHolder(WorkerId worker, std::function<void(HolderDelegate&)> call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::function<void()> ReportConnection(ServingConnection connection, News news)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  ServedTransfers transfers_ ABSL_GUARDED_BY(mu_);
  std::map<WorkerId, Holder> holders_ ABSL_GUARDED_BY(mu_);
  std::map<ServingConnection, Report> reports_ ABSL_GUARDED_BY(mu_);
  std::map<TransferId, std::shared_ptr<Transfer>> served_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> bytes_sent_{0};

  const bool has_uplink_cap_;
  absl::Mutex bucket_mu_;
  std::optional<UplinkBucket> bucket_ ABSL_GUARDED_BY(bucket_mu_);
};

class ServingTable::Transfer {
 public:
  Transfer(TransferId id, const CapabilityClaims& claims, const Admission& admission)
      : id(id), claims(claims), generation(admission.generation), store(admission.store) {}

  const TransferId id;
  const CapabilityClaims claims;  // as they were admitted
  const BufferGeneration generation;
  // Shared with the owner: it outlives neither the transfer nor the buffer's registration.
  const std::shared_ptr<SegmentStore> store;

 private:
  friend class ServingTable;
  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<int64_t> reported_at_ns_{0};
  std::string why_ended_;  // under the table's lock
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_SERVING_TABLE_H_
