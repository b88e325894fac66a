// Moves ranges between a device and the host through pinned memory of a fixed size, so that weights
// of any size and host memory of any kind do: while one slot is filled by the device, the host
// works on another.
//
//   TH_ASSIGN_OR_RETURN(std::unique_ptr<StagingRing> ring, StagingRing::Create(&memory->device(),
//   {})); TH_RETURN_IF_ERROR(ring->Read(*memory, 0, memory->bytes(), [&](absl::Span<const
//   std::byte> bytes) {
//     return file.Write(bytes.data(), bytes.size());
//   }));
//
// Not thread-safe: one transfer at a time, and a ring for each thread that transfers.
#ifndef TH_MEMORY_CUDA_STAGING_RING_H_
#define TH_MEMORY_CUDA_STAGING_RING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "th/memory/cuda/device_memory.h"
#include "th/memory/cuda/stream.h"

namespace th {

// Pinned memory that one ring may take.
inline constexpr uint64_t kMaxStagingBytes = uint64_t{256} << 20;
inline constexpr uint32_t kMinStagingSlots = 2;
inline constexpr uint32_t kMaxStagingSlots = 16;

class StagingRing {
 public:
  struct Options {
    // A PCIe link is busy from some MiB at a time on; smaller slots end sooner.
    uint64_t slot_bytes = uint64_t{4} << 20;
    uint32_t slots = kMinStagingSlots;
  };
  // Takes bytes that lie in the ring until it returns. A failure ends the transfer.
  using Consume = absl::FunctionRef<absl::Status(absl::Span<const std::byte>)>;
  // Fills all bytes.
  using Produce = absl::FunctionRef<absl::Status(absl::Span<std::byte>)>;

  // INVALID_ARGUMENT: options outside of their limits; RESOURCE_EXHAUSTED: no memory to pin.
  // `device` outlives the ring.
  static absl::StatusOr<std::unique_ptr<StagingRing>> Create(CudaDevice* device, Options options);
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  // Hands out bytes [offset, offset + bytes) of `memory` in order. Only after OK were they those of
  // the registered memory. INVALID_ARGUMENT: beyond the memory's end, or of another device;
  // FAILED_PRECONDITION as of DeviceMemory.
  absl::Status Read(DeviceMemory& memory, uint64_t offset, uint64_t bytes, Consume consume);
  // Has bytes [offset, offset + bytes) produced in order and writes them. On an error some may have
  // been written.
  absl::Status Write(DeviceMemory& memory, uint64_t offset, uint64_t bytes, Produce produce);

  // The same with plain host memory.
  absl::Status CopyToHost(DeviceMemory& memory, uint64_t offset, absl::Span<std::byte> to);
  absl::Status CopyToDevice(DeviceMemory& memory, uint64_t offset,
                            absl::Span<const std::byte> from);

  uint64_t pinned_bytes() const { return slots_.size() * slot_bytes_; }

 private:
  struct Slot {
    std::byte* data;
    CudaEvent event;  // the slot's copy is done
  };
  // A part of a transfer that fits into a slot.
  struct Part {
    uint64_t address;
    uint64_t bytes;
  };

  StagingRing(CudaStream stream, PinnedBuffer memory, std::vector<Slot> slots, uint64_t slot_bytes)
      : stream_(std::move(stream)),
        memory_(std::move(memory)),
        slots_(std::move(slots)),
        slot_bytes_(slot_bytes) {}
  absl::Status CheckRange(const DeviceMemory& memory, uint64_t offset, uint64_t bytes) const;
  Slot& SlotOf(uint64_t part) { return slots_[part % slots_.size()]; }
  // Runs `move` over the parts of the range while it is used, and verifies it afterwards.
  absl::Status Move(DeviceMemory& memory, uint64_t offset, uint64_t bytes,
                    absl::FunctionRef<absl::Status(absl::Span<const Part>)> move);
  absl::Status ReadParts(absl::Span<const Part> parts, Consume consume);
  absl::Status WriteParts(absl::Span<const Part> parts, Produce produce);
  std::vector<Part> Cut(uint64_t address, uint64_t bytes) const;

  const CudaStream stream_;
  const PinnedBuffer memory_;
  std::vector<Slot> slots_;
  const uint64_t slot_bytes_;
};

}  // namespace th

#endif  // TH_MEMORY_CUDA_STAGING_RING_H_
