// Which segments of a shard hold the tensors that somebody asked for, how many of them fit in the
// memory that he gave, and the slices in which the tensors come, in stream order.
//
//   TH_ASSIGN_OR_RETURN(ReceivePlan plan, ReceivePlan::Make(layout, {"model.layers.*"}, 64 << 20));
//   while (std::optional<ReceivePlan::Slice> slice = plan.Next()) ...
//
// Pure; not thread-safe.
#ifndef TH_CLIENT_RECEIVE_PLAN_H_
#define TH_CLIENT_RECEIVE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "th/weights/segments.h"
#include "th/weights/shard_layout.h"

namespace th {

// Each pattern is compared with every name.
inline constexpr size_t kMaxReceivePatterns = 1024;

class ReceivePlan {
 public:
  struct Slice {
    uint32_t tensor = 0;  // index into the layout's tensors
    uint64_t offset = 0;  // in the tensor
    uint64_t bytes = 0;   // none of a tensor without bytes: then there is no segment either
    SegmentIndex segment;
    uint64_t segment_offset = 0;
    friend bool operator==(const Slice&, const Slice&) = default;
  };

  // `tensors`: names or patterns (fnmatch); empty: all. NOT_FOUND naming what matches nothing and
  // names that are near it. INVALID_ARGUMENT: a limit below one segment, naming the least; more
  // than kMaxReceivePatterns patterns.
  static absl::StatusOr<ReceivePlan> Make(std::shared_ptr<const ShardLayout> layout,
                                          const std::vector<std::string>& tensors,
                                          uint64_t limit_bytes);

  const SegmentSet& wanted() const { return wanted_; }
  uint64_t slots() const { return slots_; }  // segments that are held at a time; at least 1
  uint64_t ring_bytes() const { return ring_bytes_; }  // of those; at most the limit
  uint64_t tensors() const { return tensors_; }        // asked for

  // Slices in stream order; one segment holds each. Tied names come one after the other.
  std::optional<Slice> Next();

 private:
  // A storage with the asked names of it.
  struct Asked {
    uint32_t storage = 0;
    std::vector<uint32_t> tensors;
  };
  explicit ReceivePlan(std::shared_ptr<const ShardLayout> layout) : layout_(std::move(layout)) {}
  void Want(const std::vector<bool>& asked);
  absl::Status Fit(uint64_t limit_bytes);
  Slice SliceAt(const Asked& asked) const;

  std::shared_ptr<const ShardLayout> layout_;  // shared with the buffer that receives
  std::vector<Asked> asked_;                   // in the order of storages
  SegmentSet wanted_;
  uint64_t slots_ = 1;
  uint64_t ring_bytes_ = 0;
  uint64_t tensors_ = 0;
  // Where Next goes on.
  size_t at_ = 0;
  size_t name_ = 0;
  uint64_t offset_ = 0;
};

}  // namespace th

#endif  // TH_CLIENT_RECEIVE_PLAN_H_
