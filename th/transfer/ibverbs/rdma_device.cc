#include "th/transfer/ibverbs/rdma_device.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "th/status/status_macros.h"
#include "th/transfer/stream/socket.h"

namespace th::ibverbs {
namespace {

using stream::ErrnoText;

// Entries of a GID table that are looked at; tables have a few for each address of the interface.
constexpr size_t kMaxGids = 512;
constexpr uint8_t kIpv4Mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool IsIpv4Mapped(const Gid& gid) {
  return std::memcmp(gid.data(), kIpv4Mapped, sizeof(kIpv4Mapped)) == 0;
}
bool IsLinkLocal(const Gid& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }
bool IsZero(const Gid& gid) { return gid == Gid{}; }

absl::string_view LinkName(LinkLayer link) {
  return link == LinkLayer::kInfiniBand ? "InfiniBand" : "RoCEv2";
}

GidType TypeOf(uint32_t type) {
  if (type == IBV_GID_TYPE_ROCE_V2) return GidType::kRoceV2;
  return type == IBV_GID_TYPE_ROCE_V1 ? GidType::kRoceV1 : GidType::kInfiniBand;
}

// Names in a folder, without the dots.
std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  DIR* const open = opendir(folder.c_str());
  if (open == nullptr) return names;
  while (const dirent* entry = readdir(open)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  closedir(open);
  return names;
}

absl::string_view PortStateText(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "is down: check the cable and that the network interface is up";
    case IBV_PORT_INIT:
      return "is initialising: on InfiniBand a subnet manager must be running";
    case IBV_PORT_ARMED:
      return "is armed: the subnet manager has not activated it yet";
    default:
      return "is not active";
  }
}

absl::Status CheckTransport(const ibv_context& context, const std::string& name) {
  const ibv_device& device = *context.device;
  if (device.transport_type == IBV_TRANSPORT_IB) return absl::OkStatus();
  if (device.transport_type == IBV_TRANSPORT_IWARP) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is an iWARP device, which this transport does not speak to"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(name,
                   " has no reliable connections (an EFA or usNIC device): this transport "
                   "cannot use it"));
}

}  // namespace

std::string GidText(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = {};
  const bool v4 = IsIpv4Mapped(gid);
  inet_ntop(v4 ? AF_INET : AF_INET6, gid.data() + (v4 ? sizeof(kIpv4Mapped) : 0), text,
            sizeof(text));
  return text;
}

std::vector<GidEntry> UsableGids(LinkLayer link, absl::Span<const GidEntry> entries) {
  std::vector<GidEntry> usable;
  for (const GidEntry& entry : entries) {
    if (IsZero(entry.gid)) continue;
    if (link == LinkLayer::kEthernet &&
        (entry.type != GidType::kRoceV2 || IsLinkLocal(entry.gid))) {
      continue;
    }
    usable.push_back(entry);
  }
  if (link == LinkLayer::kEthernet) {
    std::stable_partition(usable.begin(), usable.end(),
                          [](const GidEntry& entry) { return IsIpv4Mapped(entry.gid); });
  }
  return usable;
}

RdmaSubsystem LookAtRdmaSubsystem(const std::string& root) {
  RdmaSubsystem seen;
  seen.device_in_kernel = !NamesIn(absl::StrCat(root, "/sys/class/infiniband")).empty();
  seen.verbs_module = access(absl::StrCat(root, "/sys/class/infiniband_verbs").c_str(), F_OK) == 0;
  for (const std::string& name : NamesIn(absl::StrCat(root, "/dev/infiniband"))) {
    if (!absl::StartsWith(name, "uverbs")) continue;
    seen.device_file = true;
    const std::string path = absl::StrCat(root, "/dev/infiniband/", name);
    seen.device_file_usable |= access(path.c_str(), R_OK | W_OK) == 0;
  }
  return seen;
}

std::string WhyNoDevice(const RdmaSubsystem& seen) {
  if (!seen.device_in_kernel) {
    return "the kernel has no RDMA device (/sys/class/infiniband is empty): load the adapter's "
           "driver, or rdma_rxe for one in software";
  }
  if (!seen.verbs_module) {
    return "the kernel has an RDMA device, but the module ib_uverbs is not loaded: modprobe "
           "ib_uverbs";
  }
  if (!seen.device_file) {
    return "the kernel has an RDMA device, but /dev/infiniband/uverbs* is missing: give it to the "
           "container (--device=/dev/infiniband)";
  }
  if (!seen.device_file_usable) {
    return "this user may not open /dev/infiniband/uverbs*: make them readable and writable to it "
           "(a udev rule, or the group rdma)";
  }
  return "libibverbs has no provider for the kernel's RDMA device: install the adapter's (Debian: "
         "ibverbs-providers)";
}

std::string MemlockAdvice(uint64_t bytes) {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) {
    return absl::StrCat("registering ", bytes,
                        " bytes found no memory to lock, although the limit on locked memory is "
                        "unlimited: the device or the machine is out of memory");
  }
  return absl::StrCat("registering ", bytes, " bytes exceeds what this process may lock, ",
                      limit.rlim_cur,
                      " bytes in all (RLIMIT_MEMLOCK): raise it (ulimit -l unlimited; "
                      "LimitMEMLOCK=infinity in a unit of systemd; --ulimit memlock=-1 for a "
                      "container)");
}

// ---- RdmaDevice

RdmaDevice::~RdmaDevice() {
  if (!IsOurs()) return;
  if (domain_ != nullptr) verbs_->dealloc_pd(domain_);
  verbs_->close_device(context_);
}

absl::StatusOr<std::shared_ptr<const RdmaDevice>> RdmaDevice::Of(
    std::shared_ptr<const VerbsLibrary> verbs, ibv_context* context, std::string name) {
  std::shared_ptr<RdmaDevice> device(new RdmaDevice(std::move(verbs), context, std::move(name)));
  TH_RETURN_IF_ERROR(device->Prepare());
  return device;
}

absl::Status RdmaDevice::Prepare() {
  TH_RETURN_IF_ERROR(CheckTransport(*context_, name_));
  int ports = 0;
  TH_RETURN_IF_ERROR(TakeLimits(&ports));
  TH_RETURN_IF_ERROR(TakePort(ports));
  domain_ = verbs_->alloc_pd(context_);
  if (domain_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(name_, " gives no protection domain: ", ErrnoText(errno)));
  }
  return TakeGid();
}

absl::Status RdmaDevice::TakeLimits(int* ports) {
  ibv_device_attr attributes{};
  if (const int error = verbs_->query_device(context_, &attributes); error != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(name_, " does not answer ibv_query_device: ", ErrnoText(error)));
  }
  const auto reads = [](int count) { return static_cast<uint8_t>(std::clamp(count, 0, 255)); };
  limits_.max_queue_depth = static_cast<uint32_t>(std::max(attributes.max_qp_wr, 0));
  limits_.max_scatter_pieces = static_cast<uint32_t>(std::max(attributes.max_sge, 0));
  limits_.max_completions = static_cast<uint32_t>(std::max(attributes.max_cqe, 0));
  limits_.max_reads_started = reads(attributes.max_qp_init_rd_atom);
  limits_.max_reads_answered = reads(attributes.max_qp_rd_atom);
  limits_.max_registration_bytes = attributes.max_mr_size;
  *ports = attributes.phys_port_cnt;
  if (limits_.max_reads_started == 0 || limits_.max_reads_answered == 0 ||
      limits_.max_queue_depth == 0 || limits_.max_scatter_pieces == 0 ||
      limits_.max_completions == 0) {
    return absl::FailedPreconditionError(absl::StrCat(name_, " does not support RDMA READ"));
  }
  return absl::OkStatus();
}

// Takes the first active port.
absl::Status RdmaDevice::TakePort(int ports) {
  std::string why = absl::StrCat(name_, " has no port");
  for (int port = 1; port <= ports; ++port) {
    ibv_port_attr attributes{};
    if (const int error = verbs_->query_port(context_, static_cast<uint8_t>(port), &attributes);
        error != 0) {
      why = absl::StrCat("port ", port, " cannot be queried: ", ErrnoText(error));
      continue;
    }
    if (attributes.state != IBV_PORT_ACTIVE) {
      why = absl::StrCat("port ", port, " ", PortStateText(attributes.state));
      continue;
    }
    port_ = static_cast<uint8_t>(port);
    link_ = attributes.link_layer == IBV_LINK_LAYER_ETHERNET ? LinkLayer::kEthernet
                                                             : LinkLayer::kInfiniBand;
    lid_ = attributes.lid;
    mtu_ = attributes.active_mtu;
    limits_.max_read_bytes = attributes.max_msg_sz;
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(why);
}

absl::Status RdmaDevice::TakeGid() {
  std::vector<ibv_gid_entry> table(kMaxGids);
  const ssize_t count =
      verbs_->query_gid_table(context_, table.data(), table.size(), 0, sizeof(ibv_gid_entry));
  if (count < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(name_, " shows no GID table: ", ErrnoText(static_cast<int>(-count))));
  }
  std::vector<GidEntry> entries;
  for (ssize_t i = 0; i < count; ++i) {
    if (table[i].port_num != port_) continue;
    GidEntry entry{.gid = {}, .index = table[i].gid_index, .type = TypeOf(table[i].gid_type)};
    std::memcpy(entry.gid.data(), table[i].gid.raw, entry.gid.size());
    entries.push_back(entry);
  }
  const std::vector<GidEntry> usable = UsableGids(link_, entries);
  for (const GidEntry& entry : usable) {
    if (!MakesHandle(entry)) continue;
    gid_ = entry;
    return absl::OkStatus();
  }
  if (usable.empty() && link_ == LinkLayer::kEthernet) {
    return absl::FailedPreconditionError(absl::StrCat(
        "port ", int{port_}, " has no RoCEv2 GID of a global address among its ", entries.size(),
        ": give its network interface an IPv4 address, and let the driver use RoCEv2"));
  }
  std::vector<std::string> tried;
  tried.reserve(usable.size());
  for (const GidEntry& entry : usable) tried.push_back(GidText(entry.gid));
  return absl::FailedPreconditionError(
      absl::StrCat("port ", int{port_}, " has no GID that an address handle can be made with",
                   tried.empty() ? "" : "; tried ", absl::StrJoin(tried, ", ")));
}

// An address handle to the port itself shows that the kernel has a route from the GID.
bool RdmaDevice::MakesHandle(const GidEntry& gid) const {
  ibv_ah_attr attributes{};
  attributes.port_num = port_;
  attributes.dlid = lid_;
  attributes.is_global = 1;
  std::memcpy(attributes.grh.dgid.raw, gid.gid.data(), gid.gid.size());
  attributes.grh.sgid_index = static_cast<uint8_t>(gid.index);
  attributes.grh.hop_limit = 64;
  ibv_ah* const handle = verbs_->create_ah(domain_, &attributes);
  if (handle == nullptr) return false;
  verbs_->destroy_ah(handle);
  return true;
}

bool RdmaDevice::IsPortActive() const {
  ibv_port_attr attributes{};
  return verbs_->query_port(context_, port_, &attributes) == 0 &&
         attributes.state == IBV_PORT_ACTIVE;
}

std::string RdmaDevice::ToString() const {
  return absl::StrCat(name_, " port ", int{port_}, ", ", LinkName(link_), " ", GidText(gid_.gid),
                      ", MTU ", 128 << static_cast<int>(mtu_));
}

// ---- all devices

namespace {

// The kernel's list, freed with it.
class DeviceList {
 public:
  explicit DeviceList(const VerbsLibrary& verbs)
      : verbs_(verbs), list_(verbs.get_device_list(&count_)) {}
  ~DeviceList() {
    if (list_ != nullptr) verbs_.free_device_list(list_);
  }
  absl::Span<ibv_device* const> devices() const {
    if (list_ == nullptr) return {};
    return absl::MakeConstSpan(list_, static_cast<size_t>(count_));
  }

 private:
  const VerbsLibrary& verbs_;
  int count_ = 0;
  ibv_device** const list_;
};

absl::StatusOr<std::shared_ptr<const RdmaDevice>> OpenOne(
    const std::shared_ptr<const VerbsLibrary>& verbs, ibv_device* device, std::string name) {
  ibv_context* const context = verbs->open_device(device);
  if (context == nullptr) {
    const int error = errno;
    return absl::FailedPreconditionError(
        error == EACCES || error == EPERM
            ? absl::StrCat("this user may not open it: make /dev/infiniband/", device->dev_name,
                           " readable and writable to it (a udev rule, or the group rdma)")
            : absl::StrCat("cannot be opened: ", ErrnoText(error)));
  }
  return RdmaDevice::Of(verbs, context, std::move(name));
}

absl::Status CheckNamed(absl::Span<const std::string> names, absl::Span<const std::string> there) {
  for (const std::string& name : names) {
    if (std::find(there.begin(), there.end(), name) != there.end()) continue;
    return absl::NotFoundError(absl::StrCat("there is no RDMA device ", name, "; there are: ",
                                            there.empty() ? "none" : absl::StrJoin(there, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RdmaDevices> OpenRdmaDevices(std::shared_ptr<const VerbsLibrary> verbs,
                                            absl::Span<const std::string> names) {
  const DeviceList list(*verbs);
  if (list.devices().empty()) return absl::UnavailableError(WhyNoDevice(LookAtRdmaSubsystem()));
  std::vector<std::string> there;
  for (ibv_device* device : list.devices()) there.emplace_back(verbs->get_device_name(device));
  TH_RETURN_IF_ERROR(CheckNamed(names, there));
  RdmaDevices opened;
  for (size_t i = 0; i < there.size(); ++i) {
    if (!names.empty() && std::find(names.begin(), names.end(), there[i]) == names.end()) continue;
    auto device = OpenOne(verbs, list.devices()[i], there[i]);
    if (device.ok()) {
      opened.usable.push_back(*std::move(device));
    } else {
      opened.left_out.push_back(absl::StrCat(there[i], ": ", device.status().message()));
    }
  }
  if (!names.empty() && !opened.left_out.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a named RDMA device cannot be used: ", absl::StrJoin(opened.left_out, "; ")));
  }
  if (!opened.usable.empty()) return opened;
  return absl::UnavailableError(
      absl::StrCat("no RDMA device can be used: ", absl::StrJoin(opened.left_out, "; ")));
}

}  // namespace th::ibverbs
