// TCP sockets whose waits are bounded, as both ends of an examination of a pair use them.
//
//   stream::Socket socket = MakeTcpSocket(address);
//   const int error = Connect(socket.fd(), address, {.deadline = MonotonicNow() + timeout});
//   if (error != 0) return strerror(error);
//
// All sockets are non-blocking. Thread-safe: no function has state of its own.
#ifndef TH_DOCTOR_SOCKETS_H_
#define TH_DOCTOR_SOCKETS_H_

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/transfer/stream/socket.h"

namespace th::doctor {

// The address and port of one end of a connection.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  // The numeric address without the port. An IPv4 address within IPv6 is shown as IPv4.
  std::string Host() const;
  uint16_t Port() const;
  // "10.0.0.7:7099", "[fd00::7]:7099".
  std::string ToString() const;
  SocketAddress WithPort(uint16_t port) const;
};

// `host` is numeric: "10.0.0.7", "fe80::7%eth0". nullopt where it is not.
std::optional<SocketAddress> NumericSocketAddress(const std::string& host, uint16_t port);
SocketAddress LocalEnd(int fd);
SocketAddress RemoteEnd(int fd);
// The network device that has this numeric address; empty if there is none.
std::string NetDeviceOf(const std::string& address);

// A wait ends with the first of these.
struct WaitLimit {
  absl::Time deadline;  // of MonotonicNow(); may be the infinite future
  int stop_fd = -1;     // ends the wait once it is readable; -1: nothing but the deadline does
};

// Waits until `fd` is ready for `events` (POLLIN, POLLOUT), has failed, or was closed by the other
// end. 0, ETIMEDOUT, ECANCELED when `stop_fd` became readable, or the errno of the wait.
int AwaitReady(int fd, short events, const WaitLimit& limit);

// True for an errno after which the same call may do better.
bool IsTransient(int error);

// A socket of the address's family. It has no descriptor when the system makes none (errno).
stream::Socket MakeTcpSocket(const SocketAddress& address);
// 0, or the errno; ETIMEDOUT and ECANCELED as AwaitReady.
int Connect(int fd, const SocketAddress& address, const WaitLimit& limit);
// A socket that listens. UNAVAILABLE with the errno's text.
absl::StatusOr<stream::Socket> ListenOn(const SocketAddress& address, int backlog);
// The next connection, or none with errno.
stream::Socket Accept(int listener);

}  // namespace th::doctor

#endif  // TH_DOCTOR_SOCKETS_H_
