#include "th/server/http_listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

constexpr size_t kReadBytes = 1024;
constexpr absl::string_view kEndOfRequest = "\r\n\r\n";

absl::string_view ReasonOf(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

HttpResponse Answer(absl::string_view request, const HttpHandler& handler) {
  const absl::string_view line = request.substr(0, request.find("\r\n"));
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  const bool complete = absl::StrContains(request, kEndOfRequest);
  if (!complete || words.size() != 3 || !absl::StartsWith(words[2], "HTTP/1.")) {
    return {.status = 400, .body = "this is no HTTP/1.1 request\n"};
  }
  if (words[0] != "GET") return {.status = 405, .body = "only GET is served here\n"};
  return handler(std::string(words[1].substr(0, words[1].find('?'))));
}

std::string Render(const HttpResponse& response) {
  return absl::StrCat(
      "HTTP/1.1 ", response.status, " ", ReasonOf(response.status),
      "\r\nContent-Type: ", response.content_type, "\r\nContent-Length: ", response.body.size(),
      "\r\nAllow: GET\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n", response.body);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpListener>> HttpListener::Start(const ListenAddress& address,
                                                                  HttpHandler handler) {
  TH_ASSIGN_OR_RETURN(const BoundSocket bound, BindAndListen(address));
  const int wake_fd = eventfd(0, EFD_CLOEXEC);
  if (wake_fd < 0) {
    const int error = errno;
    close(bound.fd);
    return absl::ErrnoToStatus(error, "cannot create an eventfd");
  }
  return std::unique_ptr<HttpListener>(
      new HttpListener({address.host, bound.port}, bound.fd, wake_fd, std::move(handler)));
}

HttpListener::HttpListener(ListenAddress address, int listen_fd, int wake_fd, HttpHandler handler)
    : address_(std::move(address)),
      listen_fd_(listen_fd),
      wake_fd_(wake_fd),
      handler_(std::move(handler)),
      thread_([this] { Run(); }) {}

HttpListener::~HttpListener() {
  eventfd_write(wake_fd_, 1);
  thread_.join();
  close(wake_fd_);
  close(listen_fd_);
}

void HttpListener::Run() {
  while (AwaitEvent(listen_fd_, POLLIN, absl::InfiniteFuture())) {
    const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      Serve(fd);
      close(fd);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // The connection stays in the backlog and poll would return at once: wait for better times.
      AwaitEvent(-1, 0, absl::Now() + kHttpDeadline);
    }
  }
}

void HttpListener::Serve(int fd) {
  const absl::Time deadline = absl::Now() + kHttpDeadline;
  const std::string request = ReadRequest(fd, deadline);
  if (request.empty()) return;
  WriteAll(fd, Render(Answer(request, handler_)), deadline);
  shutdown(fd, SHUT_WR);
}

bool HttpListener::AwaitEvent(int fd, short events, absl::Time deadline) const {
  for (;;) {
    pollfd fds[2] = {{wake_fd_, POLLIN, 0}, {fd, events, 0}};
    const int64_t left_ms = absl::ToInt64Milliseconds(deadline - absl::Now());
    const int timeout_ms =
        deadline == absl::InfiniteFuture() ? -1 : static_cast<int>(std::max<int64_t>(left_ms, 0));
    const int ready = poll(fds, 2, timeout_ms);
    if (ready < 0 && errno == EINTR) continue;
    return ready > 0 && fds[0].revents == 0;
  }
}

std::string HttpListener::ReadRequest(int fd, absl::Time deadline) const {
  std::string request;
  char buffer[kReadBytes];
  while (request.size() < kMaxHttpRequestBytes && !absl::StrContains(request, kEndOfRequest)) {
    if (!AwaitEvent(fd, POLLIN, deadline)) return "";
    const ssize_t count = recv(fd, buffer, sizeof(buffer), 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count <= 0) break;
    request.append(buffer, static_cast<size_t>(count));
  }
  return request;
}

void HttpListener::WriteAll(int fd, absl::string_view text, absl::Time deadline) const {
  while (!text.empty() && AwaitEvent(fd, POLLOUT, deadline)) {
    const ssize_t count = send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count < 0) return;
    text.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace th
