// The segments that a source has told its reader to read out of its memory, in their order, until
// the reader says that they have landed: a bounded number of them (ServedMemory::Window).
//
//   LocatedSegments located;
//   if (located.HasRoom(served->window())) located.Add(segment, bytes);
//   TH_ASSIGN_OR_RETURN(const uint64_t bytes, located.TakeLanded(segment));  // the reader's Landed
//
// Pure; not thread-safe.
#ifndef TH_TRANSFER_STREAM_LOCATED_SEGMENTS_H_
#define TH_TRANSFER_STREAM_LOCATED_SEGMENTS_H_

#include <cstdint>
#include <deque>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "th/identifiers/identifiers.h"
#include "th/transfer/stream/remote_memory.h"

namespace th::stream {

class LocatedSegments {
 public:
  bool empty() const { return segments_.empty(); }
  // True while the reader may be told of another segment.
  bool HasRoom(const ServedMemory::Window& window) const {
    return bytes_ < window.bytes && segments_.size() < window.segments;
  }
  // The reader is told of `segment`, which has `bytes` bytes.
  void Add(SegmentIndex segment, uint64_t bytes) {
    segments_.emplace_back(segment, bytes);
    bytes_ += bytes;
  }
  // The reader says that `segment` has landed; returns its bytes. INVALID_ARGUMENT: it is not the
  // next one.
  absl::StatusOr<uint64_t> TakeLanded(SegmentIndex segment) {
    if (empty() || segments_.front().first != segment) {
      return absl::InvalidArgumentError(
          absl::StrCat("segment ", segment.value, " has landed, which was not the next one"));
    }
    const uint64_t bytes = segments_.front().second;
    segments_.pop_front();
    bytes_ -= bytes;
    return bytes;
  }
  void Clear() {
    segments_.clear();
    bytes_ = 0;
  }

 private:
  std::deque<std::pair<SegmentIndex, uint64_t>> segments_;  // each with its bytes
  uint64_t bytes_ = 0;                                      // of all of them
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_LOCATED_SEGMENTS_H_
