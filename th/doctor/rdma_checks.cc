#include "th/doctor/rdma_checks.h"

#include <algorithm>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "th/command_line/quantity.h"

namespace th::doctor {
namespace {

constexpr char kOverTcp[] = "weights go to other hosts over TCP";
constexpr char kIpv4Prefix[] = "0000:0000:0000:0000:0000:ffff:";
constexpr uint32_t kLargestMtu = 4096, kSmallestMtu = 256;
// Headers of a RoCE packet within the network device's MTU, as the kernel reckons with them: global
// route, UDP, base transport, extensions, checksum.
constexpr uint32_t kRoceHeaderBytes = 40 + 8 + 12 + 4 + 28 + 4;
// Less than this is not even one of a model's larger tensors.
constexpr uint64_t kLeastLockedBytes = 64 << 20;

// ---- what is there -----------------------------------------------------------------------------

struct PortOfDevice {
  const RdmaDevice* device;
  const RdmaPort* port;

  std::string name() const { return absl::StrCat(device->name, " port ", port->number); }
};

std::vector<const RdmaDevice*> SupportedDevices(const RdmaFacts& rdma) {
  std::vector<const RdmaDevice*> supported;
  for (const RdmaDevice& device : rdma.devices) {
    if (UnsupportedFabric(device).empty()) supported.push_back(&device);
  }
  return supported;
}

std::vector<PortOfDevice> PortsOf(const std::vector<const RdmaDevice*>& devices) {
  std::vector<PortOfDevice> ports;
  for (const RdmaDevice* device : devices) {
    for (const RdmaPort& port : device->ports) ports.push_back({device, &port});
  }
  return ports;
}

bool IsActive(const PortOfDevice& each) { return each.port->state == "ACTIVE"; }

std::vector<PortOfDevice> ActiveRocePorts(const std::vector<const RdmaDevice*>& devices) {
  std::vector<PortOfDevice> ports;
  for (const PortOfDevice& each : PortsOf(devices)) {
    if (IsActive(each) && each.port->link_layer == "Ethernet") ports.push_back(each);
  }
  return ports;
}

bool IsIpv4(const Gid& gid) { return absl::StartsWith(gid.address, kIpv4Prefix); }

// Those that peers beyond the cable can reach.
bool IsRoutable(const Gid& gid) {
  return gid.type == "RoCE v2" && !absl::StartsWith(gid.address, "fe80:");
}

// The GID by which peers reach the port; null: none.
const Gid* ReachableGid(const RdmaPort& port) {
  const Gid* best = nullptr;
  for (const Gid& gid : port.gids) {
    if (!IsRoutable(gid)) continue;
    if (best == nullptr || (IsIpv4(gid) && !IsIpv4(*best))) best = &gid;
  }
  return best;
}

std::string Join(const std::vector<std::string>& words) { return absl::StrJoin(words, ", "); }

template <typename Items, typename NameOf>
std::string Names(const Items& items, NameOf name_of) {
  std::vector<std::string> names;
  names.reserve(items.size());
  for (const auto& item : items) names.push_back(name_of(item));
  return Join(names);
}

// ---- the checks --------------------------------------------------------------------------------

// "AWS EFA (efa_0)" of each fabric that is there and not used.
std::vector<std::string> UnusedFabrics(const RdmaFacts& rdma) {
  std::vector<std::string> unused;
  for (const RdmaDevice& device : rdma.devices) {
    const std::string fabric = UnsupportedFabric(device);
    if (!fabric.empty()) unused.push_back(absl::StrCat(fabric, " (", device.name, ")"));
  }
  unused.insert(unused.end(), rdma.other_fabrics.begin(), rdma.other_fabrics.end());
  return unused;
}

Finding CheckDevices(const RdmaFacts& rdma, const std::vector<const RdmaDevice*>& supported) {
  Finding finding = {.check = "rdma-devices"};
  const std::string unused = Join(UnusedFabrics(rdma));
  if (!supported.empty()) {
    finding.found = Names(supported, [](const RdmaDevice* each) {
      return each->driver.empty() ? each->name : absl::StrCat(each->name, " (", each->driver, ")");
    });
    finding.means = "weights can go to other hosts by RDMA";
    if (!unused.empty()) absl::StrAppend(&finding.means, "; TensorHub does not use ", unused);
    return finding;
  }
  finding.verdict = Verdict::kNote;
  if (!unused.empty()) {
    finding.found = absl::StrCat("only ", unused);
    finding.means = absl::StrCat("TensorHub does not speak this fabric's protocol yet: ", kOverTcp);
    finding.advice =
        "nothing, if TCP is fast enough; else use hosts with InfiniBand or RoCE devices";
  } else {
    finding.found = "none";
    finding.means = kOverTcp;
    finding.advice =
        "nothing, if this host has no InfiniBand or RoCE device; if it has one, load its driver "
        "(modprobe mlx5_ib, for instance)";
  }
  return finding;
}

Finding CheckLibrary(const VerbsLibraryFacts& verbs,
                     const std::vector<const RdmaDevice*>& supported) {
  Finding finding = {.check = "rdma-library"};
  if (!verbs.library.opened) {
    finding.verdict = Verdict::kProblem;
    finding.found = absl::StrCat("libibverbs cannot be opened: ", verbs.library.error);
    finding.means = absl::StrCat("the RDMA devices are not used: ", kOverTcp);
    finding.advice = "install rdma-core (Debian: libibverbs1 and ibverbs-providers)";
    return finding;
  }
  std::vector<std::string> lacking;
  for (const RdmaDevice* device : supported) {
    // Without its file no library can reach it, which rdma-access says.
    if (device->device_file_usable && !absl::c_linear_search(verbs.device_names, device->name)) {
      lacking.push_back(device->name);
    }
  }
  if (!lacking.empty()) {
    finding.verdict = Verdict::kProblem;
    finding.found = absl::StrCat("libibverbs has no provider for ", Join(lacking));
    finding.means = "these devices are not used";
    finding.advice =
        "install the providers that belong to this libibverbs (Debian: ibverbs-providers)";
    return finding;
  }
  finding.found = "libibverbs with a provider for each device";
  finding.means = "programs can use the devices";
  return finding;
}

Finding CheckAccess(const std::vector<const RdmaDevice*>& supported) {
  Finding finding = {.check = "rdma-access"};
  std::vector<std::string> without_file, refused;
  for (const RdmaDevice* device : supported) {
    if (device->device_file.empty()) {
      without_file.push_back(device->name);
    } else if (!device->device_file_usable) {
      refused.push_back(absl::StrCat(device->device_file, " (", device->name, ")"));
    }
  }
  if (!without_file.empty()) {
    finding.verdict = Verdict::kProblem;
    finding.found = absl::StrCat("the kernel has made no device file for ", Join(without_file));
    finding.means = "no program can use these devices";
    finding.advice = "modprobe ib_uverbs, as root on the host";
  } else if (!refused.empty()) {
    finding.verdict = Verdict::kProblem;
    finding.found = absl::StrCat("this process cannot open ", Join(refused));
    finding.means = "these devices are not used";
    finding.advice =
        "in a container pass /dev/infiniband in (--device=/dev/infiniband, or the device plug-in "
        "of the cluster); else give this user the right to read and write the file";
  } else {
    finding.found = "this process may open the device files";
    finding.means = "it can use the devices";
  }
  return finding;
}

Finding CheckPorts(const std::vector<const RdmaDevice*>& supported) {
  Finding finding = {.check = "rdma-ports"};
  const std::vector<PortOfDevice> ports = PortsOf(supported);
  const auto active = static_cast<size_t>(absl::c_count_if(ports, IsActive));
  finding.found = Names(ports, [](const PortOfDevice& each) {
    return absl::StrCat(
        each.name(), " ", each.port->state,
        IsActive(each) && !each.port->rate.empty() ? absl::StrCat(" at ", each.port->rate) : "");
  });
  if (ports.empty()) finding.found = "no port";
  finding.advice =
      "look at the cable and the switch; on InfiniBand see that a subnet manager runs (ibstat); on "
      "Ethernet bring the network device up (ip link set DEVICE up)";
  if (active == 0) {
    finding.verdict = Verdict::kProblem;
    finding.means = absl::StrCat("no RDMA reaches another host: ", kOverTcp);
  } else if (active < ports.size()) {
    finding.verdict = Verdict::kNote;
    finding.means = "only the active ports are used";
  } else {
    finding.means = "every port can be used";
    finding.advice.clear();
  }
  return finding;
}

Finding CheckGids(const std::vector<PortOfDevice>& roce_ports) {
  Finding finding = {.check = "rdma-gids"};
  std::vector<std::string> with, without;
  bool all_ipv4 = true;
  for (const PortOfDevice& each : roce_ports) {
    const Gid* gid = ReachableGid(*each.port);
    if (gid == nullptr) {
      without.push_back(each.name());
      continue;
    }
    all_ipv4 = all_ipv4 && IsIpv4(*gid);
    with.push_back(absl::StrCat(each.name(), " ", gid->address, " (index ", gid->index, ")"));
  }
  if (!without.empty()) {
    finding.verdict = with.empty() ? Verdict::kProblem : Verdict::kNote;
    finding.found = absl::StrCat("no RoCE v2 address (GID) of an IP address on ", Join(without));
    finding.means = with.empty() ? absl::StrCat("no peer reaches this host by RDMA: ", kOverTcp)
                                 : "these ports are not used";
    finding.advice =
        "give the port's network device an IPv4 address (ip addr add); if it has one, let the "
        "device speak RoCE v2 (cma_roce_mode)";
    return finding;
  }
  finding.found = Join(with);
  if (!all_ipv4) {
    finding.verdict = Verdict::kNote;
    finding.means =
        "peers reach this host by IPv6 only: those whose devices have IPv4 alone do not";
    finding.advice = "give the network devices of all hosts addresses of one family, best IPv4";
    return finding;
  }
  finding.means = "peers reach this host by RoCE v2 over IPv4";
  return finding;
}

// Absent: no port's network device is known.
std::optional<Finding> CheckMtu(const HostFacts& facts,
                                const std::vector<PortOfDevice>& roce_ports) {
  std::vector<std::string> found, small;
  for (const PortOfDevice& each : roce_ports) {
    const Gid* gid = ReachableGid(*each.port);
    const auto mtu =
        gid == nullptr ? facts.net_device_mtu.end() : facts.net_device_mtu.find(gid->net_device);
    if (mtu == facts.net_device_mtu.end()) continue;
    const uint32_t roce_mtu = RoceMtu(mtu->second);
    found.push_back(absl::StrCat(roce_mtu, " bytes on ", each.device->name, " (", mtu->first,
                                 " has MTU ", mtu->second, ")"));
    if (roce_mtu < kLargestMtu) small.push_back(mtu->first);
  }
  if (found.empty()) return std::nullopt;
  Finding finding = {.check = "rdma-mtu", .found = Join(found)};
  if (small.empty()) {
    finding.means = "packets are as large as RDMA allows";
    return finding;
  }
  finding.verdict = Verdict::kNote;
  finding.means = "more packets for the same bytes, so less throughput on some devices";
  finding.advice = absl::StrCat(
      "raise the MTU of every host and switch on the way to 4200 or more, and here: ip link set ",
      small.front(), " mtu 9000");
  return finding;
}

Finding CheckLockedMemory(const ProcessFacts& process) {
  Finding finding = {.check = "locked-memory"};
  if (process.may_lock_memory) {
    finding.found = "no limit (this process has CAP_IPC_LOCK)";
  } else if (!process.locked_memory_bytes.has_value()) {
    finding.verdict = Verdict::kNote;
    finding.found = "the limit cannot be read";
    finding.means = "if it is low, memory cannot be registered with RDMA devices";
    finding.advice = "look at `ulimit -l`; it should say unlimited";
    return finding;
  } else if (process.locked_memory_bytes->soft == kUnlimited) {
    finding.found = "no limit";
  } else {
    const uint64_t limit = process.locked_memory_bytes->soft;
    finding.verdict = limit < kLeastLockedBytes ? Verdict::kProblem : Verdict::kNote;
    finding.found = absl::StrCat("at most ", FormatBytes(limit), " (RLIMIT_MEMLOCK)");
    finding.means = limit < kLeastLockedBytes
                        ? "weights cannot be registered with RDMA devices: ENOMEM"
                        : "weights beyond that cannot be registered with RDMA devices: ENOMEM";
    finding.advice =
        "raise it: ulimit -l unlimited; LimitMEMLOCK=infinity in a systemd unit; --ulimit "
        "memlock=-1 for a container; PropagateResourceLimits in Slurm";
    return finding;
  }
  finding.means = "any buffer can be registered with RDMA devices";
  return finding;
}

Finding CheckGpuRdma(const GpuFacts& gpu) {
  Finding finding = {.check = "gpu-rdma"};
  const bool dma_buf = absl::c_all_of(gpu.gpus, [](const Gpu& each) { return each.dma_buf; });
  if (dma_buf || gpu.peer_memory_module) {
    finding.found = dma_buf ? "the GPUs' memory can be handed over as DMA-BUF"
                            : "the kernel module for peer memory is loaded";
    finding.means = "RDMA devices read and write the GPUs' memory directly";
    return finding;
  }
  finding.verdict = Verdict::kNote;
  finding.found = "neither DMA-BUF nor nvidia_peermem";
  finding.means = "weights in GPU memory go to other hosts by way of host memory";
  finding.advice =
      "modprobe nvidia_peermem, or use the driver's open kernel modules on Linux 5.12 or later, "
      "which have DMA-BUF";
  return finding;
}

Finding CheckRdmaRoute(const RouteFacts& route, const std::vector<PortOfDevice>& roce_ports) {
  Finding finding = {.check = "rdma-route"};
  for (const PortOfDevice& each : roce_ports) {
    for (const Gid& gid : each.port->gids) {
      if (!IsRoutable(gid) || gid.net_device != route.net_device) continue;
      finding.found = absl::StrCat("packets to ", route.target, " leave by ", route.net_device,
                                   ", which is ", each.name());
      finding.means = "RDMA takes the same way as TCP";
      return finding;
    }
  }
  finding.verdict = Verdict::kNote;
  finding.found =
      absl::StrCat("packets to ", route.target, " leave by ",
                   route.net_device.empty() ? "a device that is not known" : route.net_device,
                   ", which is no RoCE device");
  finding.means = "this address says nothing of the way that RDMA takes";
  finding.advice =
      "name the peer's address on the network of the RDMA devices: th doctor --to ADDRESS:PORT";
  return finding;
}

bool IsOwnAddress(const RouteFacts& route) {
  return route.net_device == "lo" || route.source_address == route.peer_address;
}

}  // namespace

std::string UnsupportedFabric(const RdmaDevice& device) {
  if (device.driver == "efa") return "AWS EFA";
  if (device.node_type == "RNIC") return "iWARP";
  if (absl::StartsWith(device.node_type, "usNIC")) return "Cisco usNIC";
  if (device.node_type == "CA") return "";
  return absl::StrCat(
      "a fabric of the kind ", device.node_type.empty() ? "unknown" : device.node_type,
      device.driver.empty() ? "" : absl::StrCat(" with the driver ", device.driver));
}

uint32_t RoceMtu(uint32_t net_mtu) {
  uint32_t mtu = kLargestMtu;
  while (mtu > kSmallestMtu && mtu + kRoceHeaderBytes > net_mtu) mtu /= 2;
  return mtu;
}

std::vector<Finding> CheckRdma(const HostFacts& facts) {
  const std::vector<const RdmaDevice*> supported = SupportedDevices(facts.rdma);
  std::vector<Finding> findings = {CheckDevices(facts.rdma, supported)};
  if (supported.empty()) return findings;
  findings.push_back(CheckLibrary(facts.verbs, supported));
  findings.push_back(CheckAccess(supported));
  findings.push_back(CheckPorts(supported));
  const std::vector<PortOfDevice> roce_ports = ActiveRocePorts(supported);
  if (!roce_ports.empty()) {
    findings.push_back(CheckGids(roce_ports));
    std::optional<Finding> mtu = CheckMtu(facts, roce_ports);
    if (mtu.has_value()) findings.push_back(*std::move(mtu));
  }
  findings.push_back(CheckLockedMemory(facts.process));
  if (!facts.gpu.gpus.empty()) findings.push_back(CheckGpuRdma(facts.gpu));
  const std::optional<RouteFacts>& route = facts.route;
  if (route.has_value() && route->outcome == RouteFacts::Outcome::kConnected &&
      !IsOwnAddress(*route) && !roce_ports.empty()) {
    findings.push_back(CheckRdmaRoute(*route, roce_ports));
  }
  return findings;
}

}  // namespace th::doctor
