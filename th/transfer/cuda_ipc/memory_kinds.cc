#include "th/transfer/cuda_ipc/memory_kinds.h"

#include <iterator>
#include <optional>
#include <vector>

#include "th/status/status_macros.h"

namespace th::cuda_ipc {

class MemoryKinds::Handle final : public AttachedMemory {
 public:
  explicit Handle(std::shared_ptr<MemoryKinds> owner) : owner_(std::move(owner)) {}
  ~Handle() override {
    const absl::MutexLock lock(&owner_->mu_);
    owner_->device_regions_ -= device_regions_;
    for (const Range& range : ranges_) {
      const auto known = owner_->known_.find(range);
      if (--known->second.attachments == 0) owner_->known_.erase(known);
    }
  }
  void Add(Range range, bool device) {
    ranges_.push_back(range);
    if (device) ++device_regions_;
  }

 private:
  const std::shared_ptr<MemoryKinds> owner_;  // may outlive the transport
  std::vector<Range> ranges_;
  size_t device_regions_ = 0;  // of these
};

std::unique_ptr<AttachedMemory> MemoryKinds::Attach(absl::Span<const MemoryRegion> regions) {
  auto handle = std::make_unique<Handle>(shared_from_this());
  for (const MemoryRegion& region : regions) {
    if (region.bytes == 0) continue;
    std::shared_ptr<DeviceMemory> registration;
    if (region.kind == MemoryKind::kDevice) {
      const auto found = registrations_->Find(region.address, region.bytes);
      if (found.ok()) registration = found->memory;
    }
    const auto begin = reinterpret_cast<uint64_t>(region.address);
    const Range range(begin, begin + region.bytes);
    const absl::MutexLock lock(&mu_);
    Known& known = known_[range];
    known.device = region.kind == MemoryKind::kDevice;
    known.registration = std::move(registration);
    ++known.attachments;
    if (known.device) ++device_regions_;
    handle->Add(range, known.device);
  }
  return handle;
}

// The last range that begins at the piece or before it. One that lies about it, but begins earlier
// than another, is not found, and the driver is asked.
std::optional<MemoryKinds::Known> MemoryKinds::Find(const iovec& piece) const {
  const auto begin = reinterpret_cast<uint64_t>(piece.iov_base);
  const absl::ReaderMutexLock lock(&mu_);
  const auto after = known_.upper_bound(Range(begin, UINT64_MAX));
  if (after == known_.begin()) return std::nullopt;
  const auto& [range, known] = *std::prev(after);
  if (begin + piece.iov_len > range.second) return std::nullopt;
  return known;
}

absl::StatusOr<std::shared_ptr<DeviceMemory>> MemoryKinds::RegistrationOf(
    const iovec& piece) const {
  if (piece.iov_len == 0) return nullptr;
  const std::optional<Known> known = Find(piece);
  if (!(known.has_value() ? known->device : LiesOnDevice(piece))) return nullptr;
  if (known.has_value() && known->registration != nullptr) return known->registration;
  TH_ASSIGN_OR_RETURN(const RegistrationCache::Found found,
                      registrations_->Find(piece.iov_base, piece.iov_len));
  return found.memory;
}

bool MemoryKinds::IsDevice(const iovec& piece) const {
  if (piece.iov_len == 0) return false;
  const std::optional<Known> known = Find(piece);
  return known.has_value() ? known->device : LiesOnDevice(piece);
}

// True of a piece that lies in device memory in part only, too: its copy fails, and says so.
bool MemoryKinds::LiesOnDevice(const iovec& piece) const {
  const absl::StatusOr<MemoryRegion> region = ClassifyRegion(*devices_, piece.iov_base, 1);
  return region.ok() && region->kind == MemoryKind::kDevice;
}

size_t MemoryKinds::device_regions() const {
  const absl::ReaderMutexLock lock(&mu_);
  return device_regions_;
}

}  // namespace th::cuda_ipc
