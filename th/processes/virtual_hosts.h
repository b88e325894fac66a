// Hosts that are network namespaces of this machine, joined by a switch (a bridge in a namespace of
// its own) over links of a given rate: tbf shapes both directions of each, uplink and downlink.
//
//   TH_ASSIGN_OR_RETURN(auto hosts, VirtualHosts::Create({.rates = {125'000'000, 125'000'000},
//                                                         .folder = scratch.path()}));
//   ChildProcess::Start({..., .network_namespace = hosts->NamespaceOf(0)});  // listens on
//   AddressOf(0) TH_RETURN_IF_ERROR(hosts->Cut(1));   // as if the cable were pulled
//
// They reach each other and nothing else. Processor, memory and clock stay the machine's. They need
// root or user namespaces, and iproute2's `ip` and `tc`. They may stand in two sites, each with a
// switch of its own, and a slower and longer link between the two (delayed_link.h). They go with
// this object, or with this process however it ends (network_namespace.h). Not thread-safe.
#ifndef TH_PROCESSES_VIRTUAL_HOSTS_H_
#define TH_PROCESSES_VIRTUAL_HOSTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/processes/delayed_link.h"
#include "th/processes/network_namespace.h"

namespace th {

// The limit of one network of virtual hosts.
inline constexpr size_t kMaxVirtualHosts = 200;
// tbf was seen to keep to its rate between these, in bytes a second: 1 Mbit/s and 10 Gbit/s.
inline constexpr uint64_t kSlowestLink = 125'000;
inline constexpr uint64_t kFastestLink = 1'250'000'000;

// Hosts from `first_host` on are in a second site, whose switch is joined to the first one's.
struct SecondSite {
  size_t first_host = 0;
  uint64_t rate = 0;       // of the link between the sites, each way, in bytes a second
  absl::Duration latency;  // each way
};

class VirtualHosts {
 public:
  struct Options {
    std::vector<uint64_t> rates;  // of each host's link, each way, in bytes a second
    std::string folder;           // where the tools' complaints go; exists
    std::optional<SecondSite> second_site;
  };
  // INVALID_ARGUMENT: no host, too many, a rate or latency out of bounds. FAILED_PRECONDITION,
  // beginning with kNoVirtualHosts: what this machine lacks for them, and what to do.
  static absl::StatusOr<std::unique_ptr<VirtualHosts>> Create(Options options);

  size_t count() const { return hosts_.size(); }
  // A host's IPv4 address, "10.77.0.1".
  static std::string AddressOf(size_t host);
  // The descriptor of a host's namespace, good as long as this object.
  int NamespaceOf(size_t host) const { return hosts_[host].fd(); }

  // Both ways, at once. INVALID_ARGUMENT: out of bounds; INTERNAL: what the tool said.
  absl::Status SetRate(size_t host, uint64_t bytes_per_second);
  // No packet passes any more and the host's interface has no carrier; connections hear nothing.
  absl::Status Cut(size_t host);
  absl::Status Restore(size_t host);
  // The switch drops packets of more than `bytes` to and from `host` without a word from now on, as
  // a tunnel or a switch with a smaller MTU does. Small packets pass.
  absl::Status DropPacketsOver(size_t host, uint32_t bytes);

 private:
  VirtualHosts(Options options, NetworkNamespace switch_namespace)
      : options_(std::move(options)), switch_(std::move(switch_namespace)) {}
  absl::Status FindTools();
  absl::Status Build();
  absl::Status JoinSites(const SecondSite& site);
  // Passes `lines` to `tool -batch -` in a namespace.
  absl::Status Run(const std::string& tool, const NetworkNamespace& where,
                   const std::vector<std::string>& lines) const;

  const Options options_;
  std::string ip_, tc_;  // their paths
  NetworkNamespace switch_;
  std::vector<NetworkNamespace> hosts_;
  std::unique_ptr<DelayedLink> between_sites_;
};

inline constexpr absl::string_view kNoVirtualHosts = "no virtual hosts on this machine";

}  // namespace th

#endif  // TH_PROCESSES_VIRTUAL_HOSTS_H_
