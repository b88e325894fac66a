// The bytes of one registered buffer as the data plane sees them: where each segment lies, which
// segments may be served, and the publisher's sum of each.
//
// A store is written by one fill at a time or published whole; readers wait on it for segments that
// have not arrived yet (cut-through). Thread-safe. The memory is the caller's and outlives every
// admitted transfer (the mutability contract sees to that).
//
// Some or all of the storages may be device memory. The store never dereferences it: sums and bytes
// of segments that have a byte there (PlaceOf) go through a DeviceSide, in calls that block until
// the device is done and so do not belong on event loops (Seal, CopyOut, CopyIn).
#ifndef TH_TRANSFER_SEGMENT_STORE_H_
#define TH_TRANSFER_SEGMENT_STORE_H_

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "th/identifiers/identifiers.h"
#include "th/memory/device_side.h"
#include "th/memory/memory_region.h"
#include "th/pipeline_replicator/request_queue.h"
#include "th/weights/checksum.h"
#include "th/weights/segments.h"
#include "th/weights/shard_layout.h"

namespace th {

// The most bytes that one ChecksumsOf call reads to sum them: well below a millisecond of a
// processor.
inline constexpr uint64_t kBytesChecksummedAtOnce = uint64_t{4} << 20;
// The bytes of device memory that Seal sums in one go, which whoever ends the publication waits
// for: some 0.1 ms of a GPU's memory bandwidth, beside which asking it weighs little.
inline constexpr uint64_t kDeviceBytesChecksummedAtOnce = uint64_t{256} << 20;

// The bytes of segments that go to or come from a device in one go (at least one segment): some
// 0.1 ms of its link, beside which waiting for it weighs little. Half of what a connection stages
// ahead, so that one part is sent while the next is copied.
inline constexpr uint64_t kDeviceBytesCopiedAtOnce = uint64_t{2} << 20;

// The words that a reader of another process's memory looks at, after it has read a segment there
// and before it counts: they say if the buffer is still what the reader was admitted to. `life` is
// a random number for each SegmentStore, so that memory which has become something else is never
// taken for one. A holder that invalidates writes the generation first, then touches the content.
struct ControlBlock {
  std::atomic<uint64_t> generation{0};
  std::atomic<uint64_t> life{0};
};

// Where the storages of a layout lie.
struct StorageMemory {
  // regions[i]: of layout->storages()[i], of exactly its bytes (a null address where it has none).
  std::vector<MemoryRegion> regions;
  // The device side of the same list; null only where none of them is device memory. Shared with
  // whoever revokes it.
  std::shared_ptr<DeviceSide> device;
};

class SegmentStore {
 public:
  // Where a segment's bytes lie.
  enum class Place : uint8_t { kHost, kDevice, kMixed };  // kDevice: all on one

  // storages[i]: the address in host memory of layout->storages()[i], of exactly its bytes (null
  // where it has none).
  SegmentStore(std::shared_ptr<const ShardLayout> layout, std::vector<void*> storages);
  // Memory of any kind.
  SegmentStore(std::shared_ptr<const ShardLayout> layout, StorageMemory memory);
  ~SegmentStore();

  const ShardLayout& layout() const { return *layout_; }
  std::shared_ptr<const ShardLayout> shared_layout() const { return layout_; }
  // The memory of the store: the storages that have bytes, with their kind, and the control block.
  std::vector<MemoryRegion> regions() const;
  // Other addresses for the same layout. FAILED_PRECONDITION while anything is served or filled,
  // INVALID_ARGUMENT when their number is another; DEADLINE_EXCEEDED at once where AwaitDevices
  // would have to wait.
  absl::Status Rebind(std::vector<void*> storages);
  absl::Status Rebind(StorageMemory memory);

  // ---- owner
  // Everything may be served from now on; sums are made by Seal, or on demand just before a segment
  // leaves. Sums of an earlier publication are forgotten.
  void Publish(BufferGeneration generation);
  // The same content as before may be served whole again, under another generation: the sums that
  // are known stand. (What was begun in between has written nothing.)
  void Republish(BufferGeneration generation);
  // The sums of what is held, where they are known: what a fill compares the list of another
  // version with. To be taken before it begins.
  struct KnownChecksums {
    SegmentSet of;
    std::vector<SegmentChecksum> checksums;  // by segment
  };
  KnownChecksums known_checksums() const;
  // A fill begins: only what `held` names (with its sums still known from before) may be served.
  // Until that is so, the store is closed and its generation word is kNoGeneration.
  void BeginFill(BufferGeneration generation, const SegmentSet& held);
  // `segment` has arrived and matches `sum`: it may be served, and who waits for it is told.
  void MarkHeld(SegmentIndex segment, SegmentChecksum checksum);
  // The bytes of `segments` have been here all the time, and match these sums (by segment).
  void MarkHeld(const SegmentSet& segments, absl::Span<const SegmentChecksum> checksums);
  // Sums of what is being filled, from `first` on: readers may be told them before the segments are
  // here. They follow each other in order; a list that begins anew replaces the one before.
  void SetListed(SegmentIndex first, absl::Span<const SegmentChecksum> checksums);
  // Marks every segment missing and forgets its sum (a root that disagreed, a reset). The store
  // stays open in its generation, and readers keep waiting.
  void ForgetAll();
  // Nothing is served any more, and the generation word says so before anything else does; waiters
  // hear it. On return Seal and CopyOut read no byte of host memory any more either (it waits for
  // what is being summed just now); what devices read is AwaitDevices' matter.
  void Close(BufferGeneration generation);
  // Waits for what devices were still reading, to sum or copy it, when the last publication or fill
  // ended, and for what they write, be it for a fill that has given it up. Neither counts any more,
  // but until this has returned OK the memory must not be written or freed. DEADLINE_EXCEEDED:
  // names the devices; the call may be repeated.
  absl::Status AwaitDevices(absl::Duration timeout) const;
  // Sums what is not summed yet, in order; stops early (CANCELLED) when `stop` becomes true or the
  // store was closed or re-published meanwhile; FAILED_PRECONDITION when a segment is not held, or
  // its device memory is not what was registered any more. Call on a thread of its own. Returns the
  // root: empty when the layout takes no checksums.
  absl::StatusOr<Digest> Seal(const std::atomic<bool>& stop);
  // The fill has ended well: all segments are here, and their sums are those of the version's root.
  void MarkComplete() { complete_.store(true); }
  // True from Publish or MarkComplete on, until what is here may become something else.
  bool complete() const { return complete_.load(); }
  SegmentSet held() const;
  std::vector<SegmentChecksum> checksums() const;

  // The buffer's generation word, for readers that could read past the holder's control. No buffer
  // is ever in kNoGeneration.
  static constexpr BufferGeneration kNoGeneration{0};
  BufferGeneration generation() const { return BufferGeneration(control_->generation.load()); }
  // Where the word is. Its memory says nothing valid any more once the store is destroyed.
  const ControlBlock& control() const { return *control_; }

  // ---- transport, serving
  enum class Readiness : uint8_t { kReady, kNotYet, kClosed };
  Readiness ReadinessOf(SegmentIndex segment) const;
  bool closed() const { return !open_.load(); }
  // The first segment of `asked` that is ready, which a source answers with next.
  std::optional<SegmentIndex> FirstReady(const RequestQueue& asked) const;
  // The next sums of `asked`, in order: those that are known, and if `compute` those of segments
  // that are held in host memory, as far as one call may take (kBytesChecksummedAtOnce). At most
  // `max_count`; empty: the first one is not known yet.
  std::vector<SegmentChecksum> ChecksumsOf(SegmentRange asked, size_t max_count, bool compute);
  // Calls `wake` once, on another call's thread and never from within this call, when a segment of
  // `asked` becomes ready, the sum of `listed` can be had, or the store closes. Returns an id for
  // CancelNotify, or 0 (and never calls `wake`) when one of these is so already.
  using WaitId = uint64_t;
  WaitId NotifyWhenReady(const RequestQueue& asked, std::function<void()> wake,
                         std::optional<SegmentIndex> listed = std::nullopt);
  // `wake` is not called any more, unless it is being called just now.
  void CancelNotify(WaitId wait);
  // True when the sum of a ready segment is known, or the layout has none.
  bool IsChecksummed(SegmentIndex segment) const;
  // The sum of a ready segment; takes it now if nobody has, which works in host memory only: before
  // others IsChecksummed is to be asked.
  SegmentChecksum ChecksumOf(SegmentIndex segment);
  // Where the bytes of any segment lie, to be served or to be filled. Pieces in device memory are
  // not to be dereferenced: see PlaceOf.
  void AppendPieces(SegmentIndex segment, std::vector<iovec>* iov) const;
  Place PlaceOf(SegmentIndex segment) const {
    return places_.empty() ? Place::kHost : places_[segment.value];
  }
  // The device's side of the memory; null where all of it is the host's.
  const std::shared_ptr<DeviceSide>& device() const { return device_; }
  // The pieces with their kind and device, in order.
  std::vector<MemoryRegion> PiecesOf(SegmentIndex segment) const;

  // Has the device sum a ready segment, and those behind it that can be summed along; blocks.
  // CANCELLED: the publication ended meanwhile, or the segment is not held; errors of DeviceSide.
  absl::Status TakeChecksum(SegmentIndex segment);

  // ---- segments out of and into any memory through the host's; blocks until the device is done
  struct CopiedOut {
    BufferGeneration generation;   // that the bytes are of
    SegmentChecksum checksum = 0;  // the publisher's; taken of the copy if nobody has
  };
  struct Outgoing {
    SegmentIndex segment;
    absl::Span<std::byte> to;  // of the segment's length
  };
  // Copies ready segments, and waits for the device once. One result for each. CANCELLED: the
  // publication ended meanwhile, or the segment is not held; errors of DeviceSide: nothing of `to`
  // counts.
  std::vector<absl::StatusOr<CopiedOut>> CopyOut(absl::Span<const Outgoing> segments);
  absl::StatusOr<CopiedOut> CopyOut(SegmentIndex segment, absl::Span<std::byte> to);
  struct Incoming {
    SegmentIndex segment;
    absl::Span<const std::byte> from;  // of the segment's length
  };
  // Writes the bytes of segments that are being filled, and waits for the device once. Once it has
  // returned OK they are there. The fill that calls it sees to it that nobody reads or writes them
  // meanwhile.
  absl::Status CopyIn(absl::Span<const Incoming> segments);
  absl::Status CopyIn(SegmentIndex segment, absl::Span<const std::byte> from);
  // A transport has `device` write into the memory by itself, for as long as what is returned
  // lives, which keeps the store.
  static std::shared_ptr<const void> BeginDeviceWrite(std::shared_ptr<SegmentStore> store,
                                                      std::string device);

  // The devices that the memory lies on: "0000:07:00.0, 0000:08:00.0". Empty: all is the host's.
  const std::string& device_names() const { return device_names_; }

 private:
  // The state of a segment; bits.
  enum State : uint8_t { kHeld = 1, kChecksummed = 2 };
  struct Waiter {
    WaitId id = 0;
    RequestQueue asked;
    std::function<void()> wake;
    std::optional<SegmentIndex> listed;
  };
  using Waiters = std::vector<Waiter>;  // one for each connection that has nothing to send
  // A sum in two halves, which the segment's state publishes together.
  class StoredChecksum {
   public:
    void Store(SegmentChecksum checksum) {
      low_.store(absl::Uint128Low64(checksum), std::memory_order_relaxed);
      high_.store(absl::Uint128High64(checksum), std::memory_order_relaxed);
    }
    SegmentChecksum Load() const {
      return absl::MakeUint128(high_.load(std::memory_order_relaxed),
                               low_.load(std::memory_order_relaxed));
    }

   private:
    std::atomic<uint64_t> low_{0};
    std::atomic<uint64_t> high_{0};
  };

  // The generation is another from here on, before anything that follows is seen by others.
  void SetGeneration(BufferGeneration generation);
  SegmentChecksum Compute(SegmentIndex segment) const;
  bool HasChecksum(SegmentIndex segment) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Removes the waiters that have something now and returns their calls, to be made once the lock
  // is released.
  std::vector<std::function<void()>> TakeWaiters(
      absl::FunctionRef<bool(const Waiter&)> has_something) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Serves everything; of each segment's state keeps `keep`.
  void ServeAll(BufferGeneration generation, uint8_t keep);
  // Ends the publication or fill that there was: a running Seal is void. Waits, with the lock
  // released meanwhile, until the segment of host memory that Seal reads just now has been read,
  // which a processor does in the time of a sum. For devices, which may take any time, AwaitDevices
  // waits.
  void Renew() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool NoHostMemoryIsBeingRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return reading_host_ == 0;
  }
  bool IsUsedByDevices() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return lingering_ > 0 || !writing_.empty();
  }
  absl::Status StillInUse() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // The bytes of a held segment are read outside of the lock until EndReading: Rebind and whatever
  // ends the publication, or AwaitDevices after it, wait for that, as the owner may write or free
  // the memory afterwards. CANCELLED: the publication is over.
  absl::Status BeginReading(SegmentIndex segment, uint64_t publication)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // CANCELLED: the publication has ended meanwhile.
  absl::Status EndReading(SegmentIndex segment, uint64_t publication)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t publication() const;
  // Sums `segment` outside of the lock, and along with it those behind it that its device can sum
  // in the same go. Returns the first one behind these. CANCELLED when the publication is over.
  absl::StatusOr<SegmentIndex> SealFrom(SegmentIndex segment, uint64_t publication);
  SegmentRange ChecksummedTogether(SegmentIndex first) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::vector<SegmentChecksum>> ChecksumOnDevice(SegmentRange segments);
  void StoreChecksum(SegmentIndex segment, SegmentChecksum checksum);
  void WakeListeners();

  void BeginLife();
  void Bind(StorageMemory memory);
  Place FindPlace(SegmentIndex segment) const;
  // The pieces of a segment in device memory, copied from or to a packed segment at `host`; those
  // in host memory are handed to `in_host_memory`, with their place in the packed segment.
  std::vector<DeviceCopy> CopiesOf(
      SegmentIndex segment, std::byte* host,
      absl::FunctionRef<void(void* address, std::byte* packed, uint64_t bytes)> in_host_memory)
      const;
  absl::StatusOr<CopiedOut> BeginCopyOut(const Outgoing& segment, uint64_t publication)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends a copy that was begun. `summed`: the sum of the copy, where the segment had none.
  absl::StatusOr<CopiedOut> EndCopyOut(SegmentIndex segment, uint64_t publication, CopiedOut copied,
                                       const absl::Status& read,
                                       std::optional<SegmentChecksum> checksummed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckIsWhole(SegmentIndex segment, uint64_t bytes) const;
  // Copies of a segment out of device memory; those out of host memory are made.
  std::vector<DeviceCopy> CopiesTo(SegmentIndex segment, absl::Span<std::byte> to) const;

  const std::shared_ptr<const ShardLayout> layout_;
  const uint64_t segment_count_;
  // Written by Rebind only, while nothing is served.
  std::vector<void*> storages_;
  std::vector<MemoryRegion> regions_;   // by storage; empty where all is host memory
  std::vector<Place> places_;           // by segment; empty where all is host memory
  std::string device_names_;            // of these
  std::shared_ptr<DeviceSide> device_;  // shared with whoever revokes it
  // An allocation of its own, cleared before it is freed.
  const std::unique_ptr<ControlBlock> control_;
  std::atomic<bool> open_{false};
  std::atomic<bool> complete_{false};
  // States are set last (release) and read first (acquire): a segment that is seen as held has its
  // bytes, one that is seen as summed has its sum.
  const std::unique_ptr<std::atomic<uint8_t>[]> states_;
  const std::unique_ptr<StoredChecksum[]> checksums_;

  mutable absl::Mutex mu_;
  Waiters waiters_ ABSL_GUARDED_BY(mu_);
  WaitId next_wait_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t publication_ ABSL_GUARDED_BY(mu_) = 0;
  // Segments, or lists of segments, that are read: of host memory, with a device, and with a device
  // of a publication that has ended.
  uint32_t reading_host_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t reading_devices_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t lingering_ ABSL_GUARDED_BY(mu_) = 0;
  std::multiset<std::string> writing_ ABSL_GUARDED_BY(mu_);   // the device of each write
  std::vector<SegmentChecksum> listed_ ABSL_GUARDED_BY(mu_);  // from the first segment on
};

}  // namespace th

#endif  // TH_TRANSFER_SEGMENT_STORE_H_
