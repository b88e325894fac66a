#include "th/transfer/stream/uplink_bucket.h"

#include <algorithm>

namespace th::stream {

UplinkBucket::UplinkBucket(uint64_t bytes_per_second, absl::Time now)
    : bytes_per_second_(static_cast<double>(bytes_per_second)), refilled_at_(now) {}

void UplinkBucket::Refill(absl::Time now) {
  if (now <= refilled_at_) return;
  const double capacity =
      std::max(bytes_per_second_ * absl::ToDoubleSeconds(kBurst), static_cast<double>(GrantSize()));
  const double earned = bytes_per_second_ * absl::ToDoubleSeconds(now - refilled_at_);
  // A refund may have lifted it above its capacity: that is not taken away.
  tokens_ = std::max(tokens_, std::min(capacity, tokens_ + earned));
  refilled_at_ = now;
}

uint64_t UplinkBucket::GrantSize() const {
  const double round = bytes_per_second_ * absl::ToDoubleSeconds(kRound);
  const auto share =
      static_cast<uint64_t>(round / static_cast<double>(std::max<size_t>(1, queue_.size())));
  return std::clamp(share, kMinGrantBytes, kMaxGrantBytes);
}

absl::Duration UplinkBucket::TimeFor(double bytes) const {
  return absl::Seconds(std::max(0.0, bytes) / bytes_per_second_);
}

size_t UplinkBucket::PlaceOf(TransferId transfer, absl::Time now) {
  const auto here = std::find_if(queue_.begin(), queue_.end(),
                                 [&](const Waiting& w) { return w.transfer == transfer; });
  if (here == queue_.end()) {
    queue_.push_back({transfer, now});
    return queue_.size() - 1;
  }
  here->due = now;
  // Those before it that let their turn pass are in nobody's way.
  const auto gone = [&](const Waiting& w) {
    return w.transfer != transfer && w.due + kTurnPatience < now;
  };
  queue_.erase(std::remove_if(queue_.begin(), here, gone), here);
  const auto place = std::find_if(queue_.begin(), queue_.end(),
                                  [&](const Waiting& w) { return w.transfer == transfer; });
  return static_cast<size_t>(place - queue_.begin());
}

UplinkBucket::Grant UplinkBucket::Take(TransferId transfer, uint64_t wanted, absl::Time now) {
  const size_t place = PlaceOf(transfer, now);
  Refill(now);
  const double chunk = static_cast<double>(std::min(GrantSize(), wanted));
  const double needed = chunk + static_cast<double>(place * GrantSize());
  if (place == 0 && tokens_ >= chunk) {
    // Late wake-ups let tokens pile up: they are shared by those who wait.
    const double share = tokens_ / static_cast<double>(queue_.size());
    const uint64_t bytes = std::min(wanted, static_cast<uint64_t>(std::max(chunk, share)));
    tokens_ -= static_cast<double>(bytes);
    queue_.pop_front();
    return {bytes, now};
  }
  const absl::Time retry_at = now + std::max(absl::Milliseconds(1), TimeFor(needed - tokens_));
  queue_[place].due = retry_at;
  return {0, retry_at};
}

}  // namespace th::stream
