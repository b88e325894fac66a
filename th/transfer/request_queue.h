// What was asked over one connection and not answered yet, for both of its ends. A source answers
// with whatever has arrived: waiting for the first segment asked would stall every relay below one
// whose source was replaced.
//
// Pure; not thread-safe. First and Take take time in the segments that are not answered.
#ifndef TH_TRANSFER_REQUEST_QUEUE_H_
#define TH_TRANSFER_REQUEST_QUEUE_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "th/weights/segments.h"

namespace th {

class RequestQueue {
 public:
  // An empty range is no request.
  void Push(SegmentRange range);
  bool empty() const { return requests_.empty(); }
  // Requests of which something is not answered.
  size_t size() const { return requests_.size(); }
  // The first segment that is `ready`, in the order of the requests, each in canonical order.
  std::optional<SegmentIndex> First(absl::FunctionRef<bool(SegmentIndex)> ready) const;
  // The earliest request that has `segment` open is answered with it. False: none has.
  bool Take(SegmentIndex segment);
  // All that is not answered; a segment that was asked twice is there twice.
  std::vector<SegmentRange> Unanswered() const;
  void Clear() { requests_.clear(); }

 private:
  std::deque<SegmentSet> requests_;  // none is empty
};

}  // namespace th

#endif  // TH_TRANSFER_REQUEST_QUEUE_H_
