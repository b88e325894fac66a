#include "th/client/progress_reporter.h"

#include <utility>

namespace th {

void ProgressReporter::Report(std::function<UpdateProgress()> compose) {
  if (waiting_.exchange(true)) return;
  runtime_->callbacks().Post([self = shared_from_this(), compose = std::move(compose)] {
    self->waiting_ = false;
    absl::MutexLock lock(&self->mu_);
    if (self->function_) self->function_(compose());
  });
}

void ProgressReporter::Disable() {
  absl::MutexLock lock(&mu_);
  function_ = nullptr;
}

}  // namespace th
