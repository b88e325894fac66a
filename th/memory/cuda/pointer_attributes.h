// The driver's knowledge of a pointer.
#ifndef TH_MEMORY_CUDA_POINTER_ATTRIBUTES_H_
#define TH_MEMORY_CUDA_POINTER_ATTRIBUTES_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "th/memory/cuda/driver.h"

namespace th {

struct PointerAttributes {
  bool is_device_memory = false;  // which the host cannot read: no managed memory
  int device_index = -1;          // where is_device_memory
  uint64_t buffer_id = 0;         // where is_device_memory
  // True when another process can open it by cuIpcGetMemHandle; memory that was mapped cannot be.
  bool has_ipc_handle = false;
};

// Errors of CudaStatus. A pointer that the driver does not know is no error.
absl::StatusOr<PointerAttributes> GetPointerAttributes(const CudaDriver& driver, uint64_t address);

}  // namespace th

#endif  // TH_MEMORY_CUDA_POINTER_ATTRIBUTES_H_
