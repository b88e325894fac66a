#include "th/client/data_plane.h"

#include <functional>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "th/client/data_address.h"
#include "th/client/runtime.h"
#include "th/transfer/tcp/tcp_transport.h"
#include "th/weights/status_macros.h"

namespace th {
namespace {

struct Shared {
  absl::Mutex mu;
  // By the server's address; those that have ended are dropped when the next is opened.
  std::map<std::string, std::weak_ptr<DataPlane>, std::less<>> data_planes ABSL_GUARDED_BY(mu);
};

// Never destroyed: a client may still end during the host's exit.
Shared& SharedDataPlane() {
  static Shared* shared = new Shared;
  return *shared;
}

std::shared_ptr<DataPlane> Known(const Shared& shared, absl::string_view server)
    ABSL_SHARED_LOCKS_REQUIRED(shared.mu) {
  const auto known = shared.data_planes.find(std::string(server));
  return known == shared.data_planes.end() ? nullptr : known->second.lock();
}

absl::Status Differs(absl::string_view option, const std::string& first,
                     const std::string& wanted) {
  return absl::FailedPreconditionError(absl::StrCat(
      "option ", option, " is ", wanted, " here, but the first client of this server chose ", first,
      "; the data plane is shared by all clients that a process has of a server"));
}

absl::Status CheckBounds(absl::string_view option, uint32_t value, uint32_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("option ", option, " is ", value, ", not between 1 and ", max));
}

std::string Shown(const std::string& text) { return text.empty() ? "unset" : text; }

// Not UNAVAILABLE: that is a server that does not answer.
absl::Status CannotListen(const std::string& address, const absl::Status& why) {
  if (!absl::IsUnavailable(why)) return why;
  return absl::FailedPreconditionError(absl::StrCat("option data_address: cannot listen on ",
                                                    address, ": ", why.message(),
                                                    "; choose another, or port 0"));
}

// Nobody can connect to a wildcard: what is advertised then is the address that leads to the
// server.
absl::StatusOr<std::vector<std::string>> AdvertisedHosts(const std::string& listen,
                                                         absl::string_view server,
                                                         absl::Duration resolve_timeout) {
  if (!absl::StartsWith(listen, "0.0.0.0:") && !absl::StartsWith(listen, "[::]:")) {
    return std::vector<std::string>();
  }
  TH_ASSIGN_OR_RETURN(std::string host, LocalAddressTowards(server, resolve_timeout));
  return std::vector<std::string>{std::move(host)};
}

}  // namespace

DataPlane::DataPlane(DataPlaneOptions options, std::unique_ptr<Transport> transport,
                     std::vector<Endpoint> endpoints)
    : options_(std::move(options)),
      transport_(std::move(transport)),
      endpoints_(std::move(endpoints)) {}

absl::StatusOr<std::shared_ptr<DataPlane>> DataPlane::Open(const DataPlaneOptions& options,
                                                           absl::string_view server,
                                                           absl::Duration resolve_timeout) {
  TH_RETURN_IF_ERROR(CheckBounds("data_threads", options.threads, kMaxDataThreads));
  TH_RETURN_IF_ERROR(CheckBounds("connections_per_source", options.connections_per_source,
                                 kMaxConnectionsPerSource));
  TcpOptions tcp;
  std::string host = options.address;
  if (host.empty()) {
    TH_ASSIGN_OR_RETURN(host, LocalAddressTowards(server, resolve_timeout));
  }
  TH_ASSIGN_OR_RETURN(tcp.listen_address, ParseDataAddress(host));
  TH_ASSIGN_OR_RETURN(tcp.advertised_hosts,
                      AdvertisedHosts(tcp.listen_address, server, resolve_timeout));
  tcp.limits.data_threads = options.threads;
  tcp.limits.connections_per_pull = options.connections_per_source;
  tcp.limits.uplink_bytes_per_second = options.uplink_bytes_per_second;
  const std::string listen = tcp.listen_address;
  absl::StatusOr<std::unique_ptr<Transport>> transport = TcpTransport::Create(std::move(tcp));
  if (!transport.ok()) return CannotListen(listen, transport.status());
  std::vector<Endpoint> endpoints = (*transport)->endpoints();
  return std::shared_ptr<DataPlane>(
      new DataPlane(options, *std::move(transport), std::move(endpoints)),
      [](DataPlane* ended) { DestroySafely([ended] { delete ended; }); });
}

absl::Status DataPlane::CheckSame(const DataPlaneOptions& wanted) const {
  if (wanted.address != options_.address) {
    return Differs("data_address", Shown(options_.address), Shown(wanted.address));
  }
  if (wanted.threads != options_.threads) {
    return Differs("data_threads", absl::StrCat(options_.threads), absl::StrCat(wanted.threads));
  }
  if (wanted.connections_per_source != options_.connections_per_source) {
    return Differs("connections_per_source", absl::StrCat(options_.connections_per_source),
                   absl::StrCat(wanted.connections_per_source));
  }
  if (wanted.uplink_bytes_per_second != options_.uplink_bytes_per_second) {
    return Differs("uplink_bytes_per_second", absl::StrCat(options_.uplink_bytes_per_second),
                   absl::StrCat(wanted.uplink_bytes_per_second));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<DataPlane>> DataPlane::Acquire(const DataPlaneOptions& options,
                                                              absl::string_view server,
                                                              absl::Duration resolve_timeout) {
  Shared& shared = SharedDataPlane();
  const auto if_same =
      [&](std::shared_ptr<DataPlane> existing) -> absl::StatusOr<std::shared_ptr<DataPlane>> {
    TH_RETURN_IF_ERROR(existing->CheckSame(options));
    return existing;
  };
  {
    absl::MutexLock lock(&shared.mu);
    if (auto existing = Known(shared, server)) return if_same(std::move(existing));
  }
  // Without the lock, as it resolves the server's name: joins to others do not wait for that.
  absl::StatusOr<std::shared_ptr<DataPlane>> opened = Open(options, server, resolve_timeout);
  absl::MutexLock lock(&shared.mu);
  // Another thread may have been faster.
  if (auto existing = Known(shared, server)) return if_same(std::move(existing));
  if (opened.ok()) shared.data_planes[std::string(server)] = *opened;
  std::erase_if(shared.data_planes, [](const auto& entry) { return entry.second.expired(); });
  return opened;
}

}  // namespace th
