#include "th/command_line/stop_signals.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <string>
#include <utility>

#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

sigset_t HandledSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

StopSignals::StopSignals(int status_at_once, StopOptions options)
    : options_(std::move(options)),
      status_of_end_(status_at_once),
      status_at_once_(status_at_once) {
  const sigset_t handled = HandledSignals();
  pthread_sigmask(SIG_BLOCK, &handled, &before_);
  signal_fd_ = signalfd(-1, &handled, SFD_CLOEXEC);
  end_fd_ = eventfd(0, EFD_CLOEXEC);
  listener_ = std::thread([this] { Listen(); });
}

StopSignals::~StopSignals() {
  eventfd_write(end_fd_, 1);
  listener_.join();
  close(end_fd_);
  close(signal_fd_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void StopSignals::Listen() {
  pthread_setname_np(pthread_self(), "th-signals");
  for (;;) {
    std::array<pollfd, 2> waited = {{{.fd = signal_fd_, .events = POLLIN, .revents = 0},
                                     {.fd = end_fd_, .events = POLLIN, .revents = 0}}};
    poll(waited.data(), waited.size(), -1);
    if (waited[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) continue;
    Take(static_cast<int>(info.ssi_signo));
  }
}

void StopSignals::Take(int signal) {
  absl::MutexLock lock(&mutex_);
  if (status_at_once_) EndAtOnce(*status_at_once_);
  const absl::Time now = MonotonicNow();
  if (signal_ == 0) {
    signal_ = signal;
    signalled_at_ = now;
    return Say(signal == SIGINT ? "SIGINT: stopping; once more to end at once"
                                : "SIGTERM: stopping; once more to end at once");
  }
  if (unbroken_ > 0 || now - signalled_at_ < options_.one_stop) return;
  Say("a second signal: ending at once");
  EndAtOnce(kStatusOfSecondSignal);
}

void StopSignals::Say(const std::string& text) const {
  if (options_.say) return options_.say(text);
  const std::string line = text + "\n";
  // Nothing is to be done about a closed stderr.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

void StopSignals::EndAtOnce(int status) {
  if (options_.last_words) options_.last_words();
  _exit(status);
}

void StopSignals::HoldOff() {
  absl::MutexLock lock(&mutex_);
  status_at_once_.reset();
}

void StopSignals::StopHoldingOff() {
  absl::MutexLock lock(&mutex_);
  if (signal_ != 0) EndAtOnce(status_of_end_);
  status_at_once_ = status_of_end_;
}

StopSignals::Unbroken::Unbroken(StopSignals* stop) : stop_(stop) {
  absl::MutexLock lock(&stop_->mutex_);
  ++stop_->unbroken_;
}

StopSignals::Unbroken::~Unbroken() {
  absl::MutexLock lock(&stop_->mutex_);
  --stop_->unbroken_;
}

bool StopSignals::requested() const { return signal() != 0; }

int StopSignals::signal() const {
  absl::MutexLock lock(&mutex_);
  return signal_;
}

void StopSignals::Wait() { WaitFor(absl::InfiniteDuration()); }

bool StopSignals::WaitFor(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  auto stopped = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return signal_ != 0; };
  return mutex_.AwaitWithTimeout(absl::Condition(&stopped), timeout);
}

}  // namespace th
