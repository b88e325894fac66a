// "HOST:PORT" to listen on.
#ifndef TH_MONITORING_LISTEN_ADDRESS_H_
#define TH_MONITORING_LISTEN_ADDRESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace th {

struct ListenAddress {
  std::string host;   // a name or an address; IPv6 without brackets
  uint16_t port = 0;  // 0: the system chooses

  std::string ToString() const;  // "127.0.0.1:7077", "[::1]:7077"
};

// INVALID_ARGUMENT naming the text when it is no HOST:PORT.
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text);

// The message of that error; empty for a good address. For checks of flags.
std::string WhyNoListenAddress(const std::string& text);

struct BoundSocket {
  int fd = -1;  // the caller's to close; non-blocking, close-on-exec
  uint16_t port = 0;
};
// Binds and listens. NOT_FOUND when the host is unknown, otherwise what the system says
// (FAILED_PRECONDITION: the port is taken), naming the address.
absl::StatusOr<BoundSocket> BindAndListen(const ListenAddress& address);
// Likewise on every address of the host's name, all with one port ("localhost" has two). Addresses
// of families that this machine does not have are left out; there is at least one.
absl::StatusOr<std::vector<BoundSocket>> BindAndListenEverywhere(const ListenAddress& address);

}  // namespace th

#endif  // TH_MONITORING_LISTEN_ADDRESS_H_
