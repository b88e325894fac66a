// The addresses of a host, looked up within a time: the system's resolver takes as long as its
// configuration says, and cannot be stopped.
#ifndef TH_CLIENT_NAME_RESOLUTION_H_
#define TH_CLIENT_NAME_RESOLUTION_H_

#include <netdb.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace th {

struct HostPort {
  std::string host;  // without brackets
  std::string port;
};

// Look-ups of this process that go on after their time. With so many the next is refused; those
// that callers wait for do not count.
inline constexpr int kMaxLookUpsLeftBehind = 16;

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;
// As getaddrinfo: 0, or an error of its own.
using HostResolver = std::function<int(const HostPort&, const addrinfo& hints, addrinfo** found)>;
HostResolver SystemResolver();

// The addresses of `target` for sockets of type `socktype` (SOCK_STREAM). UNAVAILABLE saying why
// there is none, or that the resolver has not answered within `timeout`: it is asked on a thread of
// its own, which ends with it. Thread-safe, blocks; a numeric host does not.
absl::StatusOr<Addresses> ResolveHost(const HostPort& target, int socktype, absl::Duration timeout,
                                      const HostResolver& resolver = SystemResolver());

}  // namespace th

#endif  // TH_CLIENT_NAME_RESOLUTION_H_
