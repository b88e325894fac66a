// Listening for peers over TCP, and the addresses under which they reach us.
//
//   TH_ASSIGN_OR_RETURN(TcpListener listener, ListenForPeers("0.0.0.0:0", {"10.0.0.7"}));
//   listener.addresses;  // {"10.0.0.7:40123"}
#ifndef TH_TRANSFER_TCP_TCP_LISTENER_H_
#define TH_TRANSFER_TCP_TCP_LISTENER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "th/transfer/stream/socket.h"

namespace th {

struct TcpListener {
  stream::Socket socket;
  std::vector<std::string> addresses;  // with the port; at least one
};

// `listen_address`: numeric, port 0 for one that the system chooses. `advertised_hosts`: without a
// port, IPv6 without brackets; empty: the address listened on. INVALID_ARGUMENT: an address that is
// not numeric, a wildcard address without advertised hosts. UNAVAILABLE: cannot listen (naming
// address and reason).
absl::StatusOr<TcpListener> ListenForPeers(const std::string& listen_address,
                                           const std::vector<std::string>& advertised_hosts);

}  // namespace th

#endif  // TH_TRANSFER_TCP_TCP_LISTENER_H_
