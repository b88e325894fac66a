#include "th/processes/held_signals.h"

#include <ctime>

namespace th {

HeldSignals::HeldSignals() {
  sigemptyset(&held_);
  sigaddset(&held_, SIGINT);
  sigaddset(&held_, SIGTERM);
  sigprocmask(SIG_BLOCK, &held_, &before_);
}

HeldSignals::~HeldSignals() {
  const timespec at_once = {};
  while (sigtimedwait(&held_, nullptr, &at_once) > 0) {
  }
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

bool HeldSignals::Pending() const {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1;
}

}  // namespace th
