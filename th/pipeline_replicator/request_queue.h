// The requests to one source that are not answered yet, for both of its ends. A source answers with
// whatever has arrived: waiting for the first segment asked would stall every relay below one whose
// source was replaced. Of what has arrived it answers with the lowest segment, whenever that was
// asked: a reader asks late for a low one that another source has given back, and those that read
// from that reader wait for it.
//
// Pure; not thread-safe. First takes time in the segments that are open, all else in the requests.
#ifndef TH_PIPELINE_REPLICATOR_REQUEST_QUEUE_H_
#define TH_PIPELINE_REPLICATOR_REQUEST_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/functional/function_ref.h"
#include "th/identifiers/identifiers.h"
#include "th/weights/segments.h"

namespace th {

class RequestQueue {
 public:
  // An empty range is no request.
  void Push(SegmentRange range);
  bool empty() const { return requests_.empty(); }
  // Requests of which something is open: asked, and not answered.
  size_t size() const { return requests_.size(); }
  // The open segments; one that was asked twice counts twice.
  uint64_t segments() const { return segments_; }
  bool Contains(SegmentIndex segment) const;
  // True when a higher segment than this one is open.
  bool AsksAbove(SegmentIndex segment) const;
  // The lowest open segment that is `ready`.
  std::optional<SegmentIndex> First(absl::FunctionRef<bool(SegmentIndex)> ready) const;
  // The earliest request that has `segment` open is answered with it. False: none has.
  bool Take(SegmentIndex segment);
  void AddOpenTo(SegmentSet* segments) const;
  void Clear();

 private:
  std::deque<SegmentSet> requests_;  // none is empty
  uint64_t segments_ = 0;
};

}  // namespace th

#endif  // TH_PIPELINE_REPLICATOR_REQUEST_QUEUE_H_
