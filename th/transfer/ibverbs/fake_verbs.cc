#include "th/transfer/ibverbs/fake_verbs.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace th::ibverbs {
namespace {

FakeVerbs* current = nullptr;

// A device as the library hands it out, with its description.
struct Device {
  ibv_device shown{};  // first: the two are cast into each other
  const FakeRdmaDevice* described = nullptr;
};
struct Region {
  ibv_mr shown{};
  MemoryRange range;
};

const FakeRdmaDevice& DescriptionOf(ibv_context* context) {
  return *reinterpret_cast<Device*>(context->device)->described;
}

// The devices themselves live as long as the process, as contexts point to them.
Device* NewDevice() {
  static auto* const all = new std::vector<std::unique_ptr<Device>>;
  return all->emplace_back(std::make_unique<Device>()).get();
}

ibv_device** GetDeviceList(int* count) {
  *count = static_cast<int>(current->devices.size());
  if (*count == 0) return nullptr;
  auto** const list = new ibv_device*[current->devices.size() + 1]();
  for (size_t i = 0; i < current->devices.size(); ++i) {
    Device* const device = NewDevice();
    device->described = &current->devices[i];
    device->shown.transport_type = device->described->transport;
    std::strncpy(device->shown.dev_name, "uverbs0", sizeof(device->shown.dev_name) - 1);
    list[i] = &device->shown;
  }
  return list;
}

void FreeDeviceList(ibv_device** list) { delete[] list; }

const char* GetDeviceName(ibv_device* device) {
  return reinterpret_cast<Device*>(device)->described->name.c_str();
}

ibv_context* OpenDevice(ibv_device* device) {
  if (const int error = reinterpret_cast<Device*>(device)->described->open_error; error != 0) {
    errno = error;
    return nullptr;
  }
  ++current->open_contexts;
  auto* const context = new ibv_context{};
  context->device = device;
  return context;
}

int CloseDevice(ibv_context* context) {
  --current->open_contexts;
  delete context;
  return 0;
}

int QueryDevice(ibv_context* context, ibv_device_attr* attributes) {
  const FakeRdmaDevice& device = DescriptionOf(context);
  attributes->max_qp_wr = device.max_queue_depth;
  attributes->max_sge = 30;
  attributes->max_cqe = device.max_completions;
  attributes->max_qp_rd_atom = device.max_reads_answered;
  attributes->max_qp_init_rd_atom = device.max_reads_started;
  attributes->max_mr_size = UINT64_MAX;
  attributes->phys_port_cnt = 1;
  return 0;
}

int QueryPort(ibv_context* context, uint8_t /*port*/, ibv_port_attr* attributes) {
  attributes->state = DescriptionOf(context).port;
  attributes->link_layer = DescriptionOf(context).link_layer;
  attributes->active_mtu = DescriptionOf(context).mtu;
  attributes->max_msg_sz = uint32_t{1} << 31;
  return 0;
}

ssize_t QueryGidTable(ibv_context* context, ibv_gid_entry* entries, size_t max_entries,
                      uint32_t /*flags*/, size_t /*entry_size*/) {
  const auto& gids = DescriptionOf(context).gids;
  const size_t count = std::min(gids.size(), max_entries);
  for (size_t i = 0; i < count; ++i) {
    entries[i] = {};
    std::memcpy(entries[i].gid.raw, gids[i].gid.data(), gids[i].gid.size());
    entries[i].gid_index = gids[i].index;
    entries[i].port_num = 1;
    entries[i].gid_type = gids[i].type == GidType::kRoceV2   ? IBV_GID_TYPE_ROCE_V2
                          : gids[i].type == GidType::kRoceV1 ? IBV_GID_TYPE_ROCE_V1
                                                             : IBV_GID_TYPE_IB;
  }
  return static_cast<ssize_t>(count);
}

ibv_pd* AllocDomain(ibv_context* context) {
  ++current->open_domains;
  auto* const domain = new ibv_pd{};
  domain->context = context;
  return domain;
}

int DeallocDomain(ibv_pd* domain) {
  --current->open_domains;
  delete domain;
  return 0;
}

ibv_mr* RegisterRegion(ibv_pd* domain, void* address, size_t bytes, uint64_t /*remote_address*/,
                       unsigned access) {
  const bool writes = (access & IBV_ACCESS_LOCAL_WRITE) != 0;
  const bool spent = current->registrations >= current->registrations_before_error;
  errno = writes && current->write_registration_error != 0 ? current->write_registration_error
          : spent                                          ? current->registration_error
                                                           : 0;
  if (errno != 0) return nullptr;
  auto* const region = new Region;
  region->range = {reinterpret_cast<uintptr_t>(address), bytes};
  region->shown.pd = domain;
  region->shown.lkey = region->shown.rkey = static_cast<uint32_t>(++current->registrations);
  current->registered.push_back(region->range);
  current->access.push_back(access);
  return &region->shown;
}

// As of a library that knows no optional flags.
ibv_mr* RegisterPlainly(ibv_pd* domain, void* address, size_t bytes, int access) {
  return RegisterRegion(domain, address, bytes, reinterpret_cast<uint64_t>(address),
                        static_cast<unsigned>(access));
}

ibv_mr* RegisterDmaBuf(ibv_pd* domain, uint64_t /*offset*/, size_t bytes, uint64_t remote_address,
                       int /*file_descriptor*/, int access) {
  errno = current->dma_buf_registration_error;
  if (errno != 0) return nullptr;
  ++current->dma_buf_registrations;
  return RegisterRegion(domain, reinterpret_cast<void*>(remote_address), bytes, remote_address,
                        static_cast<unsigned>(access));
}

int DeregisterRegion(ibv_mr* shown) {
  auto* const region = reinterpret_cast<Region*>(shown);
  auto& registered = current->registered;
  const auto at = std::find(registered.begin(), registered.end(), region->range);
  if (at == registered.end()) std::abort();  // deregistered twice
  registered.erase(at);
  delete region;
  return 0;
}

ibv_ah* CreateHandle(ibv_pd* domain, ibv_ah_attr* attributes) {
  const auto& bad = DescriptionOf(domain->context).bad_gids;
  if (std::find(bad.begin(), bad.end(), attributes->grh.sgid_index) != bad.end()) return nullptr;
  return new ibv_ah{};
}

int DestroyHandle(ibv_ah* handle) {
  delete handle;
  return 0;
}

}  // namespace

FakeVerbs::FakeVerbs() : library_(std::make_shared<VerbsLibrary>()) {
  if (current != nullptr) std::abort();  // one at a time
  current = this;
  library_->get_device_list = GetDeviceList;
  library_->free_device_list = FreeDeviceList;
  library_->get_device_name = GetDeviceName;
  library_->open_device = OpenDevice;
  library_->close_device = CloseDevice;
  library_->query_device = QueryDevice;
  library_->query_port = QueryPort;
  library_->query_gid_table = QueryGidTable;
  library_->alloc_pd = AllocDomain;
  library_->dealloc_pd = DeallocDomain;
  library_->reg_mr = RegisterPlainly;
  library_->reg_mr_iova2 = RegisterRegion;
  library_->reg_dmabuf_mr = RegisterDmaBuf;
  library_->dereg_mr = DeregisterRegion;
  library_->create_ah = CreateHandle;
  library_->destroy_ah = DestroyHandle;
}

FakeVerbs::~FakeVerbs() { current = nullptr; }

}  // namespace th::ibverbs
