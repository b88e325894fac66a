#include "th/transfer/ibverbs/ibverbs_transport.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "th/status/status_macros.h"
#include "th/transfer/ibverbs/fabric_address.h"
#include "th/transfer/ibverbs/gpu_registrations.h"
#include "th/transfer/ibverbs/host_registrations.h"
#include "th/transfer/ibverbs/memory_owner.h"
#include "th/transfer/ibverbs/rdma_device.h"
#include "th/transfer/ibverbs/verbs_library.h"
#include "th/transfer/stream/medium.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/stream/stream_transport.h"
#include "th/transfer/tcp/tcp_listener.h"
#include "th/transfer/tcp/tcp_transport.h"

namespace th {
namespace {

using ibverbs::Fabric;
using ibverbs::FabricAddress;
using ibverbs::GpuRegistrations;
using ibverbs::HostRegistrations;
using ibverbs::MemoryOwner;
using ibverbs::MemoryRange;
using ibverbs::OwnerOf;
using stream::SocketAddress;

class RegisteredMemory final : public AttachedMemory {
 public:
  RegisteredMemory(std::shared_ptr<HostRegistrations> cache, uint64_t attachment)
      : cache_(std::move(cache)), attachment_(attachment) {}
  ~RegisteredMemory() override {
    cache_->Detach(attachment_);
    if (gpus_ != nullptr) gpus_->Detach(of_gpus_.number);
  }
  void Add(std::shared_ptr<GpuRegistrations> gpus, GpuRegistrations::Attached attached) {
    gpus_ = std::move(gpus);
    of_gpus_ = std::move(attached);
  }
  std::string how() const override { return of_gpus_.how; }

 private:
  const std::shared_ptr<HostRegistrations> cache_;  // may outlive the transport
  const uint64_t attachment_;
  std::shared_ptr<GpuRegistrations> gpus_;  // likewise; null: no memory of a GPU
  GpuRegistrations::Attached of_gpus_;
};

class IbverbsMedium final : public stream::Medium {
 public:
  IbverbsMedium(std::shared_ptr<const Fabric> fabric, FabricAddress self,
                std::vector<std::string> left_out, std::string congestion_control)
      : fabric_(std::move(fabric)),
        self_(std::move(self)),
        left_out_(std::move(left_out)),
        congestion_control_(std::move(congestion_control)) {}

  absl::string_view name() const override { return kIbverbsTransport; }
  absl::string_view thread_name() const override { return "th-rdma"; }
  absl::Status Reach(const Endpoint& endpoint) const override {
    TH_ASSIGN_OR_RETURN(const FabricAddress source, FabricAddress::Parse(endpoint.address));
    return ibverbs::CanMeet(self_, source);
  }
  std::vector<std::string> left_out() const override { return left_out_; }
  absl::StatusOr<SocketAddress> AddressOf(const Endpoint& endpoint) const override {
    TH_ASSIGN_OR_RETURN(const FabricAddress source, FabricAddress::Parse(endpoint.address));
    return SocketAddress::Parse(source.socket);
  }
  void Tune(int fd) const override { TuneTcpConnection(fd, congestion_control_); }

  std::unique_ptr<stream::ServedMemory> Serve(int /*fd*/) const override {
    return ibverbs::ServeRdmaMemory(fabric_);
  }
  std::unique_ptr<stream::RemoteMemory> Read(const ReadSetup& setup) const override {
    return ibverbs::ReadRdmaMemory(
        fabric_, {.number = setup.number,
                  .checksummed = setup.checksummed,
                  .into = setup.into.empty() ? MemoryOwner() : OwnerOf(setup.into)});
  }
  absl::StatusOr<std::unique_ptr<AttachedMemory>> Attach(
      absl::Span<const MemoryRegion> regions) const override;

 private:
  const std::shared_ptr<const Fabric> fabric_;
  const FabricAddress self_;  // its socket is not looked at
  const std::vector<std::string> left_out_;
  const std::string congestion_control_;
};

absl::StatusOr<std::unique_ptr<AttachedMemory>> IbverbsMedium::Attach(
    absl::Span<const MemoryRegion> regions) const {
  std::vector<MemoryRange> ranges;
  ranges.reserve(regions.size());
  bool any_of_gpus = false;
  for (const MemoryRegion& region : regions) {
    if (region.kind == MemoryKind::kDevice) {
      any_of_gpus |= region.bytes > 0;
    } else {
      ranges.push_back({reinterpret_cast<uintptr_t>(region.address), region.bytes});
    }
  }
  const MemoryOwner owner = OwnerOf(regions);
  TH_ASSIGN_OR_RETURN(const uint64_t attachment, fabric_->memory()->Attach(ranges, owner));
  auto memory = std::make_unique<RegisteredMemory>(fabric_->memory(), attachment);
  if (any_of_gpus) {
    TH_ASSIGN_OR_RETURN(GpuRegistrations::Attached of_gpus,
                        fabric_->gpu_memory()->Attach(regions, owner));
    memory->Add(fabric_->gpu_memory(), std::move(of_gpus));
  }
  return memory;
}

FabricAddress KindsOf(const Fabric& fabric) {
  FabricAddress address;
  for (const auto& device : fabric.devices()) {
    const bool infiniband = device->link() == ibverbs::LinkLayer::kInfiniBand;
    address.infiniband |= infiniband;
    address.roce |= !infiniband;
  }
  return address;
}

}  // namespace

absl::Status HasRdma() {
  const ibverbs::RdmaSubsystem seen = ibverbs::LookAtRdmaSubsystem();
  if (seen.device_in_kernel) return absl::OkStatus();
  return absl::UnavailableError(ibverbs::WhyNoDevice(seen));
}

absl::StatusOr<std::unique_ptr<Transport>> NewIbverbsTransport(const IbverbsOptions& options) {
  std::shared_ptr<const ibverbs::VerbsLibrary> verbs = options.verbs;
  if (verbs == nullptr) {
    TH_RETURN_IF_ERROR(HasRdma());
    TH_ASSIGN_OR_RETURN(verbs, ibverbs::VerbsLibrary::Load());
  }
  TH_ASSIGN_OR_RETURN(ibverbs::RdmaDevices devices,
                      ibverbs::OpenRdmaDevices(verbs, options.devices));
  TH_ASSIGN_OR_RETURN(auto fabric, Fabric::Of(std::move(devices.usable),
                                              {.max_registered_bytes = options.max_registered_bytes,
                                               .deadlines = options.deadlines,
                                               .counters = options.counters,
                                               .gpus = options.gpus}));
  TH_ASSIGN_OR_RETURN(TcpListener listener,
                      ListenForPeers(options.listen_address, options.advertised_hosts));
  FabricAddress self = KindsOf(*fabric);
  std::vector<Endpoint> endpoints;
  for (const std::string& address : listener.addresses) {
    self.socket = address;
    endpoints.push_back({.address = self.ToString(), .transport = kIbverbsTransport, .site = ""});
  }
  return stream::StreamTransport::Start(
      std::make_shared<IbverbsMedium>(std::move(fabric), std::move(self),
                                      std::move(devices.left_out),
                                      options.limits.congestion_control),
      std::move(listener.socket), std::move(endpoints), options.limits);
}

}  // namespace th
