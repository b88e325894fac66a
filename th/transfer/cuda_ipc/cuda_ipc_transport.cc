#include "th/transfer/cuda_ipc/cuda_ipc_transport.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/memory/cuda/device.h"
#include "th/status/status_macros.h"
#include "th/transfer/cuda_ipc/device_address.h"
#include "th/transfer/same_host/host_address.h"
#include "th/transfer/stream/medium.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/stream/stream_transport.h"

namespace th {
namespace {

using cuda_ipc::DeviceAddress;
using cuda_ipc::SharedDevices;
using same_host::HostAddress;
using stream::SocketAddress;

class CudaIpcMedium : public stream::Medium {
 public:
  CudaIpcMedium(HostAddress self, std::shared_ptr<SharedDevices> shared)
      : self_(std::move(self)), shared_(std::move(shared)) {}

  absl::string_view name() const override { return kCudaIpcTransport; }
  absl::string_view thread_name() const override { return "th-cuda"; }
  absl::Status Reach(const Endpoint& endpoint) const override {
    shared_->mapped()->TrimSoon();
    TH_ASSIGN_OR_RETURN(const DeviceAddress source, DeviceAddress::Parse(endpoint.address));
    TH_RETURN_IF_ERROR(same_host::CanMeet(self_, source.host));
    if (shared_->kinds()->device_regions() > 0) return absl::OkStatus();
    return absl::OutOfRangeError("this process has attached no GPU memory");
  }
  absl::StatusOr<SocketAddress> AddressOf(const Endpoint& endpoint) const override {
    TH_ASSIGN_OR_RETURN(const DeviceAddress source, DeviceAddress::Parse(endpoint.address));
    TH_RETURN_IF_ERROR(same_host::CanMeet(self_, source.host));
    return SocketAddress::OfUnixName(source.host.socket);
  }
  bool copies_by_device() const override { return true; }
  void Tune(int /*fd*/) const override {}
  std::unique_ptr<stream::ServedMemory> Serve(int fd) const override {
    return cuda_ipc::ServeCudaMemory(fd, shared_);
  }
  std::unique_ptr<stream::RemoteMemory> Read(const ReadSetup& setup) const override {
    return cuda_ipc::ReadCudaMemory(setup, shared_);
  }
  absl::StatusOr<std::unique_ptr<AttachedMemory>> Attach(
      absl::Span<const MemoryRegion> regions) const override {
    return shared_->Attach(regions);
  }

 private:
  const HostAddress self_;
  const std::shared_ptr<SharedDevices> shared_;  // with the connections
};

absl::StatusOr<std::shared_ptr<const CudaDevices>> OpenDevices(const std::string& library) {
  const absl::StatusOr<const CudaDriver*> driver = CudaDriver::Load(library);
  if (!driver.ok()) {
    return absl::UnavailableError(absl::StrCat("no CUDA driver here: ", driver.status().message()));
  }
  TH_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevices> devices, CudaDevices::Open(*driver));
  if (devices->all().empty()) {
    return absl::UnavailableError(
        "this process sees no GPU; CUDA_VISIBLE_DEVICES decides which it sees");
  }
  return std::shared_ptr<const CudaDevices>(std::move(devices));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> NewCudaIpcTransport(const CudaIpcOptions& options) {
  TH_ASSIGN_OR_RETURN(const std::shared_ptr<const CudaDevices> devices,
                      OpenDevices(options.driver));
  TH_ASSIGN_OR_RETURN(std::shared_ptr<SharedDevices> shared,
                      SharedDevices::Of(devices, {.copy_threads = options.limits.data_threads,
                                                  .exports = options.exports,
                                                  .imports = options.imports,
                                                  .counters = options.counters}));
  DeviceAddress address;
  TH_ASSIGN_OR_RETURN(address.host, HostAddress::OfThisProcess());
  for (const auto& device : devices->all()) {
    if (address.devices.size() == cuda_ipc::kMaxNamedDevices) break;
    address.devices.push_back(device->pci_address());
  }
  TH_ASSIGN_OR_RETURN(const SocketAddress name, SocketAddress::OfUnixName(address.host.socket));
  TH_ASSIGN_OR_RETURN(stream::Socket listener, stream::ListenOn(name));
  const std::vector<Endpoint> endpoints = {
      {.address = address.ToString(), .transport = kCudaIpcTransport, .site = ""}};
  TransportLimits limits = options.limits;
  limits.uplink_bytes_per_second = 0;
  return stream::StreamTransport::Start(
      std::make_shared<CudaIpcMedium>(std::move(address.host), std::move(shared)),
      std::move(listener), endpoints, limits);
}

}  // namespace th
