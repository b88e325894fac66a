#include "th/client/cancellation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "th/client/cancel_hook.h"

namespace th {
namespace {

Cancellation*& OfThisThread() {
  thread_local Cancellation* current = nullptr;
  return current;
}

}  // namespace

void Cancellation::Cancel() {
  absl::MutexLock lock(&mu_);
  if (std::exchange(cancelled_, true)) return;
  for (const CancelHook* hook : hooks_) hook->end_();
}

bool Cancellation::cancelled() const {
  absl::MutexLock lock(&mu_);
  return cancelled_;
}

CancellationScope::CancellationScope(Cancellation* cancellation)
    : before_(std::exchange(OfThisThread(), cancellation)) {}

CancellationScope::~CancellationScope() { OfThisThread() = before_; }

bool CallsAreCancelled() {
  const Cancellation* current = OfThisThread();
  return current != nullptr && current->cancelled();
}

absl::Status CheckNotCancelled(absl::string_view what) {
  if (!CallsAreCancelled()) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("the caller cancelled it; ", what));
}

CancelHook::CancelHook(std::function<void()> end)
    : cancellation_(OfThisThread()), end_(std::move(end)) {
  if (cancellation_ == nullptr) return;
  {
    absl::MutexLock lock(&cancellation_->mu_);
    if (!cancellation_->cancelled_) {
      place_ = cancellation_->hooks_.insert(cancellation_->hooks_.end(), this);
      registered_ = true;
      return;
    }
  }
  end_();
}

CancelHook::~CancelHook() {
  if (!registered_) return;
  absl::MutexLock lock(&cancellation_->mu_);
  cancellation_->hooks_.erase(place_);
}

void Signal::Notify() {
  absl::MutexLock lock(&mu_);
  notified_ = true;
}

bool Signal::HasBeenNotified() const {
  absl::MutexLock lock(&mu_);
  return notified_;
}

bool Signal::Wait(absl::Duration time) const {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&notified_), time);
}

bool Signal::WaitUnlessCancelled(absl::Duration time) const {
  bool cancelled = false;
  const CancelHook hook([&] {
    absl::MutexLock lock(&mu_);
    cancelled = true;
  });
  absl::MutexLock lock(&mu_);
  const auto over = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return notified_ || cancelled; };
  mu_.AwaitWithTimeout(absl::Condition(&over), time);
  return notified_;
}

}  // namespace th
