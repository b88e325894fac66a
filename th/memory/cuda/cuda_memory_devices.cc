#include "th/memory/cuda/cuda_memory_devices.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "th/memory/cuda/device_checksums.h"
#include "th/memory/cuda/device_memory.h"
#include "th/memory/cuda/device_pieces.h"
#include "th/memory/cuda/piece_copier.h"
#include "th/memory/cuda/stream.h"
#include "th/memory/cuda/use_count.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

// Fewer pieces that follow each other in host memory than this are copied one by one: a launch and
// another pass through device memory cost as much as some copies.
constexpr size_t kPiecesWorthAKernel = 16;
// At most this many bytes are gathered or scattered at once.
constexpr uint64_t kPackedBytes = uint64_t{4} << 20;

// One piece of registered memory and its place on the host.
struct HostedPiece {
  DevicePiece piece;
  std::byte* host = nullptr;
  bool begins_allocation = false;  // see DeviceCopy
};

enum class Direction : uint8_t { kToHost, kToDevice };

}  // namespace

class CudaMemoryDevices::Pinned final : public PinnedMemory {
 public:
  Pinned(std::shared_ptr<CudaMemoryDevices> devices, PinnedBuffer buffer)
      : devices_(std::move(devices)), buffer_(std::move(buffer)) {}
  absl::Span<std::byte> bytes() const override {
    return absl::MakeSpan(buffer_.data(), buffer_.bytes());
  }

 private:
  const std::shared_ptr<CudaMemoryDevices> devices_;  // outlives the buffer
  const PinnedBuffer buffer_;
};

// The work of one GPU. Thread-safe: one call in each direction, and one that sums, at a time.
class CudaMemoryDevices::Engine {
 public:
  Engine(const CudaDevices* devices, CudaDevice* device) : devices_(*devices), device_(device) {}

  absl::StatusOr<std::vector<SegmentChecksum>> Checksum(
      absl::Span<const std::vector<DevicePiece>> segments) {
    const absl::MutexLock lock(&checksums_mu_);
    if (checksums_ == nullptr) {
      TH_ASSIGN_OR_RETURN(checksums_, DeviceChecksums::Create(device_, {}));
    }
    return checksums_->Checksum(segments);
  }

  absl::Status Copy(Direction direction, absl::Span<const HostedPiece> pieces) {
    std::vector<DevicePiece> used;
    used.reserve(pieces.size());
    for (const HostedPiece& hosted : pieces) used.push_back(hosted.piece);
    TH_ASSIGN_OR_RETURN(const PiecesUse use, PiecesUse::Begin(*device_, used));
    Lane& lane = direction == Direction::kToHost ? to_host_ : to_device_;
    const absl::MutexLock lock(&lane.mu);
    if (!lane.stream.has_value()) {
      TH_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Create(device_));
      lane.stream.emplace(std::move(stream));
    }
    const absl::Status copied = CopyGroups(direction, pieces, lane);
    // The memory is in use until the device has ended, whatever has failed.
    const absl::Status ended = lane.stream->Synchronize();
    // Memory that was freed meanwhile explains every other failure.
    TH_RETURN_IF_ERROR(use.Verify());
    TH_RETURN_IF_ERROR(copied);
    return ended;
  }

 private:
  // The stream and buffers that copies in one direction need.
  struct Lane {
    absl::Mutex mu;
    std::optional<CudaStream> stream ABSL_GUARDED_BY(mu);
    // Made when pieces are first packed.
    std::optional<DeviceBuffer> packed ABSL_GUARDED_BY(mu);
    std::unique_ptr<DeviceMemory> packed_memory ABSL_GUARDED_BY(mu);
    std::unique_ptr<PieceCopier> copier ABSL_GUARDED_BY(mu);
  };

  // Pieces whose places in one allocation of the host follow each other are a group, of as many
  // bytes as are packed at once.
  absl::Status CopyGroups(Direction direction, absl::Span<const HostedPiece> pieces, Lane& lane)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane.mu) {
    while (!pieces.empty()) {
      size_t count = 1;
      uint64_t bytes = pieces[0].piece.bytes;
      while (count < pieces.size() && !pieces[count].begins_allocation &&
             pieces[count].host == pieces[0].host + bytes &&
             bytes + pieces[count].piece.bytes <= kPackedBytes) {
        bytes += pieces[count++].piece.bytes;
      }
      const absl::Span<const HostedPiece> group = pieces.subspan(0, count);
      TH_RETURN_IF_ERROR(count < kPiecesWorthAKernel ? CopyEach(direction, group, *lane.stream)
                                                     : CopyPacked(direction, group, bytes, lane));
      pieces.remove_prefix(count);
    }
    return absl::OkStatus();
  }

  static absl::Status CopyEach(Direction direction, absl::Span<const HostedPiece> pieces,
                               const CudaStream& stream) {
    for (const auto& [piece, host, begins_allocation] : pieces) {
      if (piece.bytes == 0) continue;
      TH_RETURN_IF_ERROR(direction == Direction::kToHost
                             ? stream.CopyToHost(host, piece.address(), piece.bytes)
                             : stream.CopyToDevice(piece.address(), host, piece.bytes));
    }
    return absl::OkStatus();
  }

  absl::Status CopyPacked(Direction direction, absl::Span<const HostedPiece> group, uint64_t bytes,
                          Lane& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane.mu) {
    if (lane.copier == nullptr) TH_RETURN_IF_ERROR(MakeCopier(lane));
    std::vector<DevicePiece> pieces;
    pieces.reserve(group.size());
    for (const HostedPiece& hosted : group) pieces.push_back(hosted.piece);
    const DevicePiece packed = {lane.packed_memory.get(), 0, bytes};
    // The copier works on a stream of its own.
    if (direction == Direction::kToHost) {
      TH_RETURN_IF_ERROR(lane.copier->Gather(pieces, packed));
      TH_RETURN_IF_ERROR(lane.stream->CopyToHost(group[0].host, packed.address(), bytes));
      return lane.stream->Synchronize();
    }
    TH_RETURN_IF_ERROR(lane.stream->CopyToDevice(packed.address(), group[0].host, bytes));
    TH_RETURN_IF_ERROR(lane.stream->Synchronize());
    return lane.copier->Scatter(packed, pieces);
  }

  absl::Status MakeCopier(Lane& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane.mu) {
    TH_ASSIGN_OR_RETURN(DeviceBuffer packed, DeviceBuffer::Allocate(device_, kPackedBytes));
    TH_ASSIGN_OR_RETURN(lane.packed_memory,
                        DeviceMemory::Register(devices_, packed.pointer(), packed.bytes()));
    lane.packed.emplace(std::move(packed));
    TH_ASSIGN_OR_RETURN(lane.copier, PieceCopier::Create(device_, {}));
    return absl::OkStatus();
  }

  const CudaDevices& devices_;
  CudaDevice* const device_;
  absl::Mutex checksums_mu_;
  std::unique_ptr<DeviceChecksums> checksums_ ABSL_GUARDED_BY(checksums_mu_);
  Lane to_host_;
  Lane to_device_;
};

class CudaMemoryDevices::Side final : public DeviceSide {
 public:
  struct Region {
    RegistrationCache::Found found;  // without memory where the region is none of a device
    uint64_t bytes = 0;
  };

  Side(std::shared_ptr<CudaMemoryDevices> devices, std::vector<Region> regions)
      : devices_(std::move(devices)), regions_(std::move(regions)) {}
  ~Side() override {
    regions_.clear();
    devices_->registrations_.DropUnused();
  }

  absl::StatusOr<std::vector<SegmentChecksum>> Checksum(
      absl::Span<const std::vector<DeviceRun>> segments) override {
    TH_ASSIGN_OR_RETURN(const UseCount::Use use, BeginUse());
    // By device, in the order of the segments.
    std::vector<std::vector<std::vector<DevicePiece>>> pieces(devices_->engines_.size());
    std::vector<size_t> device_of;
    for (const std::vector<DeviceRun>& runs : segments) {
      std::vector<DevicePiece> of_segment;
      of_segment.reserve(runs.size());
      for (const DeviceRun& run : runs) {
        TH_ASSIGN_OR_RETURN(const DevicePiece piece, PieceOf(run.region, run.offset, run.bytes));
        of_segment.push_back(piece);
      }
      // Pieces of another device than the first are refused by the sums.
      const size_t device = of_segment.empty() ? 0 : DeviceOf(of_segment.front());
      device_of.push_back(device);
      pieces[device].push_back(std::move(of_segment));
    }
    std::vector<std::vector<SegmentChecksum>> by_device(pieces.size());
    for (size_t device = 0; device < pieces.size(); ++device) {
      if (pieces[device].empty()) continue;
      TH_ASSIGN_OR_RETURN(by_device[device], devices_->engines_[device]->Checksum(pieces[device]));
    }
    std::vector<size_t> taken(pieces.size());
    std::vector<SegmentChecksum> checksums;
    checksums.reserve(segments.size());
    for (const size_t device : device_of) checksums.push_back(by_device[device][taken[device]++]);
    return checksums;
  }

  absl::Status CopyToHost(absl::Span<const DeviceCopy> copies) override {
    return Copy(Direction::kToHost, copies);
  }
  absl::Status CopyToDevice(absl::Span<const DeviceCopy> copies) override {
    return Copy(Direction::kToDevice, copies);
  }

  absl::StatusOr<std::unique_ptr<PinnedMemory>> AllocatePinned(uint64_t bytes) override {
    return devices_->AllocatePinned(bytes);
  }

  absl::Status Revoke(absl::Duration timeout) override {
    const absl::Time deadline = absl::Now() + timeout;
    const uint64_t uses = uses_.Revoke(timeout);
    if (uses > 0) {
      return absl::DeadlineExceededError(absl::StrCat(
          "memory of GPU ", gpu(), " is still in use by ", uses, " copies or sums after ",
          absl::FormatDuration(timeout), ": it must not be freed yet"));
    }
    // Transports register the memory themselves, and what they have given up may not have ended.
    std::vector<MemoryRegion> regions;
    for (const auto& [found, bytes] : regions_) {
      if (found.memory == nullptr) continue;
      regions.push_back({reinterpret_cast<void*>(found.memory->address() + found.offset), bytes});
    }
    return devices_->registrations_.AwaitUses(
        regions, std::max(deadline - absl::Now(), absl::ZeroDuration()));
  }
  void Restore() override { uses_.Restore(); }

 private:
  absl::StatusOr<UseCount::Use> BeginUse() {
    std::optional<UseCount::Use> use = uses_.Begin();
    if (use.has_value()) return *std::move(use);
    return absl::FailedPreconditionError("the device memory has been revoked by its owner");
  }

  absl::StatusOr<DevicePiece> PieceOf(size_t region, uint64_t offset, uint64_t bytes) const {
    if (region >= regions_.size() || regions_[region].found.memory == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("region ", region, " is no registered device memory"));
    }
    const auto& [found, region_bytes] = regions_[region];
    if (offset > region_bytes || bytes > region_bytes - offset) {
      return absl::InvalidArgumentError(absl::StrCat(
          bytes, " bytes at offset ", offset, " of device memory of ", region_bytes, " bytes"));
    }
    return DevicePiece{found.memory.get(), found.offset + offset, bytes};
  }

  // The first GPU where there are several.
  std::string gpu() const {
    for (const Region& region : regions_) {
      if (region.found.memory != nullptr) return region.found.memory->device().pci_address();
    }
    return {};
  }

  static size_t DeviceOf(const DevicePiece& piece) {
    return static_cast<size_t>(piece.memory->device().index());
  }

  absl::Status Copy(Direction direction, absl::Span<const DeviceCopy> copies) {
    TH_ASSIGN_OR_RETURN(const UseCount::Use use, BeginUse());
    std::vector<std::vector<HostedPiece>> pieces(devices_->engines_.size());
    for (const DeviceCopy& copy : copies) {
      TH_ASSIGN_OR_RETURN(const DevicePiece piece, PieceOf(copy.region, copy.offset, copy.bytes));
      pieces[DeviceOf(piece)].push_back({piece, copy.host, copy.begins_allocation});
    }
    for (size_t device = 0; device < pieces.size(); ++device) {
      if (pieces[device].empty()) continue;
      TH_RETURN_IF_ERROR(devices_->engines_[device]->Copy(direction, pieces[device]));
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<CudaMemoryDevices> devices_;
  std::vector<Region> regions_;
  UseCount uses_;
};

absl::StatusOr<std::shared_ptr<CudaMemoryDevices>> CudaMemoryDevices::Open(
    const CudaDriver* driver) {
  TH_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevices> devices, CudaDevices::Open(driver));
  return std::shared_ptr<CudaMemoryDevices>(new CudaMemoryDevices(std::move(devices)));
}

CudaMemoryDevices::CudaMemoryDevices(std::unique_ptr<CudaDevices> devices)
    : devices_(std::move(devices)), registrations_(*devices_, {}), engines_([this] {
        std::vector<std::unique_ptr<Engine>> engines;
        for (const auto& device : devices_->all()) {
          engines.push_back(std::make_unique<Engine>(devices_.get(), device.get()));
        }
        return engines;
      }()) {}

CudaMemoryDevices::~CudaMemoryDevices() = default;

absl::StatusOr<MemoryRegion> CudaMemoryDevices::Classify(void* pointer, uint64_t bytes) const {
  return ClassifyRegion(*devices_, pointer, bytes);
}

absl::StatusOr<std::unique_ptr<DeviceSide>> CudaMemoryDevices::Register(
    absl::Span<const MemoryRegion> regions) {
  std::vector<Side::Region> registered(regions.size());
  for (size_t i = 0; i < regions.size(); ++i) {
    const MemoryRegion& region = regions[i];
    if (region.kind != MemoryKind::kDevice || region.bytes == 0) continue;
    TH_ASSIGN_OR_RETURN(const CudaDevice* device, devices_->ByPciAddress(region.device));
    TH_ASSIGN_OR_RETURN(registered[i].found, registrations_.Find(region.address, region.bytes));
    registered[i].bytes = region.bytes;
    const CudaDevice& lies_on = registered[i].found.memory->device();
    if (&lies_on == device) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        region.bytes, " bytes at 0x", absl::Hex(reinterpret_cast<uintptr_t>(region.address)),
        " are said to be memory of GPU ", region.device, ", but lie on GPU ",
        lies_on.pci_address()));
  }
  return std::make_unique<Side>(shared_from_this(), std::move(registered));
}

absl::StatusOr<std::vector<SegmentChecksum>> CudaMemoryDevices::Checksum(
    const CudaDevice& device, absl::Span<const std::vector<DevicePiece>> segments) {
  return engines_[static_cast<size_t>(device.index())]->Checksum(segments);
}

absl::Status CudaMemoryDevices::AwaitEvent(absl::string_view device, uintptr_t event,
                                           absl::Duration timeout) {
  TH_ASSIGN_OR_RETURN(CudaDevice * of_event, devices_->ByPciAddress(device));
  TH_ASSIGN_OR_RETURN(const DeviceFence fence, DeviceFence::AfterEvent(of_event, event));
  return fence.Wait(timeout);
}

absl::StatusOr<std::unique_ptr<PinnedMemory>> CudaMemoryDevices::AllocatePinned(uint64_t bytes) {
  // Every device can read and write what is pinned for one of them.
  TH_ASSIGN_OR_RETURN(CudaDevice * device, devices_->ByIndex(0));
  TH_ASSIGN_OR_RETURN(PinnedBuffer buffer, PinnedBuffer::Allocate(device, bytes));
  return std::make_unique<Pinned>(shared_from_this(), std::move(buffer));
}

// ---- of this process

namespace {

struct Shared {
  absl::Mutex mu;
  std::string library ABSL_GUARDED_BY(mu) = std::string(kCudaLibrary);
  std::shared_ptr<CudaMemoryDevices> devices ABSL_GUARDED_BY(mu);
};

// Never destroyed: buffers may still be there while statics go.
Shared& OfProcess() {
  static auto* const shared = new Shared;
  return *shared;
}

}  // namespace

std::shared_ptr<CudaMemoryDevices> ProcessMemoryDevices() {
  Shared& shared = OfProcess();
  const absl::MutexLock lock(&shared.mu);
  if (shared.devices != nullptr || !CudaDriver::IsLoaded(shared.library)) return shared.devices;
  const absl::StatusOr<const CudaDriver*> driver = CudaDriver::Load(shared.library);
  // Without a driver that starts nobody has device memory.
  if (!driver.ok()) return nullptr;
  absl::StatusOr<std::shared_ptr<CudaMemoryDevices>> devices = CudaMemoryDevices::Open(*driver);
  if (devices.ok() && !(*devices)->devices().all().empty()) shared.devices = *std::move(devices);
  return shared.devices;
}

void SetProcessCudaLibrary(absl::string_view path) {
  Shared& shared = OfProcess();
  const absl::MutexLock lock(&shared.mu);
  shared.library = std::string(path);
  shared.devices = nullptr;
}

}  // namespace th
