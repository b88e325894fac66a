#include "th/monitoring/http_listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "th/monitoring/descriptors.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

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

// A request as it was read: the page that it asks for, or the status that refuses it.
struct Request {
  std::string path;
  bool head_only = false;
  int refused = 0;  // a status
};

Request ParseRequest(absl::string_view text) {
  const absl::string_view line = text.substr(0, text.find("\r\n"));
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  const bool complete = absl::StrContains(text, kEndOfRequest);
  if (!complete || words.size() != 3 || !absl::StartsWith(words[2], "HTTP/1.")) {
    return {.refused = 400};
  }
  if (words[0] != "GET" && words[0] != "HEAD") return {.refused = 405};
  return {.path = std::string(words[1].substr(0, words[1].find('?'))),
          .head_only = words[0] == "HEAD"};
}

HttpResponse Refusal(int status) {
  switch (status) {
    case 405:
      return {.status = status, .body = "only GET and HEAD are served here\n"};
    case 503:
      return {.status = status, .body = "too much is waiting to be read by other clients\n"};
    default:
      return {.status = status, .body = "this is no HTTP/1.1 request\n"};
  }
}

std::string RenderHead(int status, absl::string_view content_type, size_t body_bytes) {
  return absl::StrCat("HTTP/1.1 ", status, " ", ReasonOf(status),
                      "\r\nContent-Type: ", content_type, "\r\nContent-Length: ", body_bytes,
                      "\r\nAllow: GET, HEAD\r\nCache-Control: no-store\r\nConnection: close\r\n"
                      "\r\n");
}

// The response to a path in one round.
struct SharedResponse {
  int status = 200;
  std::string content_type;
  std::shared_ptr<const std::string> body;
};

SharedResponse Share(HttpResponse response) {
  return {response.status, std::move(response.content_type),
          std::make_shared<const std::string>(std::move(response.body))};
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpListener>> HttpListener::Start(const ListenAddress& address,
                                                                  HttpHandler handler,
                                                                  Options options) {
  TH_ASSIGN_OR_RETURN(const BoundSocket bound, BindAndListen(address));
  const int wake_fd = eventfd(0, EFD_CLOEXEC);
  if (wake_fd < 0) {
    const int error = errno;
    close(bound.fd);
    return absl::ErrnoToStatus(error, "cannot create an eventfd");
  }
  options.max_connections = std::max<size_t>(options.max_connections, 1);
  return std::unique_ptr<HttpListener>(
      new HttpListener({address.host, bound.port}, bound.fd, wake_fd, std::move(handler), options));
}

HttpListener::HttpListener(ListenAddress address, int listen_fd, int wake_fd, HttpHandler handler,
                           Options options)
    : address_(std::move(address)),
      listen_fd_(listen_fd),
      wake_fd_(wake_fd),
      handler_(std::move(handler)),
      options_(options),
      thread_([this] { Run(); }) {}

HttpListener::~HttpListener() {
  eventfd_write(wake_fd_, 1);
  thread_.join();
  for (const Connection& connection : connections_) close(connection.fd);
  close(wake_fd_);
  close(listen_fd_);
}

void HttpListener::Run() {
  while (AwaitEvents()) {
    AcceptAll(MonotonicNow());
    for (Connection& connection : connections_) {
      if (!connection.complete) Read(connection);
    }
    AnswerAll();
    for (Connection& connection : connections_) {
      if (connection.complete) Write(connection);
    }
    CloseOver(MonotonicNow());
  }
}

bool HttpListener::AwaitEvents() {
  const absl::Time now = MonotonicNow();
  const bool accepts = accept_again_at_ <= now;
  absl::Time wake_at = accepts ? absl::InfiniteFuture() : accept_again_at_;
  std::vector<pollfd> fds = {{wake_fd_, POLLIN, 0}, {accepts ? listen_fd_ : -1, POLLIN, 0}};
  for (const Connection& connection : connections_) {
    const short events = connection.complete ? POLLOUT : POLLIN;
    fds.push_back({connection.fd, events, 0});
    wake_at = std::min(wake_at, connection.deadline);
  }
  const int64_t left_ms = absl::ToInt64Milliseconds(wake_at - now) + 1;
  const int timeout_ms =
      wake_at == absl::InfiniteFuture() ? -1 : static_cast<int>(std::max<int64_t>(left_ms, 0));
  const int ready = poll(fds.data(), fds.size(), timeout_ms);
  return ready <= 0 || fds[0].revents == 0;
}

void HttpListener::AcceptAll(absl::Time now) {
  if (now < accept_again_at_) return;
  // A bound of what one round takes in, so that the others are read and written meanwhile.
  for (size_t i = 0; i < options_.max_connections; ++i) {
    const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      if (connections_.size() >= options_.max_connections) MakeRoom();
      connections_.push_back({.fd = fd, .deadline = now + options_.deadline});
      Read(connections_.back());  // who has asked already is not the one that makes room
    } else if (IsShortage(errno)) {
      if (MakeRoom()) continue;
      accept_again_at_ = now + kAcceptRetry;
      return;
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;
    }
  }
}

bool HttpListener::MakeRoom() {
  auto victim =
      std::find_if(connections_.begin(), connections_.end(),
                   [](const Connection& connection) { return connection.request.empty(); });
  if (victim == connections_.end()) victim = connections_.begin();
  if (victim == connections_.end()) return false;
  close(victim->fd);
  connections_.erase(victim);
  return true;
}

void HttpListener::Read(Connection& connection) {
  char buffer[kReadBytes];
  while (!connection.complete) {
    const ssize_t count = recv(connection.fd, buffer, sizeof(buffer), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count > 0) connection.request.append(buffer, static_cast<size_t>(count));
    const bool ended = count <= 0;
    if (ended && connection.request.empty()) connection.over = true;
    connection.complete = ended || connection.request.size() >= kMaxHttpRequestBytes ||
                          absl::StrContains(connection.request, kEndOfRequest);
  }
}

void HttpListener::AnswerAll() {
  std::map<std::string, SharedResponse> answers;  // by path
  size_t unsent = UnsentBytes();
  for (Connection& connection : connections_) {
    if (!connection.complete || connection.over || connection.body != nullptr) continue;
    const Request request = ParseRequest(connection.request);
    SharedResponse response;
    if (request.refused != 0) {
      response = Share(Refusal(request.refused));
    } else if (const auto known = answers.find(request.path); known != answers.end()) {
      response = known->second;
    } else if (unsent > kMaxHttpUnsentBytes) {
      response = Share(Refusal(503));
    } else {
      response = Share(handler_(request.path));
      unsent += response.body->size();
      answers[request.path] = response;
    }
    connection.head = RenderHead(response.status, response.content_type, response.body->size());
    connection.body =
        request.head_only ? std::make_shared<const std::string>() : std::move(response.body);
    const absl::Time now = MonotonicNow();  // the handler may have taken long
    connection.deadline = now + options_.deadline;
    connection.latest = now + options_.longest_response;
  }
}

size_t HttpListener::UnsentBytes() const {
  std::set<const std::string*> bodies;
  size_t bytes = 0;
  for (const Connection& connection : connections_) {
    const std::string* body = connection.body.get();
    if (body != nullptr && bodies.insert(body).second) bytes += body->size();
  }
  return bytes;
}

void HttpListener::Write(Connection& connection) {
  while (!connection.over) {
    const bool in_head = connection.sent < connection.head.size();
    const std::string& part = in_head ? connection.head : *connection.body;
    const size_t at = in_head ? connection.sent : connection.sent - connection.head.size();
    if (at >= part.size()) {
      shutdown(connection.fd, SHUT_WR);
      connection.over = true;
      return;
    }
    const int flags = MSG_NOSIGNAL | (in_head && !connection.body->empty() ? MSG_MORE : 0);
    const ssize_t count = send(connection.fd, part.data() + at, part.size() - at, flags);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count < 0) connection.over = true;
    if (count <= 0) continue;
    connection.sent += static_cast<size_t>(count);
    connection.deadline = std::min(MonotonicNow() + options_.deadline, connection.latest);
  }
}

void HttpListener::CloseOver(absl::Time now) {
  for (auto it = connections_.begin(); it != connections_.end();) {
    if (it->over || it->deadline <= now) {
      close(it->fd);
      it = connections_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace th
