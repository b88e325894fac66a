// Takes segments that do not lie in host memory through pinned slots, on threads of its own, for
// transports that carry host memory: out of a store before they leave, into a store after they have
// landed.
//
//   const std::shared_ptr<DeviceStaging> staging = SharedDeviceStaging();
//   // A source:
//   staging->CopyOut({.store = store, .device = store->device(), .segment = segment,
//                     .wanted = weak_from_this(),
//                     .done = [](absl::StatusOr<StagedSegment> staged) { ... }});
//   // A fill:
//   TH_RETURN_IF_ERROR(staging->PrepareLanding(*store));           // blocks
//   std::shared_ptr<StagingSlot> slot = staging->TryTakeLandingSlot(store->layout());  // at once
//   // Null: it asks for nothing until it has one.
//   staging->AwaitLandingSlot({.store = store, .wanted = self, .done = [](auto slot) { ... }});
//   ... bytes land in the slot ...
//   staging->Post(store->device_names(), [=] { store->CopyIn(segment, slot->bytes(n)); ... });
//
// Slots go back when the last share of them ends. Each direction has a bound of its own, so that
// readers that take nothing, and so keep their slots, never hold up what is received. Whoever keeps
// slots for such a reader gives them back once others wait (IsOutgoingSlotAwaited).
//
// Thread-safe. Threads: th-stage-gpu, one for each GPU, copies out and takes sums, th-land pins
// slots, and th-land-gpu, one for each GPU, runs what Post was given, so that a GPU that hangs
// holds up what comes out of, and goes into, no other; each blocks on the device and on nothing
// else.
#ifndef TH_TRANSFER_DEVICE_STAGING_H_
#define TH_TRANSFER_DEVICE_STAGING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "th/memory/device_side.h"
#include "th/transfer/segment_store.h"
#include "th/transfer/task_thread.h"

namespace th {

// Pinned memory of the process for segments on their way out, and for those that land. The largest
// segments (64 MiB) have two slots each way.
inline constexpr uint64_t kMaxOutgoingStagingBytes = uint64_t{128} << 20;
inline constexpr uint64_t kMaxLandingStagingBytes = uint64_t{128} << 20;
// The slots that are prepared for one fill, where its shard is as large: twice what a near source
// may have open at a time (ReplicatorLimits).
inline constexpr uint64_t kLandingBytesPerFill = uint64_t{32} << 20;
// Though segments may be larger: one slot lands while the other is copied.
inline constexpr uint64_t kMinLandingSlots = 2;

// Pinned memory of one size. Gives itself back to its pool.
class StagingSlot {
 public:
  explicit StagingSlot(std::unique_ptr<PinnedMemory> memory) : memory_(std::move(memory)) {}
  // The first `count` bytes.
  absl::Span<std::byte> bytes(uint64_t count) const { return memory_->bytes().subspan(0, count); }
  uint64_t size() const { return memory_->bytes().size(); }

 private:
  std::unique_ptr<PinnedMemory> memory_;
};

// Slots up to a number of bytes together. Thread-safe.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  // `freed` is called, on any thread, whenever a slot comes back.
  StagingPool(uint64_t max_bytes, std::function<void()> freed)
      : max_bytes_(max_bytes), freed_(std::move(freed)) {}

  // A free slot of at least `bytes`; null: there is none. Asks no device.
  std::shared_ptr<StagingSlot> TryTake(uint64_t bytes);
  // The same, and pins another where the limit allows; slots of other sizes that are free make room
  // for it, where the limit or the device wants it. Blocks. Null: the limit is reached. Errors of
  // AllocatePinned.
  absl::StatusOr<std::shared_ptr<StagingSlot>> Take(DeviceSide& device, uint64_t bytes);

  uint64_t pinned_bytes() const;

 private:
  absl::StatusOr<std::unique_ptr<PinnedMemory>> Pin(DeviceSide& device, uint64_t size);
  std::shared_ptr<StagingSlot> Share(std::unique_ptr<StagingSlot> slot);
  void GiveBack(std::unique_ptr<StagingSlot> slot);
  std::unique_ptr<StagingSlot> TakeFree(uint64_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t max_bytes_;
  const std::function<void()> freed_;
  mutable absl::Mutex mu_;
  std::map<uint64_t, std::vector<std::unique_ptr<StagingSlot>>> free_ ABSL_GUARDED_BY(mu_);
  uint64_t pinned_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // free and in use
};

// A segment's bytes in host memory.
struct StagedSegment {
  SegmentStore::CopiedOut copied;
  std::shared_ptr<const StagingSlot> slot;  // shared with what sends it
  absl::Span<const std::byte> bytes;        // in it
};

class DeviceStaging : public std::enable_shared_from_this<DeviceStaging> {
 public:
  struct Limits {
    uint64_t outgoing_bytes = kMaxOutgoingStagingBytes;
    uint64_t landing_bytes = kMaxLandingStagingBytes;
  };
  static std::shared_ptr<DeviceStaging> Create(const Limits& limits);

  struct CopyRequest {
    std::shared_ptr<SegmentStore> store;  // shared with transfers
    std::shared_ptr<DeviceSide> device;   // the store's, as it is now; shared with it
    SegmentIndex segment;
    // Ends with the caller's wish: from then on nothing is copied, and `done` is not called.
    std::weak_ptr<const void> wanted;
    // On th-stage-gpu. CANCELLED: the publication has ended, or the segment is not held any more.
    std::function<void(absl::StatusOr<StagedSegment>)> done;
  };
  // Callers, told apart by `wanted`, take turns at a GPU, so that one that asks for much does not
  // keep others waiting; each is served in the order of its calls. What follows each other of one
  // store is copied in one go, up to kDeviceBytesCopiedAtOnce. A request waits while all slots are
  // in use, which those of all GPUs share; a GPU that hangs keeps the slots that it copies into.
  // Each caller bounds its own requests.
  void CopyOut(CopyRequest request);
  // True while a segment that is still wanted waits for a slot, all of which are in use.
  bool IsOutgoingSlotAwaited() const;
  struct ChecksumRequest {
    std::shared_ptr<SegmentStore> store;  // shared with transfers
    SegmentIndex segment;
    std::weak_ptr<const void> wanted;        // as of a CopyRequest
    std::function<void(absl::Status)> done;  // on th-stage-gpu, as of a CopyRequest
  };
  // Has a segment summed where it lies (SegmentStore::TakeChecksum), for readers that copy it from
  // there. Requests are served in the order of the calls.
  void TakeChecksum(ChecksumRequest request);

  // Pins slots for segments of `store`, up to kLandingBytesPerFill of free ones, kMinLandingSlots
  // at least. Blocks. Errors of AllocatePinned where there is not even one.
  absl::Status PrepareLanding(const SegmentStore& store);
  // One for any segment of `layout`. Null: all slots are in use.
  std::shared_ptr<StagingSlot> TryTakeLandingSlot(const ShardLayout& layout);
  // For a fill that found none, which may be because all that is free is of other sizes.
  struct SlotRequest {
    std::shared_ptr<SegmentStore> store;  // shared with the fill
    // `done` is not called once this has ended.
    std::weak_ptr<const void> wanted;
    // On th-land, with a slot that is nobody else's. Errors of AllocatePinned, where no slot is in
    // use that could come back.
    std::function<void(absl::StatusOr<std::shared_ptr<StagingSlot>>)> done;
  };
  // Prepares slots anew, in the order of the calls; again with each slot that comes back until
  // there is one. Returns at once.
  void AwaitLandingSlot(SlotRequest request);
  // Runs `task`, which may block on these devices (SegmentStore::device_names), on their thread, in
  // order. A GPU that stands by itself and beside others has two.
  void Post(const std::string& devices, std::function<void()> task);
  // The same of one that pins slots, on th-land.
  void PostPinning(std::function<void()> task) { land_thread_.Post(std::move(task)); }

  uint64_t outgoing_bytes() const { return outgoing_pool_->pinned_bytes(); }
  uint64_t landing_bytes() const { return landing_pool_->pinned_bytes(); }

 private:
  // The copies out of one GPU, or of a set of them that buffers lie on, and their thread.
  struct CopyLane {
    // The requests of each `wanted`, which take turns from queue to queue; no queue is empty.
    std::deque<std::deque<CopyRequest>> queues;
    bool first_lacks_slot = false;  // the first request of the first queue
    TaskThread thread{"th-stage-gpu"};
  };

  DeviceStaging() : land_thread_("th-land") {}
  CopyLane& LaneOf(const SegmentStore& store) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PostCopy(CopyLane& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PostCopies();
  // A segment and the slot that it is copied into.
  struct Outgoing {
    CopyRequest request;
    std::shared_ptr<StagingSlot> slot;
  };
  void CopyNext(CopyLane& lane);
  std::vector<Outgoing> TakeOutgoing(CopyLane& lane);
  std::optional<Outgoing> TakeOneOutgoing(CopyLane& lane, const CopyRequest& first);
  const CopyRequest* DropUnwantedAndFindFirst(CopyLane& lane);
  static CopyRequest TakeFirst(CopyLane& lane);
  void PostSlotRequest();
  void AnswerSlotRequest();
  absl::StatusOr<std::shared_ptr<StagingSlot>> PrepareOne(const SegmentStore& store);

  mutable absl::Mutex mu_;
  std::deque<SlotRequest> slot_requests_ ABSL_GUARDED_BY(mu_);  // one of each fill
  // Shared with their slots. Not changed after Create.
  std::shared_ptr<StagingPool> outgoing_pool_;
  std::shared_ptr<StagingPool> landing_pool_;
  TaskThread land_thread_;
  // The next two by the names of the GPUs that a buffer lies on: at most one for each set of GPUs
  // that buffers have lain on. They end first. Lanes stay where they are and are guarded by mu_,
  // but for their threads.
  std::map<std::string, CopyLane> lanes_ ABSL_GUARDED_BY(mu_);
  absl::Mutex gpu_threads_mu_;
  std::map<std::string, TaskThread> gpu_threads_ ABSL_GUARDED_BY(gpu_threads_mu_);
};

// The process's. The first caller makes it, with its `limits`; it ends with its last owner.
std::shared_ptr<DeviceStaging> SharedDeviceStaging(const DeviceStaging::Limits& limits = {});

}  // namespace th

#endif  // TH_TRANSFER_DEVICE_STAGING_H_
