// Sockets as the data plane needs them: non-blocking, closed on exec, never raising SIGPIPE.
#ifndef TH_TRANSFER_STREAM_SOCKET_H_
#define TH_TRANSFER_STREAM_SOCKET_H_

#include <sys/socket.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace th::stream {

inline constexpr size_t kMaxUnixNameBytes = 107;

// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() { Close(); }
  void Close();
  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A numeric address with its port: "10.0.0.7:4711", "[::1]:0"; or the name of a Unix socket, which
// no file stands for: "@tensorhub-1". Never resolves a name, as that blocks.
class SocketAddress {
 public:
  // INVALID_ARGUMENT saying what is expected.
  static absl::StatusOr<SocketAddress> Parse(absl::string_view text);
  // The address of a Unix socket in the abstract namespace. INVALID_ARGUMENT: no name, or one of
  // more than kMaxUnixNameBytes.
  static absl::StatusOr<SocketAddress> OfUnixName(absl::string_view name);
  static SocketAddress OfPeer(int fd);
  static SocketAddress OfSelf(int fd);

  std::string ToString() const;
  int family() const { return storage_.ss_family; }
  bool IsLoopback() const;
  bool IsWildcard() const;
  uint16_t port() const;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

// UNAVAILABLE naming the address and the reason (a port that is taken, an address that is not
// ours).
absl::StatusOr<Socket> ListenOn(const SocketAddress& address);
// Begins to connect; writable once done, see TakeSocketError.
absl::StatusOr<Socket> BeginConnect(const SocketAddress& address);
// The error of a finished connect, 0 when it went well.
int TakeSocketError(int fd);

// The peer at the other end, whatever its port: "10.0.0.7", or "process 4711" of a Unix socket
// ("process 0": it cannot be seen from here).
std::string PeerName(int fd);

// "Connection refused (111)".
std::string ErrnoText(int error);

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_SOCKET_H_
