#include "th/c_interface/c_handles.h"

namespace th::c {

void RunningSet::Add(std::weak_ptr<Running> call) {
  absl::MutexLock lock(&mu_);
  calls_.remove_if([](const std::weak_ptr<Running>& each) { return each.expired(); });
  calls_.push_back(std::move(call));
}

void RunningSet::EndAll() {
  if (guard_.forked()) return;
  std::list<std::weak_ptr<Running>> calls;
  {
    absl::MutexLock lock(&mu_);
    calls.swap(calls_);
  }
  for (const std::weak_ptr<Running>& each : calls) {
    if (const std::shared_ptr<Running> call = each.lock()) call->End();
  }
}

void ReaderReports::Add(ReaderReport report) {
  absl::MutexLock lock(&mu_);
  reports_.push_back(std::move(report));
  if (reports_.size() <= kMost) return;
  reports_.pop_front();
  ++dropped_;
}

std::pair<std::deque<ReaderReport>, uint64_t> ReaderReports::Take() {
  absl::MutexLock lock(&mu_);
  return {std::exchange(reports_, {}), std::exchange(dropped_, 0)};
}

}  // namespace th::c
