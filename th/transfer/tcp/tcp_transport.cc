#include "th/transfer/tcp/tcp_transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <utility>

#include "th/status/status_macros.h"
#include "th/transfer/stream/medium.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/stream/stream_transport.h"
#include "th/transfer/tcp/tcp_listener.h"

namespace th {
namespace {

using stream::SocketAddress;

// A peer host that answers nothing (or whose reader takes nothing) for so long is given up by TCP.
constexpr unsigned int kUserTimeoutMs = 30'000;
constexpr int kKeepAliveIdleSeconds = 10;
constexpr int kKeepAliveIntervalSeconds = 5;
constexpr int kKeepAliveProbes = 3;
// On loopback there is no delay to fill, and what the system would let queue up (megabytes a
// connection) has left the cache when the reader comes to it.
constexpr int kLoopbackSendBufferBytes = 256 << 10;

void SetInt(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof(value));
}

class TcpMedium : public stream::Medium {
 public:
  explicit TcpMedium(std::string congestion_control)
      : congestion_control_(std::move(congestion_control)) {}

  absl::string_view name() const override { return kTcpTransport; }
  absl::string_view thread_name() const override { return "th-data"; }
  // TCP is tried wherever there is an address: who cannot be reached hears it from the network.
  absl::Status Reach(const Endpoint& endpoint) const override { return absl::OkStatus(); }
  absl::StatusOr<SocketAddress> AddressOf(const Endpoint& endpoint) const override {
    return SocketAddress::Parse(endpoint.address);
  }
  void Tune(int fd) const override { TuneTcpConnection(fd, congestion_control_); }

 private:
  const std::string congestion_control_;
};

}  // namespace

void TuneTcpConnection(int fd, const std::string& congestion_control) {
  SetInt(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetInt(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetInt(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleSeconds);
  SetInt(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalSeconds);
  SetInt(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof(kUserTimeoutMs));
  std::string chosen = congestion_control;
  if (SocketAddress::OfPeer(fd).IsLoopback()) {
    if (chosen.empty()) chosen = "cubic";
    SetInt(fd, SOL_SOCKET, SO_SNDBUF, kLoopbackSendBufferBytes);
  }
  // Where it is not to be had the system's choice stays: slower at worst.
  if (!chosen.empty()) {
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, chosen.data(),
               static_cast<socklen_t>(chosen.size()));
  }
}

absl::StatusOr<std::unique_ptr<Transport>> NewTcpTransport(const TcpOptions& options) {
  TH_ASSIGN_OR_RETURN(TcpListener listener,
                      ListenForPeers(options.listen_address, options.advertised_hosts));
  std::vector<Endpoint> endpoints;
  for (const std::string& address : listener.addresses) endpoints.push_back({.address = address});
  return stream::StreamTransport::Start(
      std::make_shared<TcpMedium>(options.limits.congestion_control), std::move(listener.socket),
      std::move(endpoints), options.limits);
}

}  // namespace th
