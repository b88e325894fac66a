// The device memory of one owner (a buffer's storages) as code that must not dereference device
// pointers sees it: sums are taken where the bytes lie, and bytes move between there and the host.
//
//   std::shared_ptr<MemoryDevices> devices = ...;  // over CUDA: CudaMemoryDevices
//   TH_ASSIGN_OR_RETURN(const MemoryRegion region, devices->Classify(data, bytes));
//   TH_ASSIGN_OR_RETURN(std::unique_ptr<DeviceSide> side, devices->Register({region}));
//   TH_RETURN_IF_ERROR(side->CopyToHost({{.region = 0, .offset = 0, .bytes = n, .host = slot}}));
//   ... before the memory is freed or unmapped:
//   TH_RETURN_IF_ERROR(side->Revoke(absl::Seconds(10)));
//
// Every call blocks until the device has done what it was asked for, so none belongs on an event
// loop. Each finds out before and after its work that the memory is still what was registered:
// FAILED_PRECONDITION says that it was freed, mapped anew or revoked, and then nothing that was
// read counts.
//
// Thread-safe.
#ifndef TH_MEMORY_DEVICE_SIDE_H_
#define TH_MEMORY_DEVICE_SIDE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/memory/memory_region.h"
#include "th/weights/checksum.h"

namespace th {

// How long a GPU may take to end what it was given, some ms unless it is busy. Longer, and it is
// taken for one that hangs: whoever has asked for it goes on without it, and who owns the memory
// may not have it back before it has ended.
inline constexpr absl::Duration kDeviceTime = absl::Seconds(10);

// Bytes [offset, offset + bytes) of a registered region, by its place in the list that was
// registered.
struct DeviceRun {
  size_t region = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// The same, and the host memory that they are copied to or from. Pinned memory makes it fast.
struct DeviceCopy {
  size_t region = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::byte* host = nullptr;
  // True: `host` lies in another allocation than that of the copy before, though it may follow it.
  // One copy of the driver stays within one allocation of pinned memory.
  bool begins_allocation = false;
};

// Host memory that devices read and write themselves, given back when this ends.
class PinnedMemory {
 public:
  virtual ~PinnedMemory() = default;
  virtual absl::Span<std::byte> bytes() const = 0;
};

class DeviceSide {
 public:
  virtual ~DeviceSide() = default;
  // A sum for each segment, which is what its runs are in order. The runs of one segment lie on one
  // device (INVALID_ARGUMENT).
  virtual absl::StatusOr<std::vector<SegmentChecksum>> Checksum(
      absl::Span<const std::vector<DeviceRun>> segments) = 0;
  // On an error some bytes may have been written.
  virtual absl::Status CopyToHost(absl::Span<const DeviceCopy> copies) = 0;
  virtual absl::Status CopyToDevice(absl::Span<const DeviceCopy> copies) = 0;
  // As MemoryDevices::AllocatePinned.
  virtual absl::StatusOr<std::unique_ptr<PinnedMemory>> AllocatePinned(uint64_t bytes) = 0;
  // Refuses calls from now on and waits for those under way, and for what transports have a device
  // do with these bytes. DEADLINE_EXCEEDED: some are, and the memory must not be freed yet; the
  // call may be repeated.
  virtual absl::Status Revoke(absl::Duration timeout) = 0;
  // Takes calls again, where the owner keeps the memory after a Revoke that ran out of time.
  virtual void Restore() = 0;
};

// The devices of this process. Whatever it makes keeps it alive.
class MemoryDevices {
 public:
  virtual ~MemoryDevices() = default;
  // Says what kind of memory this is, and on which device. Memory that the devices do not know is
  // kHost. INVALID_ARGUMENT: a range that is device memory in part only, or of several devices.
  virtual absl::StatusOr<MemoryRegion> Classify(void* pointer, uint64_t bytes) const = 0;
  // Registers those of `regions` that are kDevice; runs and copies name regions by their place in
  // this list. NOT_FOUND: a device that is not there, naming those that are; INVALID_ARGUMENT: an
  // address that is no memory of its device; RESOURCE_EXHAUSTED: too many registrations.
  virtual absl::StatusOr<std::unique_ptr<DeviceSide>> Register(
      absl::Span<const MemoryRegion> regions) = 0;
  // RESOURCE_EXHAUSTED: the host has no room, or may not lock so much memory.
  virtual absl::StatusOr<std::unique_ptr<PinnedMemory>> AllocatePinned(uint64_t bytes) = 0;
  // Blocks until what `event` (of a context of `device`; over CUDA a CUevent) has recorded by now
  // has happened. NOT_FOUND: no such device; DEADLINE_EXCEEDED.
  virtual absl::Status AwaitEvent(absl::string_view device, uintptr_t event,
                                  absl::Duration timeout) = 0;
};

}  // namespace th

#endif  // TH_MEMORY_DEVICE_SIDE_H_
