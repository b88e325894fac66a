#include "th/client/reader_reporter.h"

namespace th {

void ReaderReporter::Report(ReaderReport report) {
  if (waiting_.fetch_add(1) >= kMaxReaderReportsWaiting) {
    waiting_.fetch_sub(1);
    return;
  }
  runtime_->callbacks().Post([self = shared_from_this(), report = std::move(report)] {
    self->waiting_.fetch_sub(1);
    absl::MutexLock lock(&self->mu_);
    if (self->function_) self->function_(report);
  });
}

void ReaderReporter::Disable() {
  absl::MutexLock lock(&mu_);
  function_ = nullptr;
}

}  // namespace th
