// The bytes on their way out of one serving connection: control frames, and segments straight from
// the buffer. Gathers some segments at a time, so that bulk costs one system call for many bytes.
//
// Not thread-safe: its connection's loop owns it.
#ifndef TH_TRANSFER_STREAM_OUTBOX_H_
#define TH_TRANSFER_STREAM_OUTBOX_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "th/transfer/segment_store.h"
#include "th/transfer/stream/frames.h"

namespace th::stream {

// A batch ends with the segment that reaches this.
inline constexpr uint64_t kBatchBytes = uint64_t{1} << 20;
// A batch ends with the segment that reaches this many runs of memory (IOV_MAX is 1024).
inline constexpr size_t kBatchPieces = 256;

class Outbox {
 public:
  bool empty() const { return bytes_left_ == 0; }
  uint64_t bytes_left() const { return bytes_left_; }
  // True while copies are kept for segments that have not left.
  bool keeps_copies() const { return !kept_.empty(); }
  bool full() const { return bytes_left_ >= kBatchBytes || iov_.size() - first_ >= kBatchPieces; }

  // Appends a frame. Only between frames: call while empty(), or after other Add calls.
  void AddControl(std::string frame);
  void AddSegment(const SegmentHeader& header, SegmentStore& store);
  // The same with a copy of the segment; `keep` lives until it has left, or is taken back.
  void AddSegment(const SegmentHeader& header, absl::Span<const std::byte> bytes,
                  std::shared_ptr<const void> keep);

  struct Sent {
    uint64_t bytes = 0;
    int error = 0;  // errno; EAGAIN when the socket takes no more now
  };
  // Takes back the segments of which no byte was sent.
  void DropUnbegun();
  // Sends up to `limit` bytes in one system call.
  Sent Send(int fd, uint64_t limit);

 private:
  void BeginSegment(const SegmentHeader& header);
  void Consume(uint64_t bytes);
  void Clear();

  std::vector<iovec> iov_;
  size_t first_ = 0;
  uint64_t bytes_left_ = 0;
  std::deque<RawHeader> headers_;                  // iov_ points into these
  std::deque<std::string> controls_;               // likewise
  std::vector<std::shared_ptr<const void>> kept_;  // likewise
  std::deque<size_t> segments_;                    // where in iov_ each segment's header is
  std::vector<iovec> limited_;
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_OUTBOX_H_
