#include "th/pipeline_replicator/checksum_list.h"

#include "tools/mutation/mutation.h"

namespace th {

void ChecksumList::Ask(SourceIndex source) {
  Drop();
  source_ = source;
}

bool ChecksumList::Append(SourceIndex source, SegmentIndex first,
                          absl::Span<const SegmentChecksum> checksums) {
  if (source_ != source || first.value != checksums_.size()) return false;
  if (checksums.size() > segment_count_ - checksums_.size()) return false;
  checksums_.insert(checksums_.end(), checksums.begin(), checksums.end());
  return true;
}

bool ChecksumList::Check(const Digest& root) {
  checked_ = complete() && TH_MUTATE(kTrustTheList, RootOfChecksums(checksums_) == root, true);
  return checked_;
}

void ChecksumList::Drop() {
  source_.reset();
  checksums_.clear();
  checked_ = false;
}

}  // namespace th
