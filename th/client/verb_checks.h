// The common part of the verbs of a WeightBuffer: refusals, and how long one waits at most.
#ifndef TH_CLIENT_VERB_CHECKS_H_
#define TH_CLIENT_VERB_CHECKS_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/protocol/messages.h"

namespace th {

inline absl::Status NoBuffer() {
  return absl::FailedPreconditionError("this WeightBuffer is empty (moved from, or never made)");
}

inline absl::Status Unanswered(absl::string_view verb) {
  return absl::DeadlineExceededError(absl::StrCat(verb, " did not end in time"));
}

// The longest wait of an unpublish, update or apply. Each copy that it waits for gives it its time
// anew.
template <typename Options>
absl::Duration LongestWait(const Options& options) {
  const absl::Duration once = options.timeout + options.drain_timeout;
  if (options.on_retention == OnRetention::kDrop) return once;
  return once + kMaxOffloadsOfOperation * (options.offload_timeout + options.timeout);
}

}  // namespace th

#endif  // TH_CLIENT_VERB_CHECKS_H_
