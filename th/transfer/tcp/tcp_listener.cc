#include "th/transfer/tcp/tcp_listener.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"

namespace th {

using stream::SocketAddress;

absl::StatusOr<TcpListener> ListenForPeers(const std::string& listen_address,
                                           const std::vector<std::string>& advertised_hosts) {
  TH_ASSIGN_OR_RETURN(const SocketAddress wanted, SocketAddress::Parse(listen_address));
  TcpListener listener;
  TH_ASSIGN_OR_RETURN(listener.socket, stream::ListenOn(wanted));
  const SocketAddress bound = SocketAddress::OfSelf(listener.socket.fd());
  for (const std::string& host : advertised_hosts) {
    const std::string shown = absl::StrContains(host, ":") ? absl::StrCat("[", host, "]") : host;
    listener.addresses.push_back(absl::StrCat(shown, ":", bound.port()));
    TH_RETURN_IF_ERROR(SocketAddress::Parse(listener.addresses.back()).status());
  }
  if (!listener.addresses.empty()) return listener;
  if (bound.IsWildcard()) {
    return absl::InvalidArgumentError(
        absl::StrCat("listening on every address (", bound.ToString(),
                     ") needs to be told under which others reach this machine"));
  }
  listener.addresses.push_back(bound.ToString());
  return listener;
}

}  // namespace th
