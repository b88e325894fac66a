// Device memory between processes of one host: the owner exports an allocation, what describes it
// travels to the reader by any way, and the reader imports it at an address of its own.
//
//   TH_ASSIGN_OR_RETURN(const std::unique_ptr<AllocationExport> shared,          // owner
//                       AllocationExport::Of(*devices, tensor.data()));
//   Send(shared->exported().Encode());
//
//   TH_ASSIGN_OR_RETURN(const ExportedAllocation exported,                       // reader
//                       ExportedAllocation::Decode(received));
//   TH_ASSIGN_OR_RETURN(std::unique_ptr<ImportedAllocation> imported,
//                       ImportAllocation(*devices, exported, {.device = mine}));
//   ... imported->address(), imported->bytes() ...
//   TH_RETURN_IF_ERROR(imported->Close());
//
// Two kinds of memory have handles of two kinds. What cuMemAlloc gave has a handle of bytes. What
// was mapped (cuMemMap, torch's expandable segments) has a file descriptor, if it was created with
// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: the reader brings the owner's descriptor into its
// process (pidfd_getfd, SCM_RIGHTS) and passes it. The export keeps mapped memory, and so does an
// import: it is given back to the device when both have ended, whoever unmaps it before.
//
// The owner must not free what cuMemAlloc gave while another process has it open: the driver does
// not say what a reader would see.
#ifndef TH_MEMORY_CUDA_SHARED_ALLOCATION_H_
#define TH_MEMORY_CUDA_SHARED_ALLOCATION_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "th/memory/cuda/device.h"

namespace th {

enum class SharedMemoryKind : uint8_t {
  kAllocated = 1,  // cuMemAlloc: `handle`
  kMapped = 2,     // cuMemMap: `file_descriptor`
};

// An exported allocation, or mapping. A value.
struct ExportedAllocation {
  SharedMemoryKind kind = SharedMemoryKind::kAllocated;
  CUipcMemHandle handle = {};    // zeros of what was mapped
  uint64_t file_descriptor = 0;  // a number of the owner's process; 0 of what was allocated
  std::string device_uuid;
  uint64_t bytes = 0;   // of the allocation
  uint64_t offset = 0;  // of the pointer in the allocation, below `bytes`

  // kEncodedBytes.
  std::string Encode() const;
  // INVALID_ARGUMENT: bytes that Encode has not written.
  static absl::StatusOr<ExportedAllocation> Decode(absl::string_view encoded);
  static constexpr size_t kEncodedBytes = 8 + 8 + sizeof(CUipcMemHandle) + 3 * 8 + 40;
};

// OK when other processes can import the memory at `pointer`. INVALID_ARGUMENT: it is no device
// memory; UNIMPLEMENTED: it has no handle of either kind, with what to do; errors of CudaStatus.
absl::Status CanBeExported(const CudaDevices& devices, const void* pointer);

// While it lives, others can import the allocation. Thread-safe: it does not change.
class AllocationExport {
 public:
  // The allocation, or the mapping, that `pointer` lies in. Errors of CanBeExported;
  // RESOURCE_EXHAUSTED: no descriptor.
  static absl::StatusOr<std::unique_ptr<AllocationExport>> Of(const CudaDevices& devices,
                                                              const void* pointer);
  ~AllocationExport();
  AllocationExport(const AllocationExport&) = delete;
  AllocationExport& operator=(const AllocationExport&) = delete;

  const ExportedAllocation& exported() const { return exported_; }

 private:
  explicit AllocationExport(ExportedAllocation exported) : exported_(std::move(exported)) {}

  const ExportedAllocation exported_;  // whose descriptor is this one's own
};

// Not thread-safe.
class ImportedAllocation {
 public:
  // Closes it, if that has not been done.
  ~ImportedAllocation();
  ImportedAllocation(const ImportedAllocation&) = delete;
  ImportedAllocation& operator=(const ImportedAllocation&) = delete;

  // The device whose kernels and copies reach it here.
  CudaDevice& device() const { return *device_; }
  // The exported range begins here.
  void* pointer() const { return reinterpret_cast<void*>(address_ + offset_); }
  uint64_t address() const { return address_; }  // of the allocation
  uint64_t bytes() const { return bytes_; }      // of the allocation
  // Unmaps it here, after everything that reads it. FAILED_PRECONDITION: it is closed already.
  absl::Status Close();

 private:
  friend class AllocationImporter;
  ImportedAllocation(CudaDevice* device, const ExportedAllocation& exported, uint64_t address)
      : device_(device),
        kind_(exported.kind),
        address_(address),
        bytes_(exported.bytes),
        offset_(exported.offset) {}
  absl::Status Unmap();

  CudaDevice* const device_;
  const SharedMemoryKind kind_;
  const uint64_t address_;
  const uint64_t bytes_;
  const uint64_t offset_;
  bool closed_ = false;
};

struct ImportOptions {
  // The device whose kernels and copies shall reach the memory. It may be another device than the
  // memory's, where it reaches that (CudaDevice::Reaches), and the memory's need not be visible to
  // this process then. Null: the memory's own.
  CudaDevice* device = nullptr;
  // For mapped memory: the owner's descriptor, in this process. It may be closed afterwards.
  int file_descriptor = -1;
};

// INVALID_ARGUMENT: the handle is nonsense, or the owner has ended; NOT_FOUND: this process does
// not see the device; INTERNAL and others of CudaStatus, one for an allocation (not a mapping) of
// this very process included. `devices` outlives it.
absl::StatusOr<std::unique_ptr<ImportedAllocation>> ImportAllocation(
    const CudaDevices& devices, const ExportedAllocation& exported, ImportOptions options = {});

}  // namespace th

#endif  // TH_MEMORY_CUDA_SHARED_ALLOCATION_H_
