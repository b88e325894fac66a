// The room of a fill that hands on what it receives: a few segments' worth of host memory, used
// again and again in canonical order.
//
//   auto ring = std::make_shared<SegmentRing>(layout, wanted, slots, memory);
//   ... Fill::Start({.store = store, .ring = ring}, ...) ...   // th-fill and data threads write
//   while (const char* bytes = ring->Await(timeout)) {  // ring->next(), in order
//     <use the bytes>;
//     ring->HandOn();                                          // the room is the fill's again
//   }
//
// Each wanted segment has one slot, that of its place among the wanted ones modulo the number of
// slots; the fill asks for no segment whose slot is not free (see PipelineReplicator's window). So
// no more than the slots is ever held, and the next segment in order always has room.
//
// Thread-safe; Await and HandOn are the consumer's alone.
#ifndef TH_TRANSFER_SEGMENT_RING_H_
#define TH_TRANSFER_SEGMENT_RING_H_

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/memory/memory_region.h"
#include "th/weights/segments.h"
#include "th/weights/shard_layout.h"

namespace th {

class SegmentRing {
 public:
  // `memory`: slots * layout->segment_bytes() bytes; shared with the fill until it has stopped. At
  // least one slot.
  SegmentRing(std::shared_ptr<const ShardLayout> layout, SegmentSet wanted, uint64_t slots,
              std::shared_ptr<char> memory);

  const SegmentSet& wanted() const { return wanted_; }
  uint64_t slots() const { return slots_; }
  MemoryRegion region() const {
    return {.address = memory_.get(), .bytes = slots_ * layout_->segment_bytes()};
  }

  // ---- the fill
  // Where the bytes of a wanted segment go. No other may be asked for.
  void AppendSlot(SegmentIndex segment, std::vector<iovec>* iov) const;
  // It has arrived and matches its sum.
  void Arrived(SegmentIndex segment);
  // Calls `listener` with the end of what has been handed on, on the consumer's thread, with no
  // lock held. Set before the first segment arrives.
  void OnRoom(std::function<void(SegmentIndex end)> listener);

  // ---- the owner
  // Nothing more arrives. What has arrived can still be had when `whole`; else Await ends now.
  void End(bool whole);

  // ---- the consumer
  // The bytes of the next wanted segment, which is at the consumer's disposal until HandOn. Null:
  // there is none, End was called before it arrived, or `timeout` passed.
  const char* Await(absl::Duration timeout);
  // The one that Await is about, whether it has arrived or not; the layout's segment count when all
  // are handed on.
  SegmentIndex next() const;
  void HandOn();

  // The most segments that had arrived and were not handed on at one time.
  uint64_t peak_segments() const;

 private:
  uint64_t PlaceOf(SegmentIndex segment) const;
  SegmentIndex SegmentAt(uint64_t place) const;
  char* SlotOf(uint64_t place) const;
  bool HasNext() const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<const ShardLayout> layout_;
  const SegmentSet wanted_;
  const uint64_t count_;  // of the wanted segments
  const uint64_t slots_;
  const std::shared_ptr<char> memory_;
  std::vector<uint64_t> places_before_;  // of wanted_.ranges()

  mutable absl::Mutex mu_;
  std::function<void(SegmentIndex)> listener_ ABSL_GUARDED_BY(mu_);
  std::vector<bool> arrived_ ABSL_GUARDED_BY(mu_);  // by slot
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 0;          // a place
  uint64_t present_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t peak_ ABSL_GUARDED_BY(mu_) = 0;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool whole_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace th

#endif  // TH_TRANSFER_SEGMENT_RING_H_
