#include "th/cli/iperf.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "th/cli/child_process.h"
#include "th/cli/search_path.h"
#include "th/transfer/monotonic_clock.h"
#include "th/weights/status_macros.h"

namespace th {
namespace {

constexpr absl::Duration kListenTimeout = absl::Seconds(5);
constexpr absl::Duration kRunTimeout = absl::Minutes(2);
constexpr absl::Duration kStopPoll = absl::Milliseconds(100);

// iperf3 cannot choose a port itself; nobody else is likely to take this one in between.
absl::StatusOr<uint16_t> UnusedPort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const bool bound =
      fd >= 0 && bind(fd, generic, size) == 0 && getsockname(fd, generic, &size) == 0;
  if (fd >= 0) close(fd);
  if (!bound) return absl::UnavailableError("no port for iperf3");
  return ntohs(address.sin_port);
}

// Collects lines until `enough` or the end of the output.
absl::StatusOr<std::vector<std::string>> ReadUntil(
    ChildProcess& child, absl::Duration timeout, const std::function<bool()>& stopped,
    const std::function<bool(const std::string&)>& enough) {
  std::vector<std::string> lines;
  const absl::Time deadline = MonotonicNow() + timeout;
  while (child.output_fd() >= 0) {
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("iperf3 takes too long");
    if (stopped()) return absl::CancelledError("interrupted");
    pollfd waited{.fd = child.output_fd(), .events = POLLIN, .revents = 0};
    poll(&waited, 1, static_cast<int>(absl::ToInt64Milliseconds(std::min(left, kStopPoll))) + 1);
    for (std::string& line : child.ReadLines()) {
      lines.push_back(std::move(line));
      if (enough(lines.back())) return lines;
    }
  }
  return lines;
}

}  // namespace

absl::StatusOr<double> GigabytesPerSecondOfIperf(absl::string_view text) {
  const nlohmann::json report = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (report.is_object() && report.contains("error")) {
    return absl::InvalidArgumentError(absl::StrCat("iperf3: ", report["error"].dump()));
  }
  const nlohmann::json::json_pointer place("/end/sum_received/bits_per_second");
  if (!report.is_object() || !report.contains(place) || !report[place].is_number()) {
    return absl::InvalidArgumentError("iperf3 did not say how fast it was");
  }
  return report[place].get<double>() / 8e9;
}

absl::StatusOr<double> MeasureIperf(uint64_t bytes, uint32_t connections,
                                    const std::function<bool()>& stopped) {
  TH_ASSIGN_OR_RETURN(const std::string program, FindTool("iperf3"));
  TH_ASSIGN_OR_RETURN(const uint16_t port, UnusedPort());
  TH_ASSIGN_OR_RETURN(const auto server,
                      ChildProcess::Start({.name = "iperf3 server",
                                           .arguments = {program, "-s", "-1", "--forceflush", "-p",
                                                         absl::StrCat(port)},
                                           .log_path = "/dev/null"}));
  TH_RETURN_IF_ERROR(ReadUntil(*server, kListenTimeout, stopped, [](const std::string& line) {
                       return absl::StrContains(line, "listening");
                     }).status());
  TH_ASSIGN_OR_RETURN(
      const auto client,
      ChildProcess::Start({.name = "iperf3",
                           .arguments = {program, "-c", "127.0.0.1", "-p", absl::StrCat(port), "-P",
                                         absl::StrCat(connections), "-n", absl::StrCat(bytes), "-C",
                                         "cubic", "--json"},
                           .log_path = "/dev/null"}));
  TH_ASSIGN_OR_RETURN(
      const std::vector<std::string> lines,
      ReadUntil(*client, kRunTimeout, stopped, [](const std::string&) { return false; }));
  return GigabytesPerSecondOfIperf(absl::StrJoin(lines, "\n"));
}

}  // namespace th
