#include "th/pipeline_replicator/sum_list.h"

#include "tools/mutation/mutation.h"

namespace th {

void SumList::Ask(SourceIndex source) {
  Drop();
  source_ = source;
}

bool SumList::Append(SourceIndex source, SegmentIndex first, absl::Span<const SegmentSum> sums) {
  if (source_ != source || first.value != sums_.size()) return false;
  if (sums.size() > segment_count_ - sums_.size()) return false;
  sums_.insert(sums_.end(), sums.begin(), sums.end());
  return true;
}

bool SumList::Check(const Digest& root) {
  checked_ = complete() && TH_MUTATE(kTrustTheList, RootOfSums(sums_) == root, true);
  return checked_;
}

void SumList::Drop() {
  source_.reset();
  sums_.clear();
  checked_ = false;
}

}  // namespace th
