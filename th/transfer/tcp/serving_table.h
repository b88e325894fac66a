// Which transfers a process serves, from the buffers of which holders, over which connections.
//
// A transfer is what one reader's pull is at its source: admitted once, carried by one or several
// connections that may live on different loops, released when the last of them is gone.
// Thread-safe.
#ifndef TH_TRANSFER_TCP_SERVING_TABLE_H_
#define TH_TRANSFER_TCP_SERVING_TABLE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "th/transfer/tcp/frames.h"
#include "th/transfer/tcp/uplink_bucket.h"
#include "th/transfer/transport.h"

namespace th::tcp {

// The connections of one transfer, at most.
inline constexpr size_t kMaxConnectionsPerTransfer = 8;
// A holder is told of its reader's bytes this often at most.
inline constexpr absl::Duration kReaderBytesInterval = absl::Milliseconds(100);

class ServingTable {
 public:
  // How a connection ends: at once, or where the segment ends that it is sending.
  enum class Ending : uint8_t { kNow, kAfterSegment };
  // What a connection gives, so that others can end it. May be called on any thread; it posts.
  using Cut = std::function<void(Ending)>;
  // Shared by the connections of one transfer.
  class Transfer;

  ServingTable(uint64_t uplink_bytes_per_second, absl::Time now);

  void AddHolder(WorkerId worker, HolderDelegate* delegate);
  // See Transport::RemoveHolder.
  void RemoveHolder(WorkerId worker);
  // Ends `transfer` for good: one that was decided on and has not begun never begins, and no
  // connection joins it any more.
  void EndTransfer(TransferId transfer, Ending ending);

  // Asks the holder. `decided` is called once, on any thread, unless the holder is removed before
  // it decides. NOT_FOUND when there is no such holder.
  absl::Status Decide(AdmissionRequest request, std::function<void(Admission)> decided);
  // The holder admitted, and nothing was served: it hears of the release.
  void ReleaseUnserved(WorkerId worker, TransferId transfer);
  // The first connection of an admitted transfer. Null when the holder is gone or has cut it
  // meanwhile: the caller releases it unserved.
  std::shared_ptr<Transfer> Begin(TransferId id, const Open& open, const Admission& admission,
                                  uint64_t connection, Cut cut);
  // A further one. PERMISSION_DENIED when there is no such pull, or it was cut; RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<Transfer>> Join(const Open& open, uint64_t connection, Cut cut);
  // The connection reads no byte of the buffer any more. The last one releases the transfer.
  void Leave(const std::shared_ptr<Transfer>& transfer, uint64_t connection);
  // `payload_bytes` went out: tells the holder now and then.
  void CountSent(Transfer& transfer, uint64_t payload_bytes, absl::Time now);

  // Whether its bytes count against the uplink: not those of a worker that copies from itself.
  bool IsCapped(const Transfer& transfer) const;
  UplinkBucket::Grant TakeUplink(const Transfer& transfer, uint64_t wanted, absl::Time now);
  void RefundUplink(uint64_t bytes);

  void CountRefused() { refused_.fetch_add(1); }
  uint64_t bytes_sent() const { return bytes_sent_.load(); }
  uint64_t transfers_served() const { return served_.load(); }
  uint64_t transfers_refused() const { return refused_.load(); }

 private:
  struct Holder {
    HolderDelegate* delegate = nullptr;
    uint32_t calls = 0;      // under way
    uint32_t transfers = 0;  // not released yet
    bool removed = false;
  };

  // A transfer between the holder being asked and the first connection that serves it.
  struct Asked {
    WorkerId holder;
    bool cut = false;
  };

  void Forget(TransferId transfer);
  // The holder's delegate, counted as called until Done. Null when there is none.
  HolderDelegate* Enter(WorkerId worker);
  void Done(WorkerId worker);
  void Release(WorkerId worker, TransferId transfer, uint64_t bytes);

  absl::Mutex mu_;
  std::map<WorkerId, Holder> holders_ ABSL_GUARDED_BY(mu_);
  std::map<TransferId, Asked> asked_ ABSL_GUARDED_BY(mu_);
  std::map<TransferId, std::shared_ptr<Transfer>> transfers_ ABSL_GUARDED_BY(mu_);
  std::map<PullNonce, TransferId> by_nonce_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> bytes_sent_{0}, served_{0}, refused_{0};

  const bool has_uplink_cap_;
  absl::Mutex bucket_mu_;
  std::optional<UplinkBucket> bucket_ ABSL_GUARDED_BY(bucket_mu_);
};

class ServingTable::Transfer {
 public:
  Transfer(TransferId id, const Open& open, const Admission& admission)
      : id(id), open(open), generation(admission.generation), store(admission.store) {}

  const TransferId id;
  const Open open;  // as it was admitted
  const BufferGeneration generation;
  // Shared with the owner: it outlives neither the transfer nor the buffer's registration.
  const std::shared_ptr<SegmentStore> store;

 private:
  friend class ServingTable;
  // Guarded by the table's mutex.
  std::map<uint64_t, Cut> connections_;
  bool cut_ = false;  // every connection was told to end, and none may join

  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<int64_t> told_at_ns_{0};
};

}  // namespace th::tcp

#endif  // TH_TRANSFER_TCP_SERVING_TABLE_H_
