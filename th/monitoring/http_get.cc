#include "th/monitoring/http_get.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace th {

int ConnectSocket(const std::string& address) {
  uint32_t port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) return -1;
  sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) return fd;
  close(fd);
  return -1;
}

std::string HttpExchange(const std::string& address, const std::string& request) {
  const int fd = ConnectSocket(address);
  if (fd < 0) return "no connection";
  send(fd, request.data(), request.size(), MSG_NOSIGNAL);
  shutdown(fd, SHUT_WR);
  std::string response;
  char buffer[4096];
  for (ssize_t count = 0; (count = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
    response.append(buffer, static_cast<size_t>(count));
  }
  close(fd);
  return response;
}

std::string HttpGet(const std::string& address, const std::string& path) {
  return HttpExchange(address, absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: test\r\n\r\n"));
}

}  // namespace th
