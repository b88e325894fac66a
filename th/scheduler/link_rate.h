// The knowledge of the rate of a worker's own link, and which of two links is the slower one: pure
// functions and a value.
//
//   LinkRate link;
//   link.NoteLimited(31e6, now);            // it got no more although its source had more to give
//   link.NoteReceived(30e6, LinkRate::Above::kFaster, now);  // agrees: the limit lasts on
//   IsSlower(link.limit(), std::nullopt);   // true: a link that nobody has seen at its limit
//
// Nobody knows rates in advance: a reader that gets little may have a slow link, or a slow source,
// or stand below one that has. So a limit is noted only where something else has been ruled out
// (th/reference_registry/link_order.h), and a link without one counts as fast as any. A link that
// carries more than its limit has none any more; neither has one that was not seen to carry about
// its limit for kLinkRateLasts. A reader below a link that is alike gets no more than that one
// carries, so its own may be mended or never have been slow: of links that are alike the one that
// has proved its limit least lately goes first in the next fill (UnprovedFor).
//
// Rates are in bytes a second. Not thread-safe. `now` never goes back.
#ifndef TH_SCHEDULER_LINK_RATE_H_
#define TH_SCHEDULER_LINK_RATE_H_

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace th {

// Long enough for the next version of a training run, short enough for a link that was mended.
inline constexpr absl::Duration kLinkRateLasts = absl::Minutes(10);
// Links whose rates differ by less than this factor are alike: readers behind them share a chain.
inline constexpr double kLinksAlike = 1.25;

class LinkRate {
 public:
  // The link itself held its worker to this rate.
  void NoteLimited(double rate, absl::Time now);
  // It may have: the limit ends at `until` whatever the link carries by then, unless it is noted
  // for good.
  void NoteForTrial(double rate, absl::Time until);
  // The links of those that the worker received from.
  enum class Above : uint8_t { kFaster = 1, kAlikeOrSlower = 2 };
  // The worker has received this much at least. True: more than the limit, which is forgotten.
  bool NoteReceived(double rate, Above above, absl::Time now);
  // Since when nothing has proved that the link itself is what holds its worker to its limit.
  absl::Duration UnprovedFor(absl::Time now) const { return now - proved_at_; }
  // True: there was a limit whose time is over.
  bool ForgetOld(absl::Time now);
  void Forget() { limit_.reset(); }
  // None: not known.
  std::optional<double> limit() const { return limit_; }

 private:
  std::optional<double> limit_;
  absl::Time ends_at_ = absl::InfinitePast();  // the limit, if there is one
  absl::Time proved_at_ = absl::InfinitePast();
  bool for_trial_ = false;
};

// True when a link with this limit carries less than one with the limit `than`, and not about as
// much. Links without a known limit are the fastest.
bool IsSlower(std::optional<double> limit, std::optional<double> than);

}  // namespace th

#endif  // TH_SCHEDULER_LINK_RATE_H_
