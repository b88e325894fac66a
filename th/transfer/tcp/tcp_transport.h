// The TCP transport: a listener and connections over a few data threads. docs/protocol/data.md
// draws what crosses the wire.
//
//   TH_ASSIGN_OR_RETURN(auto tcp, TcpTransport::Create({.listen_address = "0.0.0.0:0",
//                                                       .advertised_hosts = {"10.0.0.7"}}));
//   tcp->AddHolder(worker, &delegate);
//   auto pull = tcp->Open(target, &sink);
//
// Threads: limits.data_threads loops named th-data-0.., all signals blocked. Each connection
// belongs to one of them. Thread-safe. Destroy it on none of its own threads; pulls may outlive it
// and hear OnClosed before its destructor returns.
#ifndef TH_TRANSFER_TCP_TCP_TRANSPORT_H_
#define TH_TRANSFER_TCP_TCP_TRANSPORT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "th/transfer/transport.h"

namespace th {

struct TcpOptions {
  // Numeric. Port 0: the system chooses one.
  std::string listen_address = "127.0.0.1:0";
  // Under which addresses others reach us, without a port; IPv6 without brackets. Empty: the
  // address listened on.
  std::vector<std::string> advertised_hosts;
  TransportLimits limits;
};

class TcpTransport : public Transport {
 public:
  // INVALID_ARGUMENT: an address that is not numeric, a wildcard address without advertised hosts,
  // no data thread. UNAVAILABLE: cannot listen (naming address and reason). RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<TcpTransport>> Create(TcpOptions options);
  // The port listened on.
  virtual uint16_t port() const = 0;
};

}  // namespace th

#endif  // TH_TRANSFER_TCP_TCP_TRANSPORT_H_
