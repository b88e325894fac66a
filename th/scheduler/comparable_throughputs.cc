#include "th/scheduler/comparable_throughputs.h"

#include <algorithm>
#include <utility>

namespace th {

void ComparableThroughputs::TurnWindows(absl::Time now) {
  if (now - current_.began < kThroughputWindow) return;
  before_ = now - current_.began < 2 * kThroughputWindow ? current_ : Window();
  current_ = Window{.began = now};
}

void ComparableThroughputs::Note(Distance distance, WorkerId reader, double throughput,
                                 absl::Time now) {
  TurnWindows(now);
  const size_t level = static_cast<size_t>(distance);
  Best& first = current_.first[level];
  Best& second = current_.second[level];
  if (first.reader == reader) {
    first.throughput = std::max(first.throughput, throughput);
  } else if (throughput > first.throughput) {
    second = std::exchange(first, Best{reader, throughput});
  } else if (throughput > second.throughput) {
    second = {reader, throughput};
  }
  Remembered& remembered = remembered_[level];
  if (throughput >= remembered.throughput || now - remembered.at > kThroughputRemembered)
    remembered = {now, throughput};
}

double ComparableThroughputs::OfOthers(const Window& window, size_t level, WorkerId reader) {
  const Best& first = window.first[level];
  return first.reader == reader ? window.second[level].throughput : first.throughput;
}

std::optional<double> ComparableThroughputs::BestOfOthers(Distance distance, WorkerId reader,
                                                          absl::Time now) const {
  double best = 0;
  for (size_t level = static_cast<size_t>(distance); level < kDistances; ++level) {
    for (const Window* window : {&current_, &before_}) {
      if (now - window->began >= 2 * kThroughputWindow) continue;
      best = std::max(best, OfOthers(*window, level, reader));
    }
  }
  return best > 0 ? std::optional<double>(best) : std::nullopt;
}

std::optional<double> ComparableThroughputs::BestRemembered(Distance distance,
                                                            absl::Time now) const {
  double best = 0;
  for (size_t level = static_cast<size_t>(distance); level < kDistances; ++level) {
    const Remembered& remembered = remembered_[level];
    if (now - remembered.at <= kThroughputRemembered) best = std::max(best, remembered.throughput);
  }
  return best > 0 ? std::optional<double>(best) : std::nullopt;
}

}  // namespace th
