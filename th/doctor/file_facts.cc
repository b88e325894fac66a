#include "th/doctor/file_facts.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace th::doctor {
namespace {

constexpr char kRdmaFolder[] = "/sys/class/infiniband";
constexpr char kVerbsFolder[] = "/sys/class/infiniband_verbs";
// Bits of the effective capabilities (linux/capability.h).
constexpr uint32_t kCapIpcLock = 14, kCapSysPtrace = 19;

// ---- RDMA --------------------------------------------------------------------------------------

// "4: ACTIVE" -> "ACTIVE".
std::string AfterNumber(const std::string& line) {
  const size_t colon = line.find(": ");
  return colon == std::string::npos ? line : line.substr(colon + 2);
}

bool IsEmptyGid(const std::string& address) {
  return address.find_first_not_of("0:") == std::string::npos;
}

std::vector<Gid> ReadGids(const HostFiles& files, const std::string& port) {
  std::vector<Gid> gids;
  for (const std::string& name : files.Names(absl::StrCat(port, "/gids"))) {
    Gid gid;
    if (!absl::SimpleAtoi(name, &gid.index)) continue;
    gid.address = files.Line(absl::StrCat(port, "/gids/", name));
    if (IsEmptyGid(gid.address)) continue;
    gid.type = files.Line(absl::StrCat(port, "/gid_attrs/types/", name));
    gid.net_device = files.Line(absl::StrCat(port, "/gid_attrs/ndevs/", name));
    gids.push_back(std::move(gid));
  }
  std::sort(gids.begin(), gids.end(), [](const Gid& a, const Gid& b) { return a.index < b.index; });
  return gids;
}

std::vector<RdmaPort> ReadPorts(const HostFiles& files, const std::string& device) {
  std::vector<RdmaPort> ports;
  for (const std::string& name : files.Names(absl::StrCat(device, "/ports"))) {
    RdmaPort port;
    if (!absl::SimpleAtoi(name, &port.number)) continue;
    const std::string folder = absl::StrCat(device, "/ports/", name);
    port.state = AfterNumber(files.Line(absl::StrCat(folder, "/state")));
    port.link_layer = files.Line(absl::StrCat(folder, "/link_layer"));
    port.rate = files.Line(absl::StrCat(folder, "/rate"));
    port.gids = ReadGids(files, folder);
    ports.push_back(std::move(port));
  }
  return ports;
}

// The file by which programs reach the device: uverbsN names its device in sysfs.
std::string DeviceFileOf(const HostFiles& files, const std::string& device) {
  for (const std::string& name : files.Names(kVerbsFolder)) {
    if (files.Line(absl::StrCat(kVerbsFolder, "/", name, "/ibdev")) == device) {
      return absl::StrCat("/dev/infiniband/", name);
    }
  }
  return "";
}

// Fabrics of clusters that have no device of the RDMA subsystem, or whose driver is missing.
std::vector<std::string> ReadOtherFabrics(const HostFiles& files, bool efa_has_driver) {
  std::vector<std::string> fabrics;
  for (const std::string& slot : files.Names("/sys/bus/pci/devices")) {
    const std::string folder = absl::StrCat("/sys/bus/pci/devices/", slot);
    const std::string vendor = files.Line(absl::StrCat(folder, "/vendor"));
    const std::string device = files.Line(absl::StrCat(folder, "/device"));
    if (vendor == "0x1d0f" && absl::StartsWith(device, "0xefa") && !efa_has_driver) {
      fabrics.push_back("AWS EFA (its driver is not loaded)");
      break;
    }
  }
  if (!files.Names("/sys/class/cxi").empty()) fabrics.push_back("HPE Slingshot");
  if (!files.Names("/dev/nvidia-caps-imex-channels").empty()) {
    fabrics.push_back("NVLink between hosts");
  }
  return fabrics;
}

RdmaFacts ReadRdma(const HostFiles& files) {
  RdmaFacts rdma;
  bool efa_has_driver = false;
  for (const std::string& name : files.Names(kRdmaFolder)) {
    const std::string folder = absl::StrCat(kRdmaFolder, "/", name);
    RdmaDevice device;
    device.name = name;
    device.node_type = AfterNumber(files.Line(absl::StrCat(folder, "/node_type")));
    device.driver = files.LinkName(absl::StrCat(folder, "/device/driver"));
    device.device_file = DeviceFileOf(files, name);
    device.device_file_usable = !device.device_file.empty() && files.Usable(device.device_file);
    device.ports = ReadPorts(files, folder);
    efa_has_driver = efa_has_driver || device.driver == "efa";
    rdma.devices.push_back(std::move(device));
  }
  rdma.other_fabrics = ReadOtherFabrics(files, efa_has_driver);
  return rdma;
}

// ---- the process, memory, network --------------------------------------------------------------

uint64_t LimitOf(absl::string_view text) {
  uint64_t number = 0;
  return absl::SimpleAtoi(text, &number) ? number : kUnlimited;
}

// A row of /proc/self/limits: the name, two numbers or "unlimited", the unit.
std::optional<Limit> ReadLimit(const std::string& limits, absl::string_view name) {
  for (const absl::string_view line : absl::StrSplit(limits, '\n')) {
    if (!absl::StartsWith(line, name)) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line.substr(name.size()), ' ', absl::SkipEmpty());
    if (words.size() < 2) return std::nullopt;
    return Limit{.soft = LimitOf(words[0]), .hard = LimitOf(words[1])};
  }
  return std::nullopt;
}

uint64_t ReadEffectiveCapabilities(const std::string& status) {
  for (const absl::string_view line : absl::StrSplit(status, '\n')) {
    absl::string_view value = line;
    if (!absl::ConsumePrefix(&value, "CapEff:")) continue;
    uint64_t bits = 0;
    return absl::SimpleHexAtoi(absl::StripAsciiWhitespace(value), &bits) ? bits : 0;
  }
  return 0;
}

ProcessFacts ReadProcess(const HostFiles& files) {
  ProcessFacts process;
  const std::string limits = files.Content("/proc/self/limits");
  process.locked_memory_bytes = ReadLimit(limits, "Max locked memory");
  process.open_files = ReadLimit(limits, "Max open files");
  const uint64_t capabilities = ReadEffectiveCapabilities(files.Content("/proc/self/status"));
  process.may_lock_memory = (capabilities >> kCapIpcLock & 1) != 0;
  process.may_trace_others = (capabilities >> kCapSysPtrace & 1) != 0;
  const std::optional<uint64_t> scope = files.Number("/proc/sys/kernel/yama/ptrace_scope");
  if (scope.has_value()) process.yama_scope = static_cast<int>(*scope);
  return process;
}

// "always [madvise] never" -> "madvise".
std::string ChosenWord(const std::string& line) {
  const size_t begin = line.find('['), end = line.find(']');
  return begin == std::string::npos || end == std::string::npos || end < begin
             ? ""
             : line.substr(begin + 1, end - begin - 1);
}

// The last of three numbers: least, default, most.
std::optional<uint64_t> LastNumber(const std::string& line) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  uint64_t number = 0;
  if (words.empty() || !absl::SimpleAtoi(words.back(), &number)) return std::nullopt;
  return number;
}

TcpFacts ReadTcp(const HostFiles& files) {
  TcpFacts tcp;
  tcp.congestion_control = files.Line("/proc/sys/net/ipv4/tcp_congestion_control");
  tcp.available_controls = absl::StrSplit(
      files.Line("/proc/sys/net/ipv4/tcp_available_congestion_control"), ' ', absl::SkipEmpty());
  tcp.max_receive_bytes = LastNumber(files.Line("/proc/sys/net/ipv4/tcp_rmem"));
  tcp.max_send_bytes = LastNumber(files.Line("/proc/sys/net/ipv4/tcp_wmem"));
  return tcp;
}

GpuFacts ReadGpu(const HostFiles& files) {
  GpuFacts gpu;
  for (const std::string& name : files.Names("/dev")) {
    absl::string_view number = name;
    uint32_t ignored = 0;
    if (absl::ConsumePrefix(&number, "nvidia") && absl::SimpleAtoi(number, &ignored)) {
      ++gpu.device_files;
    }
  }
  gpu.kernel_driver = files.Line("/sys/module/nvidia/version");
  gpu.peer_memory_module =
      files.Exists("/sys/module/nvidia_peermem") || files.Exists("/sys/module/nv_peer_mem");
  return gpu;
}

}  // namespace

HostFacts ReadFileFacts(const HostFiles& files) {
  HostFacts facts;
  facts.rdma = ReadRdma(files);
  facts.gpu = ReadGpu(files);
  facts.process = ReadProcess(files);
  facts.memory.transparent_huge_pages =
      ChosenWord(files.Line("/sys/kernel/mm/transparent_hugepage/enabled"));
  facts.memory.shared_huge_pages =
      ChosenWord(files.Line("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  facts.tcp = ReadTcp(files);
  facts.clock.source =
      files.Line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  for (const std::string& name : files.Names("/sys/class/net")) {
    const std::optional<uint64_t> mtu = files.Number(absl::StrCat("/sys/class/net/", name, "/mtu"));
    if (mtu.has_value()) facts.net_device_mtu[name] = static_cast<uint32_t>(*mtu);
  }
  return facts;
}

}  // namespace th::doctor
