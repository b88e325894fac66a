#include "th/processes/tool_process.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

constexpr absl::Duration kStopPoll = absl::Milliseconds(100);
constexpr absl::Duration kListenPoll = absl::Milliseconds(20);
// Columns of /proc/net/tcp: its number, the local address, the remote one, the state.
constexpr size_t kLocalColumn = 1, kStateColumn = 3;
constexpr absl::string_view kListening = "0A";

std::string TextOf(const char* path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string LastLine(const std::vector<std::string>& lines) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const absl::string_view text = absl::StripAsciiWhitespace(*line);
    if (!text.empty()) return absl::StrCat(": ", text);
  }
  return "";
}

// Appends what comes within `at_most`.
void ReadSome(ChildProcess& child, absl::Duration at_most, std::vector<std::string>* lines) {
  // A negative descriptor, after the output's end, is ignored: poll waits for the time alone.
  pollfd waited{.fd = child.output_fd(), .events = POLLIN, .revents = 0};
  poll(&waited, 1, static_cast<int>(absl::ToInt64Milliseconds(at_most)) + 1);
  for (std::string& line : child.ReadLines()) lines->push_back(std::move(line));
}

// OK while there is time left and nobody has stopped the measurement.
absl::Status CheckGoesOn(const ChildProcess& child, absl::Time deadline,
                         const std::function<bool()>& stopped) {
  if (MonotonicNow() >= deadline) {
    return absl::DeadlineExceededError(absl::StrCat(child.name(), " takes too long"));
  }
  if (stopped && stopped()) return absl::CancelledError("interrupted");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint16_t> UnusedPort(absl::string_view tool) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const bool bound =
      fd >= 0 && bind(fd, generic, size) == 0 && getsockname(fd, generic, &size) == 0;
  if (fd >= 0) close(fd);
  if (!bound) return absl::UnavailableError(absl::StrCat("no port for ", tool));
  return ntohs(address.sin_port);
}

bool ListensOn(absl::string_view table, uint16_t port) {
  const std::string wanted = absl::StrFormat(":%04X", port);
  for (const absl::string_view line : absl::StrSplit(table, '\n')) {
    const std::vector<absl::string_view> columns =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (columns.size() > kStateColumn && columns[kStateColumn] == kListening &&
        absl::EndsWith(columns[kLocalColumn], wanted)) {
      return true;
    }
  }
  return false;
}

absl::Status AwaitListening(ChildProcess& child, uint16_t port, absl::Duration timeout,
                            const std::function<bool()>& stopped) {
  const absl::Time deadline = MonotonicNow() + timeout;
  std::vector<std::string> lines;
  while (!ListensOn(TextOf("/proc/net/tcp"), port) && !ListensOn(TextOf("/proc/net/tcp6"), port)) {
    if (child.HasEnded()) {
      ReadSome(child, absl::ZeroDuration(), &lines);
      return absl::UnavailableError(
          absl::StrCat(child.name(), " ", child.Condition(), LastLine(lines)));
    }
    const absl::Status goes_on = CheckGoesOn(child, deadline, stopped);
    if (!goes_on.ok()) return goes_on;
    ReadSome(child, kListenPoll, &lines);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ReadToEnd(ChildProcess& child, absl::Duration timeout,
                                                   const std::function<bool()>& stopped) {
  const absl::Time deadline = MonotonicNow() + timeout;
  std::vector<std::string> lines;
  while (child.output_fd() >= 0) {
    const absl::Status goes_on = CheckGoesOn(child, deadline, stopped);
    if (!goes_on.ok()) return goes_on;
    ReadSome(child, std::min(kStopPoll, deadline - MonotonicNow()), &lines);
  }
  return lines;
}

}  // namespace th
