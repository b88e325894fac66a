// The uplink cap: a token bucket shared by all transfers of a process, fair among them.
//
//   UplinkBucket bucket(/*bytes_per_second=*/125'000'000, now);
//   UplinkBucket::Grant grant = bucket.Take(transfer, bytes_waiting, now);
//   if (grant.bytes == 0) WakeMeAt(grant.retry_at);
//   ... send up to grant.bytes, then bucket.Refund(grant.bytes - sent);
//
// Transfers take turns: one that was served goes behind those that wait. One that does not come for
// its turn loses it, so that a slow loop holds nobody up. Grants are small enough that bytes of
// every waiting transfer flow several times within the silence that readers bear.
//
// Pure; not thread-safe: the owner serialises calls.
#ifndef TH_TRANSFER_STREAM_UPLINK_BUCKET_H_
#define TH_TRANSFER_STREAM_UPLINK_BUCKET_H_

#include <cstdint>
#include <deque>

#include "absl/time/time.h"
#include "th/mutability_contract/mutability_contract.h"  // TransferId

namespace th::stream {

class UplinkBucket {
 public:
  // Limits what may be saved up while nothing is sent: late wake-ups are made good within this.
  static constexpr absl::Duration kBurst = absl::Milliseconds(20);
  // The time that one turn of all waiting transfers takes together.
  static constexpr absl::Duration kRound = absl::Milliseconds(10);
  static constexpr uint64_t kMinGrantBytes = 512;
  static constexpr uint64_t kMaxGrantBytes = uint64_t{256} << 10;
  // A transfer that does not come for its turn for so long loses it.
  static constexpr absl::Duration kTurnPatience = absl::Milliseconds(10);

  // bytes_per_second > 0.
  UplinkBucket(uint64_t bytes_per_second, absl::Time now);

  struct Grant {
    uint64_t bytes = 0;
    absl::Time retry_at;  // when bytes is 0
  };
  // wanted > 0.
  Grant Take(TransferId transfer, uint64_t wanted, absl::Time now);
  void Refund(uint64_t bytes) { tokens_ += static_cast<double>(bytes); }

 private:
  struct Waiting {
    TransferId transfer;
    absl::Time due;  // when its turn is reckoned to come
  };

  void Refill(absl::Time now);
  uint64_t GrantSize() const;
  // The place of `transfer` in the queue; it joins at the end when it is not there yet.
  size_t PlaceOf(TransferId transfer, absl::Time now);
  absl::Duration TimeFor(double bytes) const;

  const double bytes_per_second_;
  double tokens_ = 0;
  absl::Time refilled_at_;
  std::deque<Waiting> queue_;
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_UPLINK_BUCKET_H_
