#include "th/doctor/bulk_bytes.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "th/doctor/sockets.h"
#include "th/transfer/monotonic_clock.h"

namespace th::doctor {
namespace {

// The other end notices at once that this one has closed, and what was not sent yet is dropped.
void ResetWhenClosed(int fd) {
  const linger reset = {.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
}

}  // namespace

void SendBulk(int fd, const BulkLimits& limits, int stop_fd) {
  ResetWhenClosed(fd);
  const WaitLimit limit = {.deadline = MonotonicNow() + limits.duration + 2 * limits.stall,
                           .stop_fd = stop_fd};
  const std::vector<char> bytes(kBulkCallBytes);
  while (MonotonicNow() < limit.deadline) {
    if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0) continue;
    if (!IsTransient(errno)) return;  // the receiving end has enough
    if (AwaitReady(fd, POLLOUT, limit) != 0) return;
  }
}

RateFacts ReceiveBulk(int fd, const BulkLimits& limits, int stop_fd) {
  ResetWhenClosed(fd);
  RateFacts rate;
  std::optional<absl::Time> first;
  const absl::Time began = MonotonicNow();
  absl::Time last = began;
  std::vector<char> bytes(kBulkCallBytes);
  while (!first.has_value() || last - *first < limits.duration) {
    const int waited =
        AwaitReady(fd, POLLIN, {.deadline = last + limits.stall, .stop_fd = stop_fd});
    rate.stalled = waited == ETIMEDOUT;
    if (waited != 0 && !rate.stalled) rate.error = strerror(waited);
    if (waited != 0) break;
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
    if (got < 0 && IsTransient(errno)) continue;
    if (got <= 0) {
      rate.error = got < 0 ? strerror(errno) : "the sending end closed the connection";
      break;
    }
    last = MonotonicNow();
    if (!first.has_value()) {
      first = last;
      rate.waited_us = absl::ToInt64Microseconds(last - began);
    }
    rate.bytes += static_cast<uint64_t>(got);
  }
  if (first.has_value()) rate.microseconds = absl::ToInt64Microseconds(last - *first);
  return rate;
}

}  // namespace th::doctor
