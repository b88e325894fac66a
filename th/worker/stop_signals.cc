#include "th/worker/stop_signals.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

namespace th {
namespace {

// How soon the listener notices that it is to end.
constexpr timespec kEndPoll = {.tv_sec = 0, .tv_nsec = 50'000'000};

sigset_t HandledSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

void SayStopping(int signal) {
  const char* text = signal == SIGINT ? "SIGINT: stopping; once more to end at once\n"
                                      : "SIGTERM: stopping; once more to end at once\n";
  // Nothing is to be done about a closed stderr.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, strlen(text));
}

}  // namespace

StopSignals::StopSignals(int status_at_once) : status_at_once_(status_at_once) {
  const sigset_t handled = HandledSignals();
  pthread_sigmask(SIG_BLOCK, &handled, &before_);
  listener_ = std::thread([this] { Listen(); });
}

StopSignals::~StopSignals() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  listener_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void StopSignals::Listen() {
  pthread_setname_np(pthread_self(), "th-signals");
  const sigset_t handled = HandledSignals();
  for (;;) {
    const int signal = sigtimedwait(&handled, nullptr, &kEndPoll);
    absl::MutexLock lock(&mutex_);
    if (ending_) return;
    if (signal <= 0) continue;
    if (status_at_once_) _exit(*status_at_once_);
    if (signal_ != 0) _exit(128 + signal);
    signal_ = signal;
    SayStopping(signal);
  }
}

void StopSignals::HoldOff() {
  absl::MutexLock lock(&mutex_);
  status_at_once_.reset();
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
