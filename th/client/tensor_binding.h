// From the caller's tensors to a layout and the address of each of its storages. No byte is read.
//
// Tensors at one address with one size are aliases: the first by name (or the one that another
// names in `alias_of`) owns the storage, so that every rank that ties the same names gets the same
// layout.
//
// Thread-safety: plain functions.
#ifndef TH_CLIENT_TENSOR_BINDING_H_
#define TH_CLIENT_TENSOR_BINDING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "th/client/tensor.h"
#include "th/memory/device_side.h"
#include "th/memory/memory_region.h"
#include "th/weights/shard_layout.h"

namespace th {

struct BindingOptions {
  uint64_t segment_bytes = 0;  // 0: chosen from the shard's size
  bool checksums = true;
};

struct TensorBinding {
  std::shared_ptr<const ShardLayout> layout;  // shared: transfers outlive the registration
  std::vector<void*> storages;                // by index into layout->storages()
  // Where there is device memory among them (FindDeviceMemory): what kind each is, and the device's
  // side of them. Empty and null where all of it is the host's.
  std::vector<MemoryRegion> regions;
  std::shared_ptr<DeviceSide> device;  // shared with the store
};

// INVALID_ARGUMENT naming the tensor, or both: what ShardLayout::Build refuses, bytes without an
// address, an alias that lies elsewhere than its owner, overlapping storages.
absl::StatusOr<TensorBinding> BindTensors(std::vector<Tensor> tensors, BindingOptions options);

// Finds out which of the storages are device memory, and registers those. Without devices (null)
// all of it is the host's. INVALID_ARGUMENT naming the tensor: it lies in device memory in part, or
// on several devices; RESOURCE_EXHAUSTED.
absl::Status FindDeviceMemory(MemoryDevices* devices, TensorBinding* binding);

// OK when the storages in host memory can be read; asked before anybody does. INVALID_ARGUMENT
// naming the tensor and what is wrong with its memory. Costs about a millisecond for 1,000 mappings
// of the process, whatever the tensors' sizes (th/memory/readable_memory.h).
absl::Status CheckReadable(const TensorBinding& binding);

}  // namespace th

#endif  // TH_CLIENT_TENSOR_BINDING_H_
