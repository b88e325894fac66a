#include "th/transfer/same_host/same_host_transport.h"

#include <unistd.h>

#include <utility>
#include <vector>

#include "th/status/status_macros.h"
#include "th/transfer/same_host/host_address.h"
#include "th/transfer/same_host/host_memory.h"
#include "th/transfer/stream/medium.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/stream/stream_transport.h"

namespace th {
namespace {

using same_host::HostAddress;
using stream::SocketAddress;

class SameHostMedium : public stream::Medium {
 public:
  SameHostMedium(HostAddress self, uint64_t attach_limit_bytes)
      : self_(std::move(self)), attach_limit_bytes_(attach_limit_bytes) {}

  absl::string_view name() const override { return kSameHostTransport; }
  absl::string_view thread_name() const override { return "th-host"; }
  absl::Status Reach(const Endpoint& endpoint) const override {
    mapped_->TrimSoon();
    TH_ASSIGN_OR_RETURN(const HostAddress source, HostAddress::Parse(endpoint.address));
    return same_host::CanMeet(self_, source);
  }
  absl::StatusOr<SocketAddress> AddressOf(const Endpoint& endpoint) const override {
    TH_ASSIGN_OR_RETURN(const HostAddress source, HostAddress::Parse(endpoint.address));
    TH_RETURN_IF_ERROR(same_host::CanMeet(self_, source));
    return SocketAddress::OfUnixName(source.socket);
  }
  void Tune(int fd) const override {}
  std::unique_ptr<stream::ServedMemory> Serve(int fd) const override {
    return same_host::ServeHostMemory(fd, unreadable_, {.attached_bytes = attach_limit_bytes_});
  }
  bool maps() const override { return true; }
  std::unique_ptr<stream::RemoteMemory> Read(const ReadSetup& setup) const override {
    return same_host::ReadHostMemory(setup, mapped_);
  }
  absl::StatusOr<std::unique_ptr<AttachedMemory>> Attach(
      absl::Span<const MemoryRegion> regions) const override {
    return unreadable_->Attach(regions);
  }

 private:
  const HostAddress self_;
  const uint64_t attach_limit_bytes_;
  const std::shared_ptr<same_host::UnreadableMemory> unreadable_ =
      std::make_shared<same_host::UnreadableMemory>();  // shared with what is attached
  const std::shared_ptr<same_host::MappedMemory> mapped_ =
      std::make_shared<same_host::MappedMemory>();  // shared with the pulls
};

}  // namespace

uint64_t DefaultAttachLimitBytes() {
  constexpr uint64_t kPart = 4;
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / kPart;
}

absl::StatusOr<std::unique_ptr<Transport>> NewSameHostTransport(const SameHostOptions& options) {
  TH_ASSIGN_OR_RETURN(const HostAddress self, HostAddress::OfThisProcess());
  TH_ASSIGN_OR_RETURN(const SocketAddress address, SocketAddress::OfUnixName(self.socket));
  TH_ASSIGN_OR_RETURN(stream::Socket listener, stream::ListenOn(address));
  const std::vector<Endpoint> endpoints = {
      {.address = self.ToString(), .transport = kSameHostTransport, .site = ""}};
  TransportLimits limits = options.limits;
  limits.uplink_bytes_per_second = 0;
  return stream::StreamTransport::Start(
      std::make_shared<SameHostMedium>(self, options.attach_limit_bytes), std::move(listener),
      endpoints, limits);
}

}  // namespace th
