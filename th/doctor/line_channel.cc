#include "th/doctor/line_channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "th/status/status_macros.h"
#include "th/text/utf8.h"
#include "th/transfer/monotonic_clock.h"

namespace th::doctor {
namespace {

// The most bytes of one recv.
constexpr size_t kReceiveBytes = 4096;

absl::Status StatusOfErrno(int error) {
  if (error == ETIMEDOUT) return absl::DeadlineExceededError("no answer in time");
  if (error == ECANCELED) return absl::CancelledError("stopped");
  return absl::UnavailableError(strerror(error));
}

// Discarded when `line` is no JSON object, or nested more deeply than any line of the protocol: to
// copy a value takes stack for each level.
nlohmann::json ParseObject(absl::string_view line) {
  bool too_deep = false;
  const auto visit = [&too_deep](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep = too_deep || depth > LineChannel::kMaxNesting;
    return !too_deep;
  };
  nlohmann::json parsed =
      nlohmann::json::parse(line.begin(), line.end(), visit, /*allow_exceptions=*/false);
  if (parsed.is_object() && !too_deep) return parsed;
  return nlohmann::json(nlohmann::json::value_t::discarded);
}

}  // namespace

absl::Status LineChannel::Send(const nlohmann::json& object, absl::Duration timeout) {
  const WaitLimit limit = {.deadline = MonotonicNow() + timeout, .stop_fd = stop_fd_};
  const std::string line =
      object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  for (absl::string_view rest = line; !rest.empty();) {
    const ssize_t sent = send(fd(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      rest.remove_prefix(static_cast<size_t>(sent));
      continue;
    }
    if (!IsTransient(errno)) return StatusOfErrno(errno);
    const int waited = AwaitReady(fd(), POLLOUT, limit);
    if (waited != 0) return StatusOfErrno(waited);
  }
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::json> LineChannel::Receive(absl::Duration timeout) {
  const WaitLimit limit = {.deadline = MonotonicNow() + timeout, .stop_fd = stop_fd_};
  size_t searched = 0;  // bytes that hold no end of a line
  for (;;) {
    const size_t end = received_.find('\n', searched);
    const bool foreign = !received_.empty() && received_.front() != '{';
    if (foreign || (end == std::string::npos ? received_.size() : end) > kMaxLineBytes) {
      return NoLine();
    }
    if (end != std::string::npos) {
      nlohmann::json object = ParseObject(absl::string_view(received_).substr(0, end));
      if (object.is_discarded()) return NoLine();
      received_.erase(0, end + 1);
      return object;
    }
    searched = received_.size();
    TH_RETURN_IF_ERROR(ReceiveMore(limit));
  }
}

absl::Status LineChannel::ReceiveMore(const WaitLimit& limit) {
  const int waited = AwaitReady(fd(), POLLIN, limit);
  if (waited == ETIMEDOUT && !received_.empty()) return NoLine();
  if (waited != 0) return StatusOfErrno(waited);
  std::array<char, kReceiveBytes> bytes;
  const ssize_t got = recv(fd(), bytes.data(), bytes.size(), 0);
  if (got < 0) return IsTransient(errno) ? absl::OkStatus() : StatusOfErrno(errno);
  if (got == 0 && !received_.empty()) return NoLine();
  if (got == 0) return absl::UnavailableError("it closed the connection");
  received_.append(bytes.data(), static_cast<size_t>(got));
  heard_ = true;
  return absl::OkStatus();
}

absl::Status LineChannel::NoLine() const {
  const absl::string_view line = absl::string_view(received_).substr(0, received_.find('\n'));
  return absl::InvalidArgumentError(
      absl::StrCat("it sent ", Quoted(line), ", which is no line with a JSON object"));
}

void LineChannel::SendLast(const nlohmann::json& object) {
  if (!Send(object, kLingerTime).ok()) return;
  shutdown(fd(), SHUT_WR);
  const WaitLimit limit = {.deadline = MonotonicNow() + kLingerTime, .stop_fd = stop_fd_};
  std::array<char, kReceiveBytes> bytes;
  while (AwaitReady(fd(), POLLIN, limit) == 0 && MonotonicNow() < limit.deadline) {
    const ssize_t got = recv(fd(), bytes.data(), bytes.size(), 0);
    if (got == 0 || (got < 0 && !IsTransient(errno))) return;
  }
}

}  // namespace th::doctor
