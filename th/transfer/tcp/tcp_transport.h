// The TCP transport: works everywhere, through a listener of its own.
//
//   TH_ASSIGN_OR_RETURN(auto tcp, NewTcpTransport({.listen_address = "0.0.0.0:0",
//                                                  .advertised_hosts = {"10.0.0.7"}}));
//   tcp->AddHolder(worker, &delegate);
//   auto pull = tcp->Open(target, &sink);
//
// Threads: limits.data_threads loops named th-data-0.., as of a StreamTransport.
#ifndef TH_TRANSFER_TCP_TCP_TRANSPORT_H_
#define TH_TRANSFER_TCP_TCP_TRANSPORT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "th/transfer/transport.h"

namespace th {

inline constexpr char kTcpTransport[] = "tcp";

struct TcpOptions {
  // Numeric. Port 0: the system chooses one.
  std::string listen_address = "127.0.0.1:0";
  // Under which addresses others reach us, without a port; IPv6 without brackets. Empty: the
  // address listened on.
  std::vector<std::string> advertised_hosts;
  TransportLimits limits;
};

// INVALID_ARGUMENT: an address that is not numeric, a wildcard address without advertised hosts, no
// data thread. UNAVAILABLE: cannot listen (naming address and reason). RESOURCE_EXHAUSTED.
absl::StatusOr<std::unique_ptr<Transport>> NewTcpTransport(const TcpOptions& options);

// Tunes a connection as those of the transport are: no delay, dead peers noticed, the congestion
// control as named; when empty, cubic on loopback, where pacing ones such as bbr are slow, and the
// system's choice elsewhere. For probes that want to be compared with it.
void TuneTcpConnection(int fd, const std::string& congestion_control);

}  // namespace th

#endif  // TH_TRANSFER_TCP_TCP_TRANSPORT_H_
