#include "th/transfer/cuda_ipc/exported_memory.h"

#include <algorithm>
#include <climits>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th::cuda_ipc {
namespace {

// An allocation that the driver was asked about is not asked about again for so long: thousands of
// tiny tensors lie in one. Between the question and a reader's copy more time passes anyway.
constexpr absl::Duration kVerifiedFor = absl::Milliseconds(1);
// The descriptor of what has none at the moment: no process has so many.
constexpr uint64_t kNoDescriptor = INT_MAX;

absl::Status NotShared(uint64_t address) {
  return absl::NotFoundError(absl::StrCat("GPU memory at 0x", absl::Hex(address),
                                          " is not attached, or was freed or mapped anew since"));
}

}  // namespace

class ExportedMemory::Handle final : public AttachedMemory {
 public:
  Handle(std::shared_ptr<ExportedMemory> owner, OnDetach on_detach)
      : owner_(std::move(owner)), on_detach_(on_detach) {}
  ~Handle() override { owner_->Detach(allocations_, on_detach_); }

  void Add(const DeviceAllocation& allocation) {
    allocations_.push_back(allocation);
    ends_[allocation.address] = allocation.address + allocation.bytes;
  }
  // The end of the allocation that `address` lies in; 0: of none that was added.
  uint64_t EndAt(uint64_t address) const {
    const auto after = ends_.upper_bound(address);
    if (after == ends_.begin()) return 0;
    const uint64_t end = std::prev(after)->second;
    return address < end ? end : 0;
  }

 private:
  const std::shared_ptr<ExportedMemory> owner_;  // may outlive the transport
  const OnDetach on_detach_;
  std::vector<DeviceAllocation> allocations_;
  std::map<uint64_t, uint64_t> ends_;  // {address: end} of these
};

absl::StatusOr<std::shared_ptr<ExportedMemory>> ExportedMemory::Create(
    std::shared_ptr<const CudaDevices> devices, Options options) {
  TH_ASSIGN_OR_RETURN(std::unique_ptr<AllocationTable> table, AllocationTable::Create());
  return std::shared_ptr<ExportedMemory>(
      new ExportedMemory(std::move(devices), options, std::move(table)));
}

ExportedMemory::~ExportedMemory() = default;

// ---- attaching

absl::StatusOr<std::unique_ptr<AttachedMemory>> ExportedMemory::Attach(
    absl::Span<const MemoryRegion> regions, OnDetach on_detach) {
  auto handle = std::make_unique<Handle>(shared_from_this(), on_detach);
  Retired retired;
  absl::Status added;
  {
    const absl::MutexLock lock(&mu_);
    for (const MemoryRegion& region : regions) {
      if (region.kind != MemoryKind::kDevice || region.bytes == 0) continue;
      added = AddRange(region, &retired, handle.get());
      if (!added.ok()) break;
    }
  }
  // Other memory that lay there is gone already: nobody is waited for.
  Finish(std::move(retired), OnDetach::kGoOn);
  if (!added.ok()) return added;
  return handle;
}

absl::Status ExportedMemory::AddRange(const MemoryRegion& region, Retired* retired,
                                      Handle* handle) {
  const auto begin = reinterpret_cast<uint64_t>(region.address);
  const uint64_t end = begin + region.bytes;
  for (uint64_t at = begin; at < end;) {
    if (const uint64_t added_end = handle->EndAt(at); added_end != 0) {
      at = added_end;
      continue;
    }
    TH_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceMemory> rest,
                        DeviceMemory::Register(*devices_, reinterpret_cast<void*>(at), end - at));
    for (const DeviceAllocation& allocation : rest->allocations()) {
      if (handle->EndAt(allocation.address) == 0) {
        TH_RETURN_IF_ERROR(Add(allocation, retired, handle));
      }
    }
    at = end;
  }
  return absl::OkStatus();
}

absl::Status ExportedMemory::Add(const DeviceAllocation& allocation, Retired* retired,
                                 Handle* handle) {
  auto found = known_.lower_bound(allocation.address);
  if (found != known_.begin()) {
    const auto before = std::prev(found);
    if (before->first + before->second.allocation.bytes > allocation.address) found = before;
  }
  // Other allocations that are known at these addresses are not there any more.
  while (found != known_.end() && found->first < allocation.address + allocation.bytes) {
    const auto known = found++;
    if (known->second.allocation != allocation) Remove(known, retired);
  }
  Known& known = known_[allocation.address];
  if (known.memory == nullptr) {
    absl::StatusOr<std::unique_ptr<DeviceMemory>> memory = DeviceMemory::Register(
        *devices_, reinterpret_cast<void*>(allocation.address), allocation.bytes);
    if (!memory.ok()) {
      known_.erase(allocation.address);
      return memory.status();
    }
    known.allocation = allocation;
    known.memory = *std::move(memory);
  }
  ++known.attachments;
  handle->Add(allocation);
  return absl::OkStatus();
}

void ExportedMemory::Remove(std::map<uint64_t, Known>::iterator known, Retired* retired) {
  Known& removed = known->second;
  if (removed.slot.has_value()) {
    table_->Retire(*removed.slot);
    retired->slots.push_back(*removed.slot);
  }
  if (removed.shared != nullptr) {
    if (removed.shared->exported().kind == SharedMemoryKind::kMapped) used_.erase(removed.use);
    retired->exports.push_back(std::move(removed.shared));
  }
  known_.erase(known);
}

void ExportedMemory::Detach(absl::Span<const DeviceAllocation> allocations, OnDetach on_detach) {
  Retired retired;
  {
    const absl::MutexLock lock(&mu_);
    for (const DeviceAllocation& allocation : allocations) {
      const auto known = known_.find(allocation.address);
      // Another one may lie there by now, which others have attached.
      if (known == known_.end() || known->second.allocation != allocation) continue;
      if (--known->second.attachments == 0) Remove(known, &retired);
    }
  }
  Finish(std::move(retired), on_detach);
}

void ExportedMemory::Finish(Retired retired, OnDetach on_detach) {
  if (retired.slots.empty()) return;
  // A process that does not answer in time is stopped; the driver keeps the memory for it.
  if (on_detach == OnDetach::kAwaitReaders) {
    table_->AwaitReleased(retired.slots, options_.release_timeout);
  }
  for (const uint32_t slot : retired.slots) table_->Give(slot);
}

// ---- sharing

absl::StatusOr<ExportedMemory::Known*> ExportedMemory::Find(uint64_t address) {
  const auto after = known_.upper_bound(address);
  if (after == known_.begin()) return NotShared(address);
  Known& known = std::prev(after)->second;
  if (address - known.allocation.address >= known.allocation.bytes) return NotShared(address);
  const absl::Time now = MonotonicNow();
  if (now - known.verified_at < kVerifiedFor) return &known;
  if (!known.memory->Verify().ok()) return NotShared(address);
  known.verified_at = now;
  return &known;
}

absl::Status ExportedMemory::Export(Known* known) {
  known->used_at = MonotonicNow();
  if (known->shared != nullptr) {
    if (known->shared->exported().kind == SharedMemoryKind::kMapped) {
      used_.splice(used_.begin(), used_, known->use);
    }
    return absl::OkStatus();
  }
  const uint64_t address = known->allocation.address;
  const bool is_new = !known->slot.has_value();
  if (is_new) {
    TH_ASSIGN_OR_RETURN(known->slot, table_->Take());
  }
  absl::StatusOr<std::unique_ptr<AllocationExport>> shared =
      AllocationExport::Of(*devices_, reinterpret_cast<void*>(address));
  if (!shared.ok()) {
    if (is_new) table_->Give(*std::exchange(known->slot, std::nullopt));
    return shared.status();
  }
  known->shared = *std::move(shared);
  const ExportedAllocation& exported = known->shared->exported();
  if (exported.kind == SharedMemoryKind::kMapped) {
    used_.push_front(address);
    known->use = used_.begin();
  }
  if (is_new) {
    table_->Share(*known->slot, {.address = address, .exported = exported});
  } else {
    table_->ShareAnew(*known->slot, exported);
  }
  CloseLongestUnused();
  return absl::OkStatus();
}

void ExportedMemory::CloseLongestUnused() {
  while (used_.size() > options_.max_descriptors) {
    Known& unused = known_.find(used_.back())->second;
    const bool recent = MonotonicNow() - unused.used_at < options_.fetch_time;
    if (recent && used_.size() <= options_.max_recent_descriptors) return;
    used_.pop_back();
    ExportedAllocation closed = unused.shared->exported();
    closed.file_descriptor = kNoDescriptor;
    // Before the number can become another file's.
    if (unused.slot.has_value()) table_->ShareAnew(*unused.slot, closed);
    unused.shared = nullptr;
  }
}

absl::StatusOr<ExportedMemory::SharedSpan> ExportedMemory::SpanOf(uint64_t address,
                                                                  uint64_t bytes) {
  const absl::MutexLock lock(&mu_);
  std::optional<SharedSpan> first;
  std::optional<uint32_t> last;
  for (uint64_t at = address; !first.has_value() || at < address + bytes;) {
    TH_ASSIGN_OR_RETURN(Known* const known, Find(at));
    TH_RETURN_IF_ERROR(Export(known));
    if (last.has_value()) table_->Link(*last, *known->slot);
    last = known->slot;
    at = known->allocation.address + known->allocation.bytes;
    if (!first.has_value()) {
      first = {*last, known->allocation.address, at, known->verified_at + kVerifiedFor};
    }
  }
  return *first;
}

absl::StatusOr<uint64_t> ExportedMemory::CheckExportable(uint64_t address, uint64_t bytes) {
  const absl::MutexLock lock(&mu_);
  uint64_t at = address;
  while (at < address + bytes) {
    TH_ASSIGN_OR_RETURN(Known* const known, Find(at));
    if (!known->exportable.has_value()) {
      known->exportable =
          CanBeExported(*devices_, reinterpret_cast<void*>(known->allocation.address));
    }
    TH_RETURN_IF_ERROR(*known->exportable);
    at = known->allocation.address + known->allocation.bytes;
  }
  return at;
}

}  // namespace th::cuda_ipc
