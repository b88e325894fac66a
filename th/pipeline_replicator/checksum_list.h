// A version's list of segment sums as a reader gets it: from one source at a time, in canonical
// order, and checked against the version's root once all of it is there.
//
//   nothing -> coming -> complete -> checked
//
// A list is one source's word: another source begins a list of its own. Pure; not thread-safe.
#ifndef TH_PIPELINE_REPLICATOR_CHECKSUM_LIST_H_
#define TH_PIPELINE_REPLICATOR_CHECKSUM_LIST_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "th/identifiers/identifiers.h"
#include "th/weights/checksum.h"
#include "th/weights/digest.h"

namespace th {

// A source of a fill, numbered by the owner, never reused within the fill.
using SourceIndex = StrongInt<struct SourceIndexTag, uint32_t>;

class ChecksumList {
 public:
  explicit ChecksumList(uint64_t segment_count) : segment_count_(segment_count) {}

  // The list is asked of `source` from its beginning; what another source gave is forgotten.
  void Ask(SourceIndex source);
  // The next sums from `source`. False, and nothing changes: it was not asked, or these are not the
  // next ones.
  bool Append(SourceIndex source, SegmentIndex first, absl::Span<const SegmentChecksum> checksums);
  // True when a complete list agrees with `root`, which makes it the authority.
  bool Check(const Digest& root);
  // Forgets the list.
  void Drop();

  // The source that the list is asked of, or that it came from.
  std::optional<SourceIndex> source() const { return source_; }
  bool coming() const { return source_.has_value() && !complete(); }
  bool complete() const { return checksums_.size() == segment_count_; }
  bool checked() const { return checked_; }
  // So far, from the first segment on.
  const std::vector<SegmentChecksum>& checksums() const { return checksums_; }

 private:
  const uint64_t segment_count_;
  std::optional<SourceIndex> source_;
  std::vector<SegmentChecksum> checksums_;
  bool checked_ = false;
};

}  // namespace th

#endif  // TH_PIPELINE_REPLICATOR_CHECKSUM_LIST_H_
