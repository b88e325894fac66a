#include "th/memory/cuda/staging_ring.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/weights/status_macros.h"

namespace th {

absl::StatusOr<std::unique_ptr<StagingRing>> StagingRing::Create(CudaDevice* device,
                                                                 Options options) {
  if (options.slots < kMinStagingSlots || options.slots > kMaxStagingSlots ||
      options.slot_bytes == 0 || options.slot_bytes > kMaxStagingBytes / options.slots) {
    return absl::InvalidArgumentError(
        absl::StrCat("a staging ring of ", options.slots, " slots of ", options.slot_bytes,
                     " bytes: it has ", kMinStagingSlots, " to ", kMaxStagingSlots,
                     " slots and at most ", kMaxStagingBytes, " bytes"));
  }
  TH_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Create(device));
  TH_ASSIGN_OR_RETURN(PinnedBuffer memory,
                      PinnedBuffer::Allocate(device, options.slots * options.slot_bytes));
  std::vector<Slot> slots;
  for (uint32_t i = 0; i < options.slots; ++i) {
    TH_ASSIGN_OR_RETURN(CudaEvent event, CudaEvent::Create(device));
    slots.push_back({memory.data() + i * options.slot_bytes, std::move(event)});
  }
  return std::unique_ptr<StagingRing>(
      new StagingRing(std::move(stream), std::move(memory), std::move(slots), options.slot_bytes));
}

absl::Status StagingRing::CheckRange(const DeviceMemory& memory, uint64_t offset,
                                     uint64_t bytes) const {
  if (&memory.device() != &stream_.device()) {
    return absl::InvalidArgumentError(absl::StrCat("memory of GPU ", memory.device().pci_address(),
                                                   " through a staging ring of GPU ",
                                                   stream_.device().pci_address()));
  }
  return memory.CheckRange(offset, bytes);
}

std::vector<StagingRing::Part> StagingRing::Cut(uint64_t address, uint64_t bytes) const {
  std::vector<Part> parts;
  for (uint64_t at = 0; at < bytes; at += slot_bytes_) {
    parts.push_back({address + at, std::min(slot_bytes_, bytes - at)});
  }
  return parts;
}

absl::Status StagingRing::Move(DeviceMemory& memory, uint64_t offset, uint64_t bytes,
                               absl::FunctionRef<absl::Status(absl::Span<const Part>)> move) {
  TH_RETURN_IF_ERROR(CheckRange(memory, offset, bytes));
  TH_ASSIGN_OR_RETURN(const DeviceMemory::Use use, memory.BeginUse(offset, bytes));
  const absl::Status moved = move(Cut(memory.address() + offset, bytes));
  // Whatever has failed, no copy of the ring is under way when the next transfer begins.
  const absl::Status ended = stream_.Synchronize();
  // Memory that was freed meanwhile explains every other failure.
  TH_RETURN_IF_ERROR(memory.Verify(offset, bytes));
  TH_RETURN_IF_ERROR(moved);
  return ended;
}

absl::Status StagingRing::Read(DeviceMemory& memory, uint64_t offset, uint64_t bytes,
                               Consume consume) {
  return Move(memory, offset, bytes,
              [&](absl::Span<const Part> parts) { return ReadParts(parts, consume); });
}

// As many copies as there are slots are under way; a slot is used anew once its bytes are consumed.
absl::Status StagingRing::ReadParts(absl::Span<const Part> parts, Consume consume) {
  const auto begin = [&](uint64_t part) -> absl::Status {
    Slot& slot = SlotOf(part);
    TH_RETURN_IF_ERROR(stream_.CopyToHost(slot.data, parts[part].address, parts[part].bytes));
    return stream_.Record(slot.event);
  };
  for (uint64_t part = 0; part < std::min(parts.size(), slots_.size()); ++part) {
    TH_RETURN_IF_ERROR(begin(part));
  }
  for (uint64_t part = 0; part < parts.size(); ++part) {
    Slot& slot = SlotOf(part);
    TH_RETURN_IF_ERROR(slot.event.Synchronize());
    TH_RETURN_IF_ERROR(consume(absl::MakeConstSpan(slot.data, parts[part].bytes)));
    if (part + slots_.size() < parts.size()) TH_RETURN_IF_ERROR(begin(part + slots_.size()));
  }
  return absl::OkStatus();
}

absl::Status StagingRing::Write(DeviceMemory& memory, uint64_t offset, uint64_t bytes,
                                Produce produce) {
  return Move(memory, offset, bytes,
              [&](absl::Span<const Part> parts) { return WriteParts(parts, produce); });
}

absl::Status StagingRing::WriteParts(absl::Span<const Part> parts, Produce produce) {
  for (uint64_t part = 0; part < parts.size(); ++part) {
    Slot& slot = SlotOf(part);
    if (part >= slots_.size()) TH_RETURN_IF_ERROR(slot.event.Synchronize());
    TH_RETURN_IF_ERROR(produce(absl::MakeSpan(slot.data, parts[part].bytes)));
    TH_RETURN_IF_ERROR(stream_.CopyToDevice(parts[part].address, slot.data, parts[part].bytes));
    TH_RETURN_IF_ERROR(stream_.Record(slot.event));
  }
  return absl::OkStatus();
}

absl::Status StagingRing::CopyToHost(DeviceMemory& memory, uint64_t offset,
                                     absl::Span<std::byte> to) {
  std::byte* next = to.data();
  return Read(memory, offset, to.size(), [&next](absl::Span<const std::byte> bytes) {
    std::memcpy(next, bytes.data(), bytes.size());
    next += bytes.size();
    return absl::OkStatus();
  });
}

absl::Status StagingRing::CopyToDevice(DeviceMemory& memory, uint64_t offset,
                                       absl::Span<const std::byte> from) {
  const std::byte* next = from.data();
  return Write(memory, offset, from.size(), [&next](absl::Span<std::byte> bytes) {
    std::memcpy(bytes.data(), next, bytes.size());
    next += bytes.size();
    return absl::OkStatus();
  });
}

}  // namespace th
