#include "th/client/server_probe.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "th/client/data_address.h"
#include "th/client/name_resolution.h"

namespace th {
namespace {

// The first words of every HTTP/2 client: the preface and an empty SETTINGS frame.
constexpr absl::string_view kFirstWords{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33};
// The type of a SETTINGS frame, with which a server answers, and its place.
constexpr size_t kFrameTypeAt = 3;
constexpr char kSettingsFrame = 4;

// 0, or the errno of what went wrong.
int AwaitReady(int fd, short events, absl::Duration timeout) {
  pollfd waited{.fd = fd, .events = events, .revents = 0};
  const int ready = poll(&waited, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  if (ready < 0) return errno;
  return ready == 0 ? ETIMEDOUT : 0;
}

int Connect(int fd, const addrinfo& to, absl::Duration timeout) {
  if (connect(fd, to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (const int error = AwaitReady(fd, POLLOUT, timeout)) return error;
  int error = 0;
  socklen_t length = sizeof(error);
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

std::string WhyNotConnected(int error) {
  if (error == ECONNREFUSED) {
    return "nothing listens there (connection refused); is the port right, does the server run?";
  }
  if (error == ETIMEDOUT) {
    return "nothing answers there; is the host right and up, does a firewall drop what is sent?";
  }
  return absl::StrCat("it cannot be connected to (", strerror(error), ")");
}

std::string Judge(absl::string_view answer) {
  if (absl::StartsWith(answer, "HTTP/1")) {
    return "what listens there speaks HTTP, not gRPC; is it a status page (tensorhub_server "
           "--http)? The address for workers and commands is that of --listen";
  }
  if (answer.size() > kFrameTypeAt && answer[kFrameTypeAt] == kSettingsFrame) {
    return std::string(kServerAnswers);
  }
  return "what listens there does not speak gRPC; is the port right?";
}

std::string ListenTo(int fd, absl::Duration timeout) {
  std::array<char, 64> answer;
  (void)send(fd, kFirstWords.data(), kFirstWords.size(), MSG_NOSIGNAL);
  if (AwaitReady(fd, POLLIN, timeout) != 0) {
    return "what listens there takes connections and says nothing; is the server stopped or stuck?";
  }
  const ssize_t got = recv(fd, answer.data(), answer.size(), 0);
  return Judge({answer.data(), got > 0 ? static_cast<size_t>(got) : 0});
}

std::string Probe(const addrinfo& to, absl::Duration timeout) {
  const int fd = socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return WhyNotConnected(errno);
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  const int error = Connect(fd, to, timeout);
  return error == 0 ? ListenTo(fd, timeout) : WhyNotConnected(error);
}

}  // namespace

std::string WhyNoServer(const std::string& server, absl::Duration timeout) {
  const absl::StatusOr<HostPort> target = ParseHostPort(server);
  if (!target.ok()) return std::string(target.status().message());
  const absl::StatusOr<Addresses> found = ResolveHost(*target, SOCK_STREAM, timeout);
  if (!found.ok()) {
    return absl::StrCat("the host ", target->host, " is not known here (", found.status().message(),
                        "); is the name right?");
  }
  return Probe(**found, timeout);
}

}  // namespace th
