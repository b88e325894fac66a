#include "th/transfer/transport.h"

#include <atomic>

#include "absl/strings/str_cat.h"

namespace th {

absl::Status CheckRequest(SegmentRange range, const RequestQueue& open, uint64_t segment_count,
                          const TransportLimits& limits) {
  if (range.empty()) return absl::OkStatus();
  if (range.end.value > segment_count) {
    return absl::OutOfRangeError(
        absl::StrCat("asked up to segment ", range.end.value, " of ", segment_count));
  }
  if (open.size() >= limits.max_requests_queued) {
    return absl::ResourceExhaustedError(absl::StrCat("asked again while ", open.size(),
                                                     " requests are open; max_requests_queued is ",
                                                     limits.max_requests_queued));
  }
  if (open.segments() + range.count() > limits.max_segments_queued) {
    return absl::ResourceExhaustedError(
        absl::StrCat("asked for ", range.count(), " segments while ", open.segments(),
                     " are open; max_segments_queued is ", limits.max_segments_queued));
  }
  return absl::OkStatus();
}

TransferId NextTransferId() {
  static std::atomic<uint64_t> next{1};
  return TransferId(next.fetch_add(1));
}

}  // namespace th
