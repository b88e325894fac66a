#include "th/scheduler/link_rate.h"

#include <utility>

namespace th {

void LinkRate::NoteLimited(double rate, absl::Time now) {
  limit_ = rate;
  ends_at_ = now + kLinkRateLasts;
  proved_at_ = now;
  for_trial_ = false;
}

void LinkRate::NoteForTrial(double rate, absl::Time until) {
  limit_ = rate;
  ends_at_ = until;
  for_trial_ = true;
}

bool LinkRate::NoteReceived(double rate, Above above, absl::Time now) {
  if (!limit_.has_value()) return false;
  if (rate > *limit_ * kLinksAlike) {
    limit_.reset();
    return true;
  }
  const bool agrees = rate * kLinksAlike >= *limit_;
  if (!agrees || for_trial_) return false;
  ends_at_ = now + kLinkRateLasts;
  if (above == Above::kFaster) proved_at_ = now;
  return false;
}

bool LinkRate::ForgetOld(absl::Time now) {
  if (now <= ends_at_) return false;
  return std::exchange(limit_, std::nullopt).has_value();
}

bool IsSlower(std::optional<double> limit, std::optional<double> than) {
  return limit.has_value() && (!than.has_value() || *limit * kLinksAlike < *than);
}

}  // namespace th
