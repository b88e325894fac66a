#include "th/client/data_plane.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "th/client/data_address.h"
#include "th/client/process_guard.h"
#include "th/client/runtime.h"
#include "th/memory/cuda/cuda_memory_devices.h"
#include "th/status/status_macros.h"
#include "th/transfer/cuda_ipc/cuda_ipc_transport.h"
#include "th/transfer/ibverbs/ibverbs_transport.h"
#include "th/transfer/same_host/same_host_transport.h"
#include "th/transfer/tcp/tcp_transport.h"

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

using CountersByName = std::map<std::string, Transport::Counters>;

struct Counted {
  OwningProcess owner;  // another one does not touch `mu`
  absl::Mutex mu;
  std::set<const DataPlane*> open ABSL_GUARDED_BY(mu);
  CountersByName ended ABSL_GUARDED_BY(mu);
};

// Never destroyed, likewise.
Counted& CountedDataPlanes() {
  static Counted* counted = new Counted;
  return *counted;
}

void AddCounters(const DataPlane& data_plane, CountersByName& sums) {
  for (const Transport* transport : data_plane.transports()) {
    const Transport::Counters one = transport->counters();
    Transport::Counters& sum = sums[std::string(transport->name())];
    sum.bytes_sent += one.bytes_sent;
    sum.bytes_received += one.bytes_received;
    sum.transfers_served += one.transfers_served;
    sum.transfers_refused += one.transfers_refused;
  }
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

// Each name must be known and may appear once.
absl::Status CheckTransports(const std::vector<std::string>& wanted) {
  for (auto each = wanted.begin(); each != wanted.end(); ++each) {
    if (absl::c_linear_search(KnownTransports(), *each) &&
        std::count(wanted.begin(), each, *each) == 0) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("option transports is ", absl::StrJoin(wanted, ","), ": it names, each once, ",
                     absl::StrJoin(KnownTransports(), " or ")));
  }
  return absl::OkStatus();
}

// Refuses options that say how to use RDMA where it is not used: they would be of no effect.
absl::Status CheckRdma(const DataPlaneOptions& wanted) {
  const auto without = [&](absl::string_view option) {
    return absl::InvalidArgumentError(absl::StrCat("option ", option,
                                                   " has no effect without ibverbs among the "
                                                   "transports, which are ",
                                                   absl::StrJoin(wanted.transports, ",")));
  };
  if (wanted.rdma_registered_limit_bytes == 0) {
    return absl::InvalidArgumentError(
        "option rdma_registered_limit_bytes is 0: nothing could be registered; leave ibverbs out "
        "of the option transports");
  }
  if (wanted.transports.empty() || absl::c_linear_search(wanted.transports, kIbverbsTransport)) {
    return absl::OkStatus();
  }
  if (!wanted.rdma_devices.empty()) return without("rdma_devices");
  if (wanted.rdma_registered_limit_bytes.has_value()) return without("rdma_registered_limit_bytes");
  return absl::OkStatus();
}

std::string Shown(const std::string& text) { return text.empty() ? "unset" : text; }
std::string Shown(std::optional<uint64_t> bytes) {
  return bytes.has_value() ? absl::StrCat(*bytes) : "the default";
}

// Not UNAVAILABLE: that is a server that does not answer.
absl::Status CannotListen(const DataAddress& address, const absl::Status& why) {
  if (!absl::IsUnavailable(why)) return why;
  return absl::FailedPreconditionError(absl::StrCat("option data_address: cannot listen on ",
                                                    address.ToString(), ": ", why.message(),
                                                    "; choose another, or port 0"));
}

// Nobody can connect to a wildcard: what is advertised then is the address that leads to the
// server.
absl::StatusOr<std::vector<std::string>> AdvertisedHosts(const DataAddress& listen,
                                                         absl::string_view server,
                                                         absl::Duration resolve_timeout) {
  if (listen.host != "0.0.0.0" && listen.host != "[::]") return std::vector<std::string>();
  TH_ASSIGN_OR_RETURN(std::string host, LocalAddressTowards(server, resolve_timeout));
  return std::vector<std::string>{std::move(host)};
}

// ---- how each transport begins

using Begun = absl::StatusOr<std::unique_ptr<Transport>>;
struct Beginning {
  const DataPlaneOptions& options;
  absl::string_view server;
  absl::Duration resolve_timeout;
  TransportLimits limits;
};

// Not UNAVAILABLE either: a machine without what a transport needs is not a server that is away.
Begun NotHere(Begun begun) {
  if (!absl::IsUnavailable(begun.status())) return begun;
  return absl::FailedPreconditionError(begun.status().message());
}

// Where peers connect to.
struct Listening {
  DataAddress address;
  std::vector<std::string> advertised_hosts;
};
absl::StatusOr<Listening> WhereToListen(const Beginning& with) {
  Listening listening;
  std::string host = with.options.address;
  if (host.empty()) {
    TH_ASSIGN_OR_RETURN(host, LocalAddressTowards(with.server, with.resolve_timeout));
  }
  TH_ASSIGN_OR_RETURN(listening.address, ParseDataAddress(host, LocalAddresses()));
  TH_ASSIGN_OR_RETURN(listening.advertised_hosts,
                      AdvertisedHosts(listening.address, with.server, with.resolve_timeout));
  return listening;
}

Begun BeginTcp(const Beginning& with) {
  TH_ASSIGN_OR_RETURN(const Listening listening, WhereToListen(with));
  const auto begin_at = [&](uint16_t port) {
    return NewTcpTransport({.listen_address = listening.address.WithPort(port),
                            .advertised_hosts = listening.advertised_hosts,
                            .limits = with.limits});
  };
  Begun begun = begin_at(listening.address.first_port);
  for (uint32_t port = listening.address.first_port + 1u;
       absl::IsUnavailable(begun.status()) && port <= listening.address.last_port; ++port) {
    begun = begin_at(static_cast<uint16_t>(port));
  }
  if (!begun.ok()) return CannotListen(listening.address, begun.status());
  return begun;
}

// Its TCP connections go to the same host as those of TCP, and a port that the system chooses.
Begun BeginOverRdma(const Beginning& with) {
  if (with.limits.uplink_bytes_per_second > 0) {
    return absl::InvalidArgumentError(
        "option uplink_bytes_per_second: adapters that read this process's memory over RDMA do not "
        "keep to it; leave ibverbs out of the option transports, or the cap unset");
  }
  // Asked before the way to the server, as most machines have none.
  TH_RETURN_IF_ERROR(HasRdma());
  TH_ASSIGN_OR_RETURN(const Listening listening, WhereToListen(with));
  return NewIbverbsTransport(
      {.listen_address = listening.address.WithPort(0),
       .advertised_hosts = listening.advertised_hosts,
       .devices = with.options.rdma_devices,
       .max_registered_bytes =
           with.options.rdma_registered_limit_bytes.value_or(kDefaultMaxRegisteredBytes),
       .limits = with.limits});
}
Begun BeginIbverbs(const Beginning& with) {
  Begun begun = NotHere(BeginOverRdma(with));
  const std::vector<std::string>& named = with.options.rdma_devices;
  if (begun.ok() || named.empty()) return begun;
  return absl::Status(begun.status().code(),
                      absl::StrCat("option rdma_devices is ", absl::StrJoin(named, ","), ": ",
                                   begun.status().message()));
}

Begun BeginSameHost(const Beginning& with) {
  return NotHere(NewSameHostTransport(
      {.limits = with.limits,
       .attach_limit_bytes = with.options.attach_limit_bytes.value_or(DefaultAttachLimitBytes())}));
}

// A process that has not loaded the CUDA driver by now has it loaded only where it names the
// transport: what a GPU's driver does in a process, such as to what it forks, is its owner's
// affair.
Begun BeginCudaIpc(const Beginning& with) {
  const bool only_if_loaded = with.options.transports.empty();
  const std::shared_ptr<CudaMemoryDevices> devices = ProcessMemoryDevices();
  if (devices == nullptr && only_if_loaded) {
    // No fault: a process without memory of GPUs has no use for it.
    return absl::OutOfRangeError(
        "this process has loaded no CUDA driver, or that found no GPU, when it joined");
  }
  CudaIpcOptions options{.limits = with.limits};
  if (devices != nullptr) options.driver = devices->devices().driver().path;
  return NotHere(NewCudaIpcTransport(options));
}

// The error of a transport that the user has named and this machine does not have.
absl::Status WithWayOut(const std::string& transport, const absl::Status& begun) {
  if (!absl::IsFailedPrecondition(begun)) return begun;
  return absl::Status(begun.code(), absl::StrCat(begun.message(), "; leave ", transport,
                                                 " out of the option transports to do without it"));
}

// All transports, the best first: a further one is a line here.
struct KnownTransport {
  const char* name;
  Begun (*begin)(const Beginning& with);
};
constexpr KnownTransport kKnownTransports[] = {
    {kCudaIpcTransport, &BeginCudaIpc},
    {kSameHostTransport, &BeginSameHost},
    {kIbverbsTransport, &BeginIbverbs},
    {kTcpTransport, &BeginTcp},
};

// `name` is one of them.
const KnownTransport& FindKnown(absl::string_view name) {
  return *absl::c_find_if(kKnownTransports,
                          [name](const KnownTransport& known) { return known.name == name; });
}

}  // namespace

const std::vector<std::string>& KnownTransports() {
  static const auto* const names = [] {
    auto* const made = new std::vector<std::string>;
    for (const KnownTransport& known : kKnownTransports) made->push_back(known.name);
    return made;
  }();
  return *names;
}

CountersByName TransportCountersOfProcess() {
  Counted& counted = CountedDataPlanes();
  if (!counted.owner.IsThis()) return {};
  absl::MutexLock lock(&counted.mu);
  CountersByName sums = counted.ended;
  for (const DataPlane* data_plane : counted.open) AddCounters(*data_plane, sums);
  return sums;
}

DataPlane::DataPlane(DataPlaneOptions options) : options_(std::move(options)) {}

DataPlane::~DataPlane() {
  Counted& counted = CountedDataPlanes();
  if (!counted.owner.IsThis()) return;
  absl::MutexLock lock(&counted.mu);
  if (counted.open.erase(this) > 0) AddCounters(*this, counted.ended);
}

std::vector<Transport*> DataPlane::transports() const {
  std::vector<Transport*> transports;
  for (const auto& transport : transports_) transports.push_back(transport.get());
  return transports;
}

const std::vector<std::string>& DataPlane::transport_order() const {
  return options_.transports.empty() ? KnownTransports() : options_.transports;
}

std::vector<std::string> DataPlaneMemory::Describe() const {
  std::vector<std::string> lines;
  for (const auto& [transport, how] : registered_by) {
    lines.push_back(absl::StrCat(transport, ": ", how));
  }
  for (const auto& [transport, why] : refused_by) {
    lines.push_back(absl::StrCat(transport, ": ", why.message()));
  }
  return lines;
}

std::vector<std::string> DataPlane::LeftOut() const {
  std::vector<std::string> lines;
  for (const auto& [transport, why] : absent_) {
    if (!absl::IsOutOfRange(why)) lines.push_back(absl::StrCat(transport, ": ", why.message()));
  }
  for (const auto& transport : transports_) {
    for (const std::string& part : transport->left_out()) {
      lines.push_back(absl::StrCat(transport->name(), ": ", part));
    }
  }
  return lines;
}

DataPlaneMemory DataPlane::Attach(absl::Span<const MemoryRegion> regions) {
  DataPlaneMemory memory;
  for (const auto& transport : transports_) {
    absl::StatusOr<std::unique_ptr<AttachedMemory>> attached = transport->Attach(regions);
    if (attached.ok()) {
      std::string how = (*attached)->how();
      if (!how.empty()) memory.registered_by[std::string(transport->name())] = std::move(how);
      memory.attached.push_back(*std::move(attached));
      continue;
    }
    memory.refused_by[std::string(transport->name())] = attached.status();
  }
  return memory;
}

bool DataPlane::AddHolder(WorkerId worker, HolderDelegate* delegate) {
  // They have the same holders: where one takes it all do.
  bool added = true;
  for (const auto& transport : transports_) added &= transport->AddHolder(worker, delegate);
  return added;
}

void DataPlane::RemoveHolder(WorkerId worker) {
  for (const auto& transport : transports_) transport->RemoveHolder(worker);
}

// Transfers have numbers that are unique in the process: one transport knows it, if any.
void DataPlane::FinishTransfer(TransferId transfer) {
  for (const auto& transport : transports_) transport->FinishTransfer(transfer);
}

void DataPlane::CutTransfer(TransferId transfer) {
  for (const auto& transport : transports_) transport->CutTransfer(transfer);
}

absl::StatusOr<std::shared_ptr<DataPlane>> DataPlane::Open(const DataPlaneOptions& options,
                                                           absl::string_view server,
                                                           absl::Duration resolve_timeout) {
  TH_RETURN_IF_ERROR(CheckBounds("data_threads", options.threads, kMaxDataThreads));
  TH_RETURN_IF_ERROR(CheckBounds("connections_per_source", options.connections_per_source,
                                 kMaxConnectionsPerSource));
  TH_RETURN_IF_ERROR(CheckTransports(options.transports));
  TH_RETURN_IF_ERROR(CheckRdma(options));
  std::shared_ptr<DataPlane> data_plane(
      new DataPlane(options), [](DataPlane* ended) { DestroySafely([ended] { delete ended; }); });
  const bool use_all = options.transports.empty();
  for (const std::string& transport : use_all ? KnownTransports() : options.transports) {
    const absl::Status begun = data_plane->Begin(transport, server, resolve_timeout);
    if (begun.ok()) continue;
    // A process works without cuda_ipc, same_host and ibverbs, so their failures are reasons to
    // show. A failure of TCP, or of a transport that the user has named, or whose devices, is an
    // error.
    const bool asked_for = transport == kIbverbsTransport && !options.rdma_devices.empty();
    if (!use_all && transport != kTcpTransport) return WithWayOut(transport, begun);
    if (asked_for || transport == kTcpTransport) return begun;
    data_plane->absent_[transport] = begun;
  }
  Counted& counted = CountedDataPlanes();
  counted.owner.TakeOver();
  absl::MutexLock lock(&counted.mu);
  counted.open.insert(data_plane.get());
  return data_plane;
}

absl::Status DataPlane::Begin(const std::string& transport, absl::string_view server,
                              absl::Duration resolve_timeout) {
  TransportLimits limits;
  limits.data_threads = options_.threads;
  limits.connections_per_pull = options_.connections_per_source;
  limits.uplink_bytes_per_second = options_.uplink_bytes_per_second;
  TH_ASSIGN_OR_RETURN(
      std::unique_ptr<Transport> begun,
      FindKnown(transport).begin({options_, server, resolve_timeout, std::move(limits)}));
  for (Endpoint& endpoint : begun->endpoints()) endpoints_.push_back(std::move(endpoint));
  transports_.push_back(std::move(begun));
  return absl::OkStatus();
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
  if (wanted.transports != options_.transports) {
    return Differs("transports", Shown(absl::StrJoin(options_.transports, ",")),
                   Shown(absl::StrJoin(wanted.transports, ",")));
  }
  if (wanted.strict_transport != options_.strict_transport) {
    return Differs("strict_transport", options_.strict_transport ? "true" : "false",
                   wanted.strict_transport ? "true" : "false");
  }
  if (wanted.attach_limit_bytes != options_.attach_limit_bytes) {
    return Differs("attach_limit_bytes", Shown(options_.attach_limit_bytes),
                   Shown(wanted.attach_limit_bytes));
  }
  if (wanted.rdma_devices != options_.rdma_devices) {
    return Differs("rdma_devices", Shown(absl::StrJoin(options_.rdma_devices, ",")),
                   Shown(absl::StrJoin(wanted.rdma_devices, ",")));
  }
  if (wanted.rdma_registered_limit_bytes != options_.rdma_registered_limit_bytes) {
    return Differs("rdma_registered_limit_bytes", Shown(options_.rdma_registered_limit_bytes),
                   Shown(wanted.rdma_registered_limit_bytes));
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
