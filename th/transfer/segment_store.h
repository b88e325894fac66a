// The bytes of one registered buffer as the data plane sees them: where each segment lies, which
// segments may be served, and the publisher's sum of each.
//
// A store is written by one fill at a time or published whole; readers wait on it for segments that
// have not arrived yet (cut-through). Thread-safe. The memory is the caller's and outlives every
// admitted transfer (the mutability contract sees to that).
#ifndef TH_TRANSFER_SEGMENT_STORE_H_
#define TH_TRANSFER_SEGMENT_STORE_H_

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "th/memory/memory_region.h"
#include "th/weights/checksum.h"
#include "th/weights/identifiers.h"
#include "th/weights/request_queue.h"
#include "th/weights/segments.h"
#include "th/weights/shard_layout.h"

namespace th {

// The most bytes that one SumsOf call reads to sum them: well below a millisecond of a processor.
inline constexpr uint64_t kBytesSummedAtOnce = uint64_t{4} << 20;

// The words that a reader of another process's memory looks at, after it has read a segment there
// and before it counts: they say if the buffer is still what the reader was admitted to. `life` is
// a random number for each SegmentStore, so that memory which has become something else is never
// taken for one. A holder that invalidates writes the generation first, then touches the content.
struct ControlBlock {
  std::atomic<uint64_t> generation{0};
  std::atomic<uint64_t> life{0};
};

class SegmentStore {
 public:
  // storages[i]: the address of layout->storages()[i], of exactly its bytes (null where it has
  // none).
  SegmentStore(std::shared_ptr<const ShardLayout> layout, std::vector<void*> storages);
  ~SegmentStore();

  const ShardLayout& layout() const { return *layout_; }
  std::shared_ptr<const ShardLayout> shared_layout() const { return layout_; }
  // What lies where: the storages that have bytes, and the control block.
  std::vector<MemoryRegion> regions() const;
  // Other addresses for the same layout. FAILED_PRECONDITION while anything is served or filled,
  // INVALID_ARGUMENT when their number is another.
  absl::Status Rebind(std::vector<void*> storages);

  // ---- owner
  // Everything may be served from now on; sums are made by Seal, or on demand just before a segment
  // leaves. Sums of an earlier publication are forgotten.
  void Publish(BufferGeneration generation);
  // The same content as before may be served whole again, under another generation: the sums that
  // are known stand. (What was begun in between has written nothing.)
  void Republish(BufferGeneration generation);
  // The sums of what is held, where they are known: what a fill compares the list of another
  // version with. To be taken before it begins.
  struct KnownSums {
    SegmentSet of;
    std::vector<SegmentSum> sums;  // by segment
  };
  KnownSums known_sums() const;
  // A fill begins: only what `held` names (with its sums still known from before) may be served.
  // Until that is so, the store is closed and its generation word is kNoGeneration.
  void BeginFill(BufferGeneration generation, const SegmentSet& held);
  // `segment` has arrived and matches `sum`: it may be served, and who waits for it is told.
  void MarkHeld(SegmentIndex segment, SegmentSum sum);
  // The bytes of `segments` have been here all the time, and match these sums (by segment).
  void MarkHeld(const SegmentSet& segments, absl::Span<const SegmentSum> sums);
  // Sums of what is being filled, from `first` on: readers may be told them before the segments are
  // here. They follow each other in order; a list that begins anew replaces the one before.
  void SetListed(SegmentIndex first, absl::Span<const SegmentSum> sums);
  // Marks every segment missing and forgets its sum (a root that disagreed, a reset). The store
  // stays open in its generation, and readers keep waiting.
  void ForgetAll();
  // Nothing is served any more, and the generation word says so before anything else does; waiters
  // hear it. On return Seal reads no byte any more either (it waits for the one segment that is
  // being summed).
  void Close(BufferGeneration generation);
  // Sums what is not summed yet, in order; stops early (CANCELLED) when `stop` becomes true or the
  // store was closed or re-published meanwhile; FAILED_PRECONDITION when a segment is not held.
  // Call on a thread of its own. Returns the root: empty when the layout takes no checksums.
  absl::StatusOr<Digest> Seal(const std::atomic<bool>& stop);
  SegmentSet held() const;
  std::vector<SegmentSum> sums() const;

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
  // What a source answers with next: the first segment of `asked` that is ready.
  std::optional<SegmentIndex> FirstReady(const RequestQueue& asked) const;
  // The next sums of `asked`, in order: those that are known, and if `compute` those of segments
  // that are held, as far as one call may take (kBytesSummedAtOnce). At most `max_count`; empty:
  // the first one is not known yet.
  std::vector<SegmentSum> SumsOf(SegmentRange asked, size_t max_count, bool compute);
  // Calls `wake` once, on another call's thread and never from within this call, when a segment of
  // `asked` becomes ready, the sum of `listed` can be had, or the store closes. Returns an id for
  // CancelNotify, or 0 (and never calls `wake`) when one of these is so already.
  using WaitId = uint64_t;
  WaitId NotifyWhenReady(const RequestQueue& asked, std::function<void()> wake,
                         std::optional<SegmentIndex> listed = std::nullopt);
  // `wake` is not called any more, unless it is being called just now.
  void CancelNotify(WaitId wait);
  // True when the sum of a ready segment is known, or the layout has none.
  bool IsSummed(SegmentIndex segment) const;
  // The bytes and the sum of a ready segment; takes the sum now if nobody has.
  SegmentSum SumOf(SegmentIndex segment);
  // Where the bytes of any segment lie, to be served or to be filled.
  void AppendPieces(SegmentIndex segment, std::vector<iovec>* iov) const;

 private:
  // Of a segment; bits.
  enum State : uint8_t { kHeld = 1, kSummed = 2 };
  struct Waiter {
    WaitId id = 0;
    RequestQueue asked;
    std::function<void()> wake;
    std::optional<SegmentIndex> listed;
  };
  using Waiters = std::vector<Waiter>;  // one for each connection that has nothing to send
  // A sum in two halves, which the segment's state publishes together.
  class StoredSum {
   public:
    void Store(SegmentSum sum) {
      low_.store(absl::Uint128Low64(sum), std::memory_order_relaxed);
      high_.store(absl::Uint128High64(sum), std::memory_order_relaxed);
    }
    SegmentSum Load() const {
      return absl::MakeUint128(high_.load(std::memory_order_relaxed),
                               low_.load(std::memory_order_relaxed));
    }

   private:
    std::atomic<uint64_t> low_{0};
    std::atomic<uint64_t> high_{0};
  };

  // The generation is another from here on, before anything that follows is seen by others.
  void SetGeneration(BufferGeneration generation);
  SegmentSum Compute(SegmentIndex segment) const;
  bool HasSum(SegmentIndex segment) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Removes the waiters that have something now and returns their calls, to be made once the lock
  // is released.
  std::vector<std::function<void()>> TakeWaiters(
      absl::FunctionRef<bool(const Waiter&)> has_something) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Serves everything; of each segment's state keeps `keep`.
  void ServeAll(BufferGeneration generation, uint8_t keep);
  // Ends the publication or fill that there was: a running Seal is void. Waits, with the lock
  // released meanwhile, until Seal has summed the segment that it reads.
  void Renew() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool NothingIsBeingSummed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !summing_; }
  // Sums `segment` outside of the lock. CANCELLED when the publication is over.
  absl::Status SealOne(SegmentIndex segment, uint64_t publication);

  const std::shared_ptr<const ShardLayout> layout_;
  const uint64_t segment_count_;
  // Written by Rebind only, while nothing is served.
  std::vector<void*> storages_;
  // An allocation of its own, cleared before it is freed.
  const std::unique_ptr<ControlBlock> control_;
  std::atomic<bool> open_{false};
  // States are set last (release) and read first (acquire): a segment that is seen as held has its
  // bytes, one that is seen as summed has its sum.
  const std::unique_ptr<std::atomic<uint8_t>[]> states_;
  const std::unique_ptr<StoredSum[]> sums_;

  mutable absl::Mutex mu_;
  Waiters waiters_ ABSL_GUARDED_BY(mu_);
  WaitId next_wait_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t publication_ ABSL_GUARDED_BY(mu_) = 0;
  bool summing_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<SegmentSum> listed_ ABSL_GUARDED_BY(mu_);  // from the first segment on
};

}  // namespace th

#endif  // TH_TRANSFER_SEGMENT_STORE_H_
