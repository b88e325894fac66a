// The segments of one connection that are prepared ahead of being sent because they do not lie in
// host memory: copied into pinned slots, or summed where they lie, by the process's DeviceStaging.
//
//   staging_ = OutgoingStaging::Create(loop, [weak](const absl::Status& status) { ... });
//   // After every event:
//   staging_->StageAhead(store, session.requests(),
//                        [&](SegmentIndex segment) { return LeavesFromACopy(segment); });
//   if (staging_->IsStaged(segment)) Send(staging_->Take(segment));
//   staging_->Drop();  // the connection closes, or its reader takes nothing and others wait
//
// How much is ahead is bounded for each connection (kMaxBytesStaging); the slots themselves are
// bounded for the process, and a segment waits while all of them are in use.
//
// Owned by its connection; every method runs on the connection's loop, and so does the callback.
#ifndef TH_TRANSFER_STREAM_OUTGOING_STAGING_H_
#define TH_TRANSFER_STREAM_OUTGOING_STAGING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "th/identifiers/identifiers.h"
#include "th/pipeline_replicator/request_queue.h"
#include "th/transfer/device_staging.h"
#include "th/transfer/segment_store.h"
#include "th/transfer/stream/event_loop.h"

namespace th::stream {

// Limits on the segments of one connection that are copied to the host ahead of being sent, beside
// those in the outbox. Once kMaxBytesStaging are staged no further segment is, but for
// kMinSegmentsStaging of any size: one is copied while another is sent. Small segments are staged
// up to kMaxSegmentsStaging, so that the connection does not wait for the hop to the copying
// thread.
inline constexpr uint64_t kMaxBytesStaging = uint64_t{4} << 20;
inline constexpr size_t kMinSegmentsStaging = 2;
inline constexpr size_t kMaxSegmentsStaging = 64;

class OutgoingStaging : public std::enable_shared_from_this<OutgoingStaging> {
 public:
  // `changed` is called on `loop`, which is shared with the connection, whenever a segment has been
  // copied or summed, and when that failed: with the reason then. A publication that has ended, or
  // a segment that was taken back, is no failure.
  static std::shared_ptr<OutgoingStaging> Create(std::shared_ptr<EventLoop> loop,
                                                 std::function<void(const absl::Status&)> changed);

  // Begins to prepare the next segments of `requests` that need it, up to the limits; forgets
  // copies of segments that are not held any more. `copied` says of a segment whether it leaves
  // from a copy; any other is only summed, unless it lies in host memory or has its sum.
  void StageAhead(const std::shared_ptr<SegmentStore>& store, const RequestQueue& requests,
                  absl::FunctionRef<bool(SegmentIndex)> copied);
  // True if nothing is prepared or on its way, and so no callback will come.
  bool empty() const { return stagings_.empty(); }
  // True if the copy of the segment is there.
  bool IsStaged(SegmentIndex segment) const;
  // The copy of a segment that IsStaged, which is from then on the caller's.
  StagedSegment Take(SegmentIndex segment);
  // Gives back the slots and ends all requests; a copy under way gives its slot back when it ends.
  // No callback comes for what was begun before.
  void Drop();
  // True if a segment of this or another connection waits for a slot, as all are in use.
  bool IsSlotAwaited() const {
    return device_staging_ != nullptr && device_staging_->IsOutgoingSlotAwaited();
  }

 private:
  // A segment on its way into a slot, or there; or one whose sum is being taken.
  struct Staging {
    SegmentIndex segment;
    uint64_t bytes = 0;
    uint64_t number = 0;  // of what was asked for, within this connection
    std::optional<StagedSegment> staged;
  };

  OutgoingStaging(std::shared_ptr<EventLoop> loop,
                  std::function<void(const absl::Status&)> changed);
  void ForgetStale(const SegmentStore& store);
  std::vector<SegmentIndex> Next(const SegmentStore& store, const RequestQueue& requests,
                                 absl::FunctionRef<bool(SegmentIndex)> copied) const;
  void Copy(const std::shared_ptr<SegmentStore>& store, SegmentIndex segment, uint64_t number);
  void Checksum(const std::shared_ptr<SegmentStore>& store, SegmentIndex segment, uint64_t number);
  void HandleCopied(uint64_t number, absl::StatusOr<StagedSegment> staged);
  void HandleEnded(uint64_t number, const absl::Status& status);
  std::deque<Staging>::iterator FindNumber(uint64_t number);
  std::deque<Staging>::const_iterator FindStaged(SegmentIndex segment) const;
  void Erase(std::deque<Staging>::const_iterator staging);

  const std::shared_ptr<EventLoop> loop_;
  const std::function<void(const absl::Status&)> changed_;
  std::deque<Staging> stagings_;  // in the order in which they were asked for
  uint64_t bytes_ = 0;            // of these
  uint64_t begun_ = 0;
  std::shared_ptr<DeviceStaging> device_staging_;  // of the process; null: nothing was ever staged
  // Replaced by Drop: requests that hold the old one are ignored.
  std::shared_ptr<int> wanted_ = std::make_shared<int>(0);
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_OUTGOING_STAGING_H_
