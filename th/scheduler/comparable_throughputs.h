// The best throughput that readers have told lately, by distance from their source: what a reader
// that seems slow is compared with.
//
//   throughputs.Note(Distance::kSameRack, reader, bytes_a_second, now);
//   std::optional<double> best = throughputs.BestOfOthers(Distance::kSameRack, reader, now);
//
// A value; O(1) for each call and in memory. Not thread-safe. `now` never goes back.
#ifndef TH_SCHEDULER_COMPARABLE_THROUGHPUTS_H_
#define TH_SCHEDULER_COMPARABLE_THROUGHPUTS_H_

#include <array>
#include <cstddef>
#include <optional>

#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/topology/location.h"

namespace th {

// A report of this window or the one before counts as recent. The window is longer than a reader's
// progress interval, so that whoever fills now is in one of them.
inline constexpr absl::Duration kThroughputWindow = absl::Milliseconds(1500);
// Older reports count for this long, for want of anything newer.
inline constexpr absl::Duration kThroughputRemembered = absl::Minutes(1);

class ComparableThroughputs {
 public:
  // Throughputs are in bytes a second.
  void Note(Distance distance, WorkerId reader, double throughput, absl::Time now);
  // The best recent throughput of other readers, at this or a greater distance; none when nobody
  // has reported.
  std::optional<double> BestOfOthers(Distance distance, WorkerId reader, absl::Time now) const;
  // The best throughput of anybody within kThroughputRemembered, likewise.
  std::optional<double> BestRemembered(Distance distance, absl::Time now) const;

 private:
  static constexpr size_t kDistances = static_cast<size_t>(Distance::kOtherSite) + 1;
  struct Best {
    WorkerId reader;
    double throughput = 0;  // 0: nobody
  };
  struct Window {
    absl::Time began = absl::InfinitePast();
    std::array<Best, kDistances> first, second;  // of two different readers
  };
  struct Remembered {
    absl::Time at = absl::InfinitePast();
    double throughput = 0;
  };
  static double OfOthers(const Window& window, size_t level, WorkerId reader);
  void TurnWindows(absl::Time now);

  Window current_, before_;
  std::array<Remembered, kDistances> remembered_;
};

}  // namespace th

#endif  // TH_SCHEDULER_COMPARABLE_THROUGHPUTS_H_
