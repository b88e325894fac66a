// Device memory between processes of one host: the owner exports an allocation as bytes, which
// travel to the reader by any way, and the reader imports it at an address of its own.
//
//   TH_ASSIGN_OR_RETURN(const std::string exported, ExportAllocation(*devices, tensor.data())); //
//   owner TH_ASSIGN_OR_RETURN(std::unique_ptr<ImportedAllocation> imported, // reader
//                       ImportAllocation(*devices, exported));
//   ... imported->address(), imported->bytes() ...
//   TH_RETURN_IF_ERROR(imported->Close());
//
// The owner must not free an allocation while another process has it open: the driver does not say
// what a reader would see. Memory that the owner mapped (cuMemMap, torch's expandable segments) has
// handles of another kind and is refused.
#ifndef TH_MEMORY_CUDA_SHARED_ALLOCATION_H_
#define TH_MEMORY_CUDA_SHARED_ALLOCATION_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "th/memory/cuda/device.h"

namespace th {

// An exported allocation, decoded. A value.
struct ExportedAllocation {
  CUipcMemHandle handle = {};
  std::string device_uuid;
  uint64_t bytes = 0;   // of the allocation
  uint64_t offset = 0;  // of the pointer in the allocation, below `bytes`

  std::string Encode() const;
  // INVALID_ARGUMENT: bytes that Encode has not written.
  static absl::StatusOr<ExportedAllocation> Decode(absl::string_view encoded);
};

// INVALID_ARGUMENT: no device memory; UNIMPLEMENTED: mapped memory; errors of CudaStatus.
absl::StatusOr<std::string> ExportAllocation(const CudaDevices& devices, const void* pointer);

// Not thread-safe.
class ImportedAllocation {
 public:
  // Closes it, if that has not been done.
  ~ImportedAllocation();
  ImportedAllocation(const ImportedAllocation&) = delete;
  ImportedAllocation& operator=(const ImportedAllocation&) = delete;

  CudaDevice& device() const { return *device_; }
  void* pointer() const {
    return reinterpret_cast<void*>(address_ + offset_);
  }                                              // what was exported
  uint64_t address() const { return address_; }  // of the allocation
  uint64_t bytes() const { return bytes_; }      // of the allocation
  // Unmaps it here, after everything that reads it. FAILED_PRECONDITION: it is closed already.
  absl::Status Close();

 private:
  friend absl::StatusOr<std::unique_ptr<ImportedAllocation>> ImportAllocation(const CudaDevices&,
                                                                              absl::string_view);
  ImportedAllocation(CudaDevice* device, uint64_t address, uint64_t bytes, uint64_t offset)
      : device_(device), address_(address), bytes_(bytes), offset_(offset) {}

  CudaDevice* const device_;
  const uint64_t address_;
  const uint64_t bytes_;
  const uint64_t offset_;
  bool closed_ = false;
};

// INVALID_ARGUMENT: the bytes, or the handle in them, are nonsense, or the owner has ended;
// NOT_FOUND: this process does not see the device; INTERNAL and others of CudaStatus, one for an
// allocation of this very process included. `devices` outlives it.
absl::StatusOr<std::unique_ptr<ImportedAllocation>> ImportAllocation(const CudaDevices& devices,
                                                                     absl::string_view exported);

}  // namespace th

#endif  // TH_MEMORY_CUDA_SHARED_ALLOCATION_H_
