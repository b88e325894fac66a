// One reliable connection between a reader's device and a source's, over which the reader fetches
// bytes by RDMA READ. The source's end only answers: its processor takes no part.
//
//   // both ends                            // the reader
//   TH_ASSIGN_OR_RETURN(auto pair, QueuePair::Create(device, {}));
//   // exchange pair->address() over a socket, then
//   TH_RETURN_IF_ERROR(pair->Connect(peer));
//                                           pair->Post(tag, from, into, now);
//                                           // when completion_fd() is readable
//                                           pair->Poll(now, &tags);
//   pair->Destroy();
//
// After Destroy has returned the device touches no memory for this pair any more: at the reader no
// byte lands, at the source no byte is read. A READ that is under way at the other end fails there.
//
// A peer that does not answer is noticed by the device after some two seconds (kRetries times
// kAckTimeout; adapters may take more), and by the owner through waiting_since().
//
// Not thread-safe; any thread, one at a time.
#ifndef TH_TRANSFER_IBVERBS_QUEUE_PAIR_H_
#define TH_TRANSFER_IBVERBS_QUEUE_PAIR_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/transfer/ibverbs/rdma_device.h"
#include "th/transfer/ibverbs/read_plan.h"
#include "th/transfer/ibverbs/registered_buffer.h"

namespace th::ibverbs {

// All that the other end needs to know of a queue pair.
struct QueuePairAddress {
  Gid gid{};
  uint32_t number = 0;        // 24 bits
  uint32_t first_packet = 0;  // its first packet sequence number, 24 bits
  uint16_t lid = 0;           // InfiniBand only
  LinkLayer link = LinkLayer::kInfiniBand;
  uint8_t mtu = 0;  // as ibv_mtu
  uint8_t max_reads_started = 0;
  uint8_t max_reads_answered = 0;

  friend bool operator==(const QueuePairAddress&, const QueuePairAddress&) = default;
};

// The most that torch's allocator of device memory leaves between tensors that follow each other;
// others leave less. On Soft-RoCE a READ costs more than so many bytes; no adapter was measured.
inline constexpr uint32_t kMaxGapBytes = 512;
// For one byte of gaps so many bytes are read that are wanted: gaps make a segment at most 1 %
// longer on the wire, however its tensors lie.
inline constexpr uint64_t kBytesPerGapByte = 100;

class QueuePair {
 public:
  enum class Role : uint8_t { kReader, kSource };
  struct Options {
    Role role = Role::kReader;
    // READs that are posted and not complete; fewer where the device has fewer places, in its send
    // queue or for completions.
    uint32_t depth = 128;
    // A longer READ is split.
    uint32_t max_read_bytes = uint32_t{1} << 20;
    // Between ranges of the peer that are not further apart the gap may be read along, and is
    // thrown away: as many of the gaps of one Post as kBytesPerGapByte allows. At most
    // kMaxGapBytes.
    uint32_t max_gap_bytes = kMaxGapBytes;
  };
  struct Counters {
    uint64_t reads_posted = 0;
    uint64_t reads_signalled = 0;
    uint64_t gap_bytes = 0;  // of what was posted, to be thrown away
    uint32_t most_outstanding = 0;
  };

  // RESOURCE_EXHAUSTED: the device or the process has no room for it, with what to do.
  static absl::StatusOr<std::unique_ptr<QueuePair>> Create(std::shared_ptr<const RdmaDevice> device,
                                                           const Options& options);
  ~QueuePair() { Destroy(); }
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  const RdmaDevice& device() const { return *device_; }
  const QueuePairAddress& address() const { return address_; }

  // Connects the pair, once. INVALID_ARGUMENT: the peer's address makes no sense. UNAVAILABLE: no
  // route to it, or another kind of network.
  absl::Status Connect(const QueuePairAddress& peer);

  // ---- the reader's end, once connected
  // Reads `from`, in the peer's memory, to `into`; both have the same sum of bytes. READs that find
  // no place in the send queue wait here. `tag` comes out of Poll when all bytes have landed.
  // UNAVAILABLE: the connection has failed.
  absl::Status Post(uint64_t tag, absl::Span<const KeyedRange> from,
                    absl::Span<const KeyedRange> into, absl::Time now);
  // Readable when there may be something to Poll.
  int completion_fd() const { return channel_ == nullptr ? -1 : channel_->fd; }
  // Appends the tags of what has landed since, in the order of Post, and posts what has waited for
  // a place. Arms completion_fd() again. An error: a READ has failed, with which and why; nothing
  // lands any more but what is under way, until Destroy.
  absl::Status Poll(absl::Time now, std::vector<uint64_t>* tags);
  // Since when the oldest READ has been waited for, without another one landing meanwhile.
  std::optional<absl::Time> waiting_since() const;

  // Idempotent.
  void Destroy();

  const Counters& counters() const { return counters_; }

 private:
  struct Batch {
    uint64_t tag = 0;
    ReadPlan plan;
    size_t next = 0;  // of plan.reads, to be posted
  };
  // An entry of the send queue.
  struct Place {
    KeyedRange from;
    std::optional<uint64_t> tag;  // of the batch whose last READ it is
  };

  QueuePair(std::shared_ptr<const RdmaDevice> device, const Options& options);
  absl::Status Prepare();
  absl::Status Modify(ibv_qp_attr* attributes, int mask, const char* into);
  absl::Status CheckPeer(const QueuePairAddress& peer) const;
  absl::Status ReadyToReceive(const QueuePairAddress& peer);
  absl::Status ReadyToSend(const QueuePairAddress& peer);
  absl::Status PostWaiting(absl::Time now);
  // Takes completion events off the channel and asks for the next.
  absl::Status Rearm();
  absl::Status TakeCompletions(absl::Time now, std::vector<uint64_t>* tags);
  absl::Status Fail(const ibv_wc& completion);

  const std::shared_ptr<const RdmaDevice> device_;
  const Options options_;
  const uint32_t depth_;
  const ReadLimits limits_;
  std::unique_ptr<RegisteredBuffer> discard_;  // the reader's, for gaps; what is in it says nothing
  ibv_comp_channel* channel_ = nullptr;        // the reader's
  ibv_cq* completions_ = nullptr;
  ibv_qp* pair_ = nullptr;
  QueuePairAddress address_;
  Gid peer_{};
  bool connected_ = false;
  absl::Status failed_;

  SignalPlan signals_;
  std::deque<Batch> waiting_;  // the first one may be posted in part
  std::deque<Place> send_queue_;
  uint64_t first_number_ = 0;  // of send_queue_.front(); what wr_id counts
  absl::Time last_progress_;
  uint64_t events_unacknowledged_ = 0;
  Counters counters_;
};

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_QUEUE_PAIR_H_
