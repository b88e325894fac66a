#include "th/server/freezing_proxy.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "th/monitoring/http_get.h"
#include "th/monitoring/listen_address.h"

namespace th {
namespace {

// How soon Freeze() and the end take effect.
constexpr int kPollMilliseconds = 10;

// False: one side is closed.
bool PassOn(int from, int to) {
  char buffer[16'384];
  const ssize_t count = recv(from, buffer, sizeof(buffer), MSG_DONTWAIT);
  if (count < 0) return true;
  return count > 0 && send(to, buffer, static_cast<size_t>(count), MSG_NOSIGNAL) == count;
}

}  // namespace

FreezingProxy::FreezingProxy(int port) {
  const auto bound = BindAndListen({"127.0.0.1", 0});
  if (!bound.ok()) return;  // the address stays empty: connecting fails
  address_ = absl::StrCat("127.0.0.1:", bound->port);
  thread_ = std::thread([this, fd = bound->fd, port] { Run(fd, port); });
}

FreezingProxy::~FreezingProxy() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

void FreezingProxy::Run(int listen_fd, int port) {
  int client = -1;
  while (!stopping_ && client < 0) {
    pollfd ready{listen_fd, POLLIN, 0};
    if (poll(&ready, 1, kPollMilliseconds) > 0) client = accept(listen_fd, nullptr, nullptr);
  }
  const int server = ConnectSocket(absl::StrCat("127.0.0.1:", port));
  bool open = true;
  while (!stopping_) {
    pollfd ready[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
    const int count =
        frozen_ || !open ? poll(nullptr, 0, kPollMilliseconds) : poll(ready, 2, kPollMilliseconds);
    if (count <= 0) continue;
    open = PassOn(client, server) && PassOn(server, client);
  }
  close(client);
  close(server);
  close(listen_fd);
}

}  // namespace th
