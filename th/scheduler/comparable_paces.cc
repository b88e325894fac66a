#include "th/scheduler/comparable_paces.h"

#include <algorithm>
#include <utility>

namespace th {

void ComparablePaces::TurnWindows(absl::Time now) {
  if (now - current_.began < kPaceWindow) return;
  before_ = now - current_.began < 2 * kPaceWindow ? current_ : Window();
  current_ = Window{.began = now};
}

void ComparablePaces::Note(Distance distance, WorkerId reader, double pace, absl::Time now) {
  TurnWindows(now);
  const size_t level = static_cast<size_t>(distance);
  Best& first = current_.first[level];
  Best& second = current_.second[level];
  if (first.reader == reader) {
    first.pace = std::max(first.pace, pace);
  } else if (pace > first.pace) {
    second = std::exchange(first, Best{reader, pace});
  } else if (pace > second.pace) {
    second = {reader, pace};
  }
  Remembered& remembered = remembered_[level];
  if (pace >= remembered.pace || now - remembered.at > kPaceRemembered) remembered = {now, pace};
}

double ComparablePaces::OfOthers(const Window& window, size_t level, WorkerId reader) {
  const Best& first = window.first[level];
  return first.reader == reader ? window.second[level].pace : first.pace;
}

std::optional<double> ComparablePaces::BestOfOthers(Distance distance, WorkerId reader,
                                                    absl::Time now) const {
  double best = 0;
  for (size_t level = static_cast<size_t>(distance); level < kDistances; ++level) {
    for (const Window* window : {&current_, &before_}) {
      if (now - window->began >= 2 * kPaceWindow) continue;
      best = std::max(best, OfOthers(*window, level, reader));
    }
  }
  return best > 0 ? std::optional<double>(best) : std::nullopt;
}

std::optional<double> ComparablePaces::BestRemembered(Distance distance, absl::Time now) const {
  double best = 0;
  for (size_t level = static_cast<size_t>(distance); level < kDistances; ++level) {
    const Remembered& remembered = remembered_[level];
    if (now - remembered.at <= kPaceRemembered) best = std::max(best, remembered.pace);
  }
  return best > 0 ? std::optional<double>(best) : std::nullopt;
}

}  // namespace th
