// A shard's bytes in a simulation: one number a segment stands for them, derived from the name of
// the content, so that the simulation knows what has to arrive and notices a single wrong segment.
#ifndef TH_SIMULATOR_SIMULATED_BUFFER_H_
#define TH_SIMULATOR_SIMULATED_BUFFER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "th/identifiers/identifiers.h"
#include "th/weights/checksum.h"
#include "th/weights/digest.h"
#include "th/weights/segments.h"
#include "th/weights/shard_layout.h"

namespace th {

// The attribute of a version under which its publisher names the content.
inline constexpr char kContentAttribute[] = "content";

// The value of `segment` of shard number `shard` in the content of this name. It is its own sum. In
// contents with names like "trainer step-3 #7" one segment of four, from the second on, is frozen:
// those whose first word is the same share it.
SegmentChecksum ContentOf(const std::string& content, int shard, SegmentIndex segment);

// The layout of shard number `shard`: one tensor of segment_count times segment_bytes.
std::shared_ptr<const ShardLayout> SimulatedLayout(int shard, uint64_t segment_count,
                                                   uint64_t segment_bytes);

class SimulatedBuffer {
 public:
  SimulatedBuffer(int shard, uint64_t segment_count) : shard_(shard), segments_(segment_count, 0) {}

  int shard() const { return shard_; }
  uint64_t segment_count() const { return segments_.size(); }
  // To a fill, which may write until its caller hears that nobody does any more.
  void Lend() { lent_ = true; }
  void TakeBack() { lent_ = false; }
  bool lent() const { return lent_; }
  // The owner writes all of it: from here on it is `content`, all of which may be served.
  void Write(const std::string& content);
  // A fill writes one segment, which may be served once it is held.
  void Write(SegmentIndex segment, SegmentChecksum value) { segments_[segment.value] = value; }
  void MarkHeld(SegmentIndex segment) { held_.Add(segment); }
  void SetHeld(SegmentSet held) {
    held_ = std::move(held);
    listed_.clear();
  }
  // A fill throws away all that it has received, while others may still read it.
  void StartOver() {
    SetHeld({});
    ++rounds_;
  }
  // Sums of what is being filled, from `first` on.
  void SetListed(SegmentIndex first, absl::Span<const SegmentChecksum> checksums);
  // None: it is not known yet.
  std::optional<SegmentChecksum> ChecksumOf(SegmentIndex segment) const;

  const SegmentSet& held() const { return held_; }
  // Rises with each StartOver.
  uint64_t rounds() const { return rounds_; }
  SegmentChecksum value(SegmentIndex segment) const { return segments_[segment.value]; }
  const std::vector<SegmentChecksum>& values() const { return segments_; }
  bool Is(const std::string& content) const;
  Digest Root() const { return RootOfChecksums(segments_); }

 private:
  const int shard_;
  std::vector<SegmentChecksum> segments_;
  bool lent_ = false;
  SegmentSet held_;                      // received and checked, or the owner's own
  std::vector<SegmentChecksum> listed_;  // of the first segments
  uint64_t rounds_ = 0;
};

}  // namespace th

#endif  // TH_SIMULATOR_SIMULATED_BUFFER_H_
