#include "th/memory/cuda/device_memory.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/memory/cuda/pointer_attributes.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

struct Range {
  uint64_t address;
  uint64_t bytes;
};

std::string Text(Range range) {
  return absl::StrCat(range.bytes, " bytes at 0x", absl::Hex(range.address));
}

absl::Status CheckAddresses(Range range) {
  if (range.address != 0 && range.bytes <= UINT64_MAX - range.address) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("there can be no memory of ", Text(range)));
}

absl::StatusOr<DeviceAllocation> FindAllocation(CudaDevice& device, uint64_t at,
                                                uint64_t buffer_id) {
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device.Enter());
  CUdeviceptr base = 0;
  size_t bytes = 0;
  TH_RETURN_IF_ERROR(device.Status(device.driver().MemGetAddressRange(&base, &bytes, at),
                                   absl::StrCat("find the allocation at 0x", absl::Hex(at))));
  return DeviceAllocation{base, bytes, buffer_id};
}

// The allocations that cover a range whose beginning is memory of `device`.
absl::StatusOr<std::vector<DeviceAllocation>> FindAllocations(CudaDevice& device, Range range) {
  std::vector<DeviceAllocation> allocations;
  const uint64_t end = range.address + range.bytes;
  for (uint64_t at = range.address; at < end;) {
    TH_ASSIGN_OR_RETURN(const PointerAttributes pointer, GetPointerAttributes(device.driver(), at));
    if (!pointer.is_device_memory || pointer.device_index != device.index()) {
      return absl::InvalidArgumentError(
          absl::StrCat(Text(range), " are memory of GPU ", device.index(), " up to 0x",
                       absl::Hex(at), " only: then comes ",
                       pointer.is_device_memory ? absl::StrCat("GPU ", pointer.device_index)
                                                : "no device memory"));
    }
    TH_ASSIGN_OR_RETURN(DeviceAllocation allocation, FindAllocation(device, at, pointer.buffer_id));
    at = allocation.address + allocation.bytes;
    if (allocations.size() == kMaxAllocationsPerRange) {
      return absl::ResourceExhaustedError(
          absl::StrCat(Text(range), " lie in more than ", kMaxAllocationsPerRange, " allocations"));
    }
    allocations.push_back(allocation);
  }
  return allocations;
}

}  // namespace

absl::StatusOr<MemoryRegion> ClassifyRegion(const CudaDevices& devices, const void* pointer,
                                            uint64_t bytes) {
  const Range range = {reinterpret_cast<uint64_t>(pointer), bytes};
  MemoryRegion region = {.address = const_cast<void*>(pointer), .bytes = bytes};
  if (bytes == 0) return region;
  TH_RETURN_IF_ERROR(CheckAddresses(range));
  TH_ASSIGN_OR_RETURN(const PointerAttributes first,
                      GetPointerAttributes(devices.driver(), range.address));
  if (!first.is_device_memory) return region;
  TH_ASSIGN_OR_RETURN(CudaDevice * device, devices.ByIndex(first.device_index));
  TH_RETURN_IF_ERROR(FindAllocations(*device, range).status());
  region.kind = MemoryKind::kDevice;
  region.device = device->pci_address();
  return region;
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> DeviceMemory::Register(const CudaDevices& devices,
                                                                     const void* pointer,
                                                                     uint64_t bytes) {
  const Range range = {reinterpret_cast<uint64_t>(pointer), bytes};
  if (bytes == 0) return absl::InvalidArgumentError("a range of no bytes cannot be registered");
  TH_RETURN_IF_ERROR(CheckAddresses(range));
  TH_ASSIGN_OR_RETURN(const PointerAttributes first,
                      GetPointerAttributes(devices.driver(), range.address));
  if (!first.is_device_memory) {
    return absl::InvalidArgumentError(absl::StrCat(Text(range),
                                                   " are no device memory; register host memory as "
                                                   "such, and pass the data pointer of a tensor "
                                                   "that lies on a GPU"));
  }
  TH_ASSIGN_OR_RETURN(CudaDevice * device, devices.ByIndex(first.device_index));
  TH_ASSIGN_OR_RETURN(std::vector<DeviceAllocation> allocations, FindAllocations(*device, range));
  return std::unique_ptr<DeviceMemory>(
      new DeviceMemory(device, range.address, bytes, std::move(allocations)));
}

MemoryRegion DeviceMemory::region() const {
  return {reinterpret_cast<void*>(address_), bytes_, MemoryKind::kDevice, device_->pci_address()};
}

absl::StatusOr<DeviceMemory::Use> DeviceMemory::BeginUse(uint64_t offset, uint64_t bytes) {
  std::optional<Use> use = uses_.Begin({offset, offset + bytes});
  if (!use.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(Text({address_, bytes_}), " of GPU ",
                                                      device_->pci_address(),
                                                      " have been revoked by their owner"));
  }
  TH_RETURN_IF_ERROR(Verify(offset, bytes));
  return *std::move(use);
}

absl::Status DeviceMemory::CheckRange(uint64_t offset, uint64_t bytes) const {
  if (offset <= bytes_ && bytes <= bytes_ - offset) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(bytes, " bytes at offset ", offset,
                                                 " of registered memory of ", bytes_, " bytes"));
}

absl::Status DeviceMemory::Verify(uint64_t offset, uint64_t bytes) const {
  const uint64_t begin = address_ + offset;
  auto next = std::partition_point(allocations_.begin(), allocations_.end(),
                                   [begin](const DeviceAllocation& allocation) {
                                     return allocation.address + allocation.bytes <= begin;
                                   });
  for (; next != allocations_.end() && next->address < begin + bytes; ++next) {
    const DeviceAllocation& allocation = *next;
    // The part of the allocation that is ours must still be in it.
    const uint64_t at = std::max(allocation.address, begin);
    TH_ASSIGN_OR_RETURN(const PointerAttributes pointer,
                        GetPointerAttributes(device_->driver(), at));
    if (pointer.is_device_memory && pointer.buffer_id == allocation.buffer_id) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(Text({address_, bytes_}), " of GPU ", device_->pci_address(),
                     " are not the memory that was registered: at 0x", absl::Hex(at),
                     pointer.is_device_memory ? " lies another allocation" : " lies none any more",
                     ". Its owner must revoke memory before it frees or unmaps it, and register "
                     "what it maps later"));
  }
  return absl::OkStatus();
}

absl::Status DeviceMemory::Revoke(absl::Duration timeout) {
  return StillInUse(uses_.Revoke(timeout), timeout);
}

absl::Status DeviceMemory::AwaitUses(uint64_t address, uint64_t bytes, absl::Duration timeout) {
  const uint64_t begin = std::max(address, address_);
  const uint64_t end = std::min(address + bytes, address_ + bytes_);
  if (begin >= end) return absl::OkStatus();
  return StillInUse(uses_.Await({begin - address_, end - address_}, timeout), timeout);
}

absl::Status DeviceMemory::StillInUse(uint64_t uses, absl::Duration timeout) const {
  if (uses == 0) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      Text({address_, bytes_}), " of GPU ", device_->pci_address(), " are still in use by ", uses,
      " transfers after ", absl::FormatDuration(timeout), ": they must not be freed yet"));
}

}  // namespace th
