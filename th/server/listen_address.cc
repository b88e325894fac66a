#include "th/server/listen_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "th/status/status_macros.h"
#include "th/text/utf8.h"

namespace th {
namespace {

constexpr int kBacklog = 64;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> LookUp(const ListenAddress& address) {
  const addrinfo hints{.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error == 0) return AddressList(found, &freeaddrinfo);
  return absl::NotFoundError(
      absl::StrCat("cannot listen on ", address.ToString(), ": ", gai_strerror(error)));
}

absl::Status SystemError(const ListenAddress& address) {
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat("cannot listen on ", address.ToString()));
}

uint16_t PortOf(int fd) {
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) < 0) return 0;
  // Both families keep the port in the same place.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

}  // namespace

std::string ListenAddress::ToString() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return is_v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text) {
  const size_t colon = text.rfind(':');
  ListenAddress address;
  uint32_t port = 0;
  bool good = colon != absl::string_view::npos && absl::SimpleAtoi(text.substr(colon + 1), &port) &&
              port <= 0xffff;
  if (good) {
    absl::string_view host = text.substr(0, colon);
    const bool bracketed = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
    good = !host.empty() && (bracketed || host.find(':') == absl::string_view::npos);
    address = {std::string(host), static_cast<uint16_t>(port)};
  }
  if (good) return address;
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(text),
      " is no address to listen on; give HOST:PORT, such as 127.0.0.1:7077, with a port up to "
      "65535 (0: the system chooses)"));
}

absl::StatusOr<BoundSocket> BindAndListen(const ListenAddress& address) {
  TH_ASSIGN_OR_RETURN(const AddressList list, LookUp(address));
  const int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return SystemError(address);
  const int on = 1;  // a port whose old connections linger is free
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd, list->ai_addr, list->ai_addrlen) < 0 || listen(fd, kBacklog) < 0) {
    const absl::Status status = SystemError(address);
    close(fd);
    return status;
  }
  return BoundSocket{fd, PortOf(fd)};
}

}  // namespace th
