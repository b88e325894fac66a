// GPU memory that others have allocated, registered by pointer.
//
//   TH_ASSIGN_OR_RETURN(const MemoryRegion region, ClassifyRegion(*devices, tensor.data(),
//   tensor.bytes())); if (region.kind == MemoryKind::kDevice) {
//     TH_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory,
//                         DeviceMemory::Register(*devices, tensor.data(), tensor.bytes()));
//     {
//       TH_ASSIGN_OR_RETURN(const DeviceMemory::Use use, memory->BeginUse());
//       ... the GPU reads or writes [memory->address(), + memory->bytes()) ...
//       TH_RETURN_IF_ERROR(memory->Verify());  // it was the registered memory to the end
//     }
//     ... before the owner frees or unmaps it, or lets its engine sleep:
//     TH_RETURN_IF_ERROR(memory->Revoke(absl::Seconds(10)));
//   }
//
// An address says nothing about whose memory it is: engines unmap their weights while they sleep
// and map others at the same address. So memory is known by the allocations that it lies in, whose
// ids the driver never gives twice. Nothing keeps an owner from freeing what is registered; a use
// that begins later is refused, and bytes of a use that was under way are refused by Verify().
#ifndef TH_MEMORY_CUDA_DEVICE_MEMORY_H_
#define TH_MEMORY_CUDA_DEVICE_MEMORY_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/memory/cuda/device.h"
#include "th/memory/cuda/use_count.h"
#include "th/memory/memory_region.h"

namespace th {

// The most allocations that one range may span: 128 GiB in mappings of 2 MiB.
inline constexpr size_t kMaxAllocationsPerRange = 65536;

// One allocation, or one mapping of virtual memory management.
struct DeviceAllocation {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t buffer_id = 0;  // the driver's, never given to another allocation of this process
  friend bool operator==(const DeviceAllocation&, const DeviceAllocation&) = default;
};

// Says what kind of memory [pointer, pointer + bytes) is. Memory that the driver does not know, or
// that the host can read too (pinned and managed memory), is kHost; this function does not find out
// if it is shared. INVALID_ARGUMENT: a range that is device memory at its beginning only, or of
// several devices; RESOURCE_EXHAUSTED: of more than kMaxAllocationsPerRange allocations.
absl::StatusOr<MemoryRegion> ClassifyRegion(const CudaDevices& devices, const void* pointer,
                                            uint64_t bytes);

// Thread-safe.
class DeviceMemory {
 public:
  // While it lives, Revoke() waits.
  using Use = UseCount::Use;

  // Finds all allocations of a range. INVALID_ARGUMENT: the range is empty, or not all of it is
  // memory of one device; RESOURCE_EXHAUSTED as above. `devices` outlives the memory.
  static absl::StatusOr<std::unique_ptr<DeviceMemory>> Register(const CudaDevices& devices,
                                                                const void* pointer,
                                                                uint64_t bytes);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  CudaDevice& device() const { return *device_; }
  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  // In order of address, adjacent.
  absl::Span<const DeviceAllocation> allocations() const { return allocations_; }
  MemoryRegion region() const;

  // FAILED_PRECONDITION: it was revoked, or is not the memory that was registered any more
  // (Verify).
  absl::StatusOr<Use> BeginUse() { return BeginUse(0, bytes_); }
  // FAILED_PRECONDITION: some of the range has been freed, unmapped or mapped anew since. What was
  // read from it in the meantime is of unknown origin.
  absl::Status Verify() const { return Verify(0, bytes_); }
  // The same of bytes [offset, offset + bytes) alone, which asks the driver for fewer allocations.
  // They are part of the memory (CheckRange).
  absl::StatusOr<Use> BeginUse(uint64_t offset, uint64_t bytes);
  absl::Status Verify(uint64_t offset, uint64_t bytes) const;
  // INVALID_ARGUMENT: these bytes are not part of the memory.
  absl::Status CheckRange(uint64_t offset, uint64_t bytes) const;
  bool in_use() const { return uses_.any(); }
  // Refuses uses from now on, and waits for those under way. DEADLINE_EXCEEDED: some are, and the
  // memory must not be freed yet; the call may be repeated.
  absl::Status Revoke(absl::Duration timeout);
  // Waits for the uses under way of those bytes of the range, by addresses, that are part of this
  // memory, and refuses none. DEADLINE_EXCEEDED as of Revoke.
  absl::Status AwaitUses(uint64_t address, uint64_t bytes, absl::Duration timeout);

 private:
  DeviceMemory(CudaDevice* device, uint64_t address, uint64_t bytes,
               std::vector<DeviceAllocation> allocations)
      : device_(device), address_(address), bytes_(bytes), allocations_(std::move(allocations)) {}
  // OK where there are no uses.
  absl::Status StillInUse(uint64_t uses, absl::Duration timeout) const;

  CudaDevice* const device_;
  const uint64_t address_;
  const uint64_t bytes_;
  const std::vector<DeviceAllocation> allocations_;
  UseCount uses_;
};

}  // namespace th

#endif  // TH_MEMORY_CUDA_DEVICE_MEMORY_H_
