#include "th/memory/cuda/shared_allocation.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "th/memory/cuda/pointer_attributes.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

// The encoding: magic, kind, handle, descriptor, bytes and offset (little-endian), and the UUID as
// the rest.
constexpr absl::string_view kMagic = "THCUDA2\n";
constexpr size_t kUuidBytes = 40;  // "GPU-8-4-4-4-12"
static_assert(ExportedAllocation::kEncodedBytes == kMagic.size() + sizeof(uint64_t) +
                                                       sizeof(CUipcMemHandle) +
                                                       3 * sizeof(uint64_t) + kUuidBytes);

void AppendLittleEndian(uint64_t value, std::string* out) {
  for (int shift = 0; shift < 64; shift += 8)
    out->push_back(static_cast<char>(value >> shift & 0xff));
}

uint64_t TakeLittleEndian(absl::string_view* in) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 8) {
    value |= uint64_t{static_cast<uint8_t>((*in)[shift / 8])} << shift;
  }
  in->remove_prefix(sizeof(value));
  return value;
}

// True where what is not of its kind is zero: one encoding for each value.
bool IsCanonical(const ExportedAllocation& exported) {
  if (exported.kind == SharedMemoryKind::kAllocated) return exported.file_descriptor == 0;
  const char* const handle = exported.handle.reserved;
  return exported.file_descriptor <= INT_MAX &&
         std::all_of(handle, handle + sizeof(exported.handle.reserved),
                     [](char byte) { return byte == 0; });
}

// ---- exporting

std::string Place(const CudaDevice& device, uint64_t address) {
  return absl::StrCat("memory at 0x", absl::Hex(address), " of GPU ", device.pci_address());
}

absl::Status NoHandle(const CudaDevice& device, uint64_t address, absl::string_view why) {
  return absl::UnimplementedError(absl::StrCat(
      Place(device, address), " has no handle for other processes: ", why,
      ". Allocate it by cuMemAlloc (torch: expandable_segments:False), or map what was "
      "created with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"));
}

// The driver's handle of what is mapped at an address; it holds the memory until it is released.
class MappingHandle {
 public:
  static absl::StatusOr<MappingHandle> At(CudaDevice* device, uint64_t address) {
    CUmemGenericAllocationHandle handle = 0;
    const CUresult retained =
        device->driver().MemRetainAllocationHandle(&handle, reinterpret_cast<void*>(address));
    if (retained == CUDA_ERROR_INVALID_VALUE || retained == CUDA_ERROR_NOT_SUPPORTED) {
      return NoHandle(*device, address, "it comes from a pool");
    }
    TH_RETURN_IF_ERROR(
        device->Status(retained, absl::StrCat("find what is mapped at 0x", absl::Hex(address))));
    return MappingHandle(device, handle);
  }
  static absl::StatusOr<MappingHandle> Import(CudaDevice* device, int file_descriptor) {
    CUmemGenericAllocationHandle handle = 0;
    TH_RETURN_IF_ERROR(device->Status(
        device->driver().MemImportFromShareableHandle(
            // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver takes descriptors so.
            &handle, reinterpret_cast<void*>(static_cast<uintptr_t>(file_descriptor)),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "open another process's mapped memory"));
    return MappingHandle(device, handle);
  }
  ~MappingHandle() {
    if (device_ != nullptr) device_->driver().MemRelease(handle_);
  }
  MappingHandle(MappingHandle&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), handle_(other.handle_) {}
  MappingHandle& operator=(MappingHandle&&) = delete;

  CUmemGenericAllocationHandle get() const { return handle_; }
  absl::Status CheckExportable(uint64_t address) const {
    CUmemAllocationProp properties = {};
    TH_RETURN_IF_ERROR(device_->Status(
        device_->driver().MemGetAllocationPropertiesFromHandle(&properties, handle_),
        absl::StrCat("find out how the memory at 0x", absl::Hex(address), " was created")));
    const unsigned types = properties.requestedHandleTypes;
    if ((types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) return absl::OkStatus();
    return NoHandle(*device_, address,
                    "it was mapped (cuMemMap; torch: expandable_segments), and "
                    "created without one");
  }

 private:
  MappingHandle(CudaDevice* device, CUmemGenericAllocationHandle handle)
      : device_(device), handle_(handle) {}
  CudaDevice* device_;
  CUmemGenericAllocationHandle handle_;
};

struct ExportablePointer {
  CudaDevice* device;
  bool mapped;
};

absl::StatusOr<ExportablePointer> FindExportable(const CudaDevices& devices, uint64_t address) {
  TH_ASSIGN_OR_RETURN(const PointerAttributes found,
                      GetPointerAttributes(devices.driver(), address));
  if (!found.is_device_memory) {
    return absl::InvalidArgumentError(absl::StrCat(
        "0x", absl::Hex(address), " is no device memory, and cannot be shared as such"));
  }
  TH_ASSIGN_OR_RETURN(CudaDevice * device, devices.ByIndex(found.device_index));
  return ExportablePointer{device, !found.has_ipc_handle};
}

absl::StatusOr<uint64_t> ExportMapping(CudaDevice* device, uint64_t address) {
  TH_ASSIGN_OR_RETURN(const MappingHandle mapping, MappingHandle::At(device, address));
  TH_RETURN_IF_ERROR(mapping.CheckExportable(address));
  int file_descriptor = -1;
  const CUresult exported = device->driver().MemExportToShareableHandle(
      &file_descriptor, mapping.get(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  TH_RETURN_IF_ERROR(
      device->Status(exported, absl::StrCat("export what is mapped at 0x", absl::Hex(address))));
  return static_cast<uint64_t>(file_descriptor);
}

}  // namespace

// ---- the value

std::string ExportedAllocation::Encode() const {
  std::string encoded(kMagic);
  AppendLittleEndian(static_cast<uint64_t>(kind), &encoded);
  encoded.append(handle.reserved, sizeof(handle.reserved));
  AppendLittleEndian(file_descriptor, &encoded);
  AppendLittleEndian(bytes, &encoded);
  AppendLittleEndian(offset, &encoded);
  return encoded + device_uuid;
}

absl::StatusOr<ExportedAllocation> ExportedAllocation::Decode(absl::string_view encoded) {
  const absl::Status nonsense = absl::InvalidArgumentError(
      absl::StrCat(encoded.size(), " bytes that name no exported device memory"));
  if (encoded.size() != kEncodedBytes || encoded.substr(0, kMagic.size()) != kMagic) {
    return nonsense;
  }
  encoded.remove_prefix(kMagic.size());
  const uint64_t kind = TakeLittleEndian(&encoded);
  if (kind != static_cast<uint64_t>(SharedMemoryKind::kAllocated) &&
      kind != static_cast<uint64_t>(SharedMemoryKind::kMapped)) {
    return nonsense;
  }
  ExportedAllocation exported;
  exported.kind = static_cast<SharedMemoryKind>(kind);
  std::memcpy(exported.handle.reserved, encoded.data(), sizeof(exported.handle.reserved));
  encoded.remove_prefix(sizeof(exported.handle.reserved));
  exported.file_descriptor = TakeLittleEndian(&encoded);
  exported.bytes = TakeLittleEndian(&encoded);
  exported.offset = TakeLittleEndian(&encoded);
  exported.device_uuid = std::string(encoded);
  if (!IsCanonical(exported)) return nonsense;
  if (exported.offset < exported.bytes) return exported;
  return absl::InvalidArgumentError(absl::StrCat("exported device memory of ", exported.bytes,
                                                 " bytes with a pointer at offset ",
                                                 exported.offset));
}

// ---- the owner

absl::Status CanBeExported(const CudaDevices& devices, const void* pointer) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  TH_ASSIGN_OR_RETURN(const ExportablePointer found, FindExportable(devices, address));
  if (!found.mapped) return absl::OkStatus();
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, found.device->Enter());
  TH_ASSIGN_OR_RETURN(const MappingHandle mapping, MappingHandle::At(found.device, address));
  return mapping.CheckExportable(address);
}

absl::StatusOr<std::unique_ptr<AllocationExport>> AllocationExport::Of(const CudaDevices& devices,
                                                                       const void* pointer) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  TH_ASSIGN_OR_RETURN(const ExportablePointer found, FindExportable(devices, address));
  CudaDevice* const device = found.device;
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device->Enter());
  CUdeviceptr base = 0;
  size_t bytes = 0;
  TH_RETURN_IF_ERROR(device->Status(device->driver().MemGetAddressRange(&base, &bytes, address),
                                    absl::StrCat("find the allocation at 0x", absl::Hex(address))));
  ExportedAllocation exported = {
      .device_uuid = device->uuid(), .bytes = bytes, .offset = address - base};
  if (found.mapped) {
    exported.kind = SharedMemoryKind::kMapped;
    TH_ASSIGN_OR_RETURN(exported.file_descriptor, ExportMapping(device, base));
  } else {
    TH_RETURN_IF_ERROR(
        device->Status(device->driver().IpcGetMemHandle(&exported.handle, base),
                       absl::StrCat("export the allocation at 0x", absl::Hex(base))));
  }
  return std::unique_ptr<AllocationExport>(new AllocationExport(std::move(exported)));
}

AllocationExport::~AllocationExport() {
  if (exported_.kind == SharedMemoryKind::kMapped) {
    close(static_cast<int>(exported_.file_descriptor));
  }
}

// ---- the reader

class AllocationImporter {
 public:
  AllocationImporter(CudaDevice* device, const ExportedAllocation& exported)
      : device_(device), exported_(exported) {}

  absl::StatusOr<std::unique_ptr<ImportedAllocation>> Open() const {
    CUdeviceptr address = 0;
    TH_RETURN_IF_ERROR(
        device_->Status(device_->driver().IpcOpenMemHandle(&address, exported_.handle,
                                                           CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                        absl::StrCat("open another process's ", exported_.bytes, " bytes")));
    auto imported = Imported(address);
    // The size is what the owner said: the driver knows better.
    CUdeviceptr base = 0;
    size_t bytes = 0;
    TH_RETURN_IF_ERROR(device_->Status(device_->driver().MemGetAddressRange(&base, &bytes, address),
                                       "find an opened allocation"));
    if (exported_.bytes > bytes || address - base > bytes - exported_.bytes) {
      return absl::InvalidArgumentError(absl::StrCat("another process announced ", exported_.bytes,
                                                     " bytes of device memory, and its handle is "
                                                     "of ",
                                                     bytes));
    }
    return imported;
  }

  // The mapping keeps the memory; the handle need not.
  absl::StatusOr<std::unique_ptr<ImportedAllocation>> Map(int file_descriptor) const {
    if (file_descriptor < 0) {
      return absl::InvalidArgumentError(
          "mapped memory of another process is imported by its descriptor, and there is none");
    }
    TH_ASSIGN_OR_RETURN(const MappingHandle mapping,
                        MappingHandle::Import(device_, file_descriptor));
    CUdeviceptr address = 0;
    TH_RETURN_IF_ERROR(device_->Status(
        device_->driver().MemAddressReserve(&address, exported_.bytes, 0, 0, 0),
        absl::StrCat("reserve addresses for another process's ", exported_.bytes, " bytes")));
    const CUresult mapped = device_->driver().MemMap(address, exported_.bytes, 0, mapping.get(), 0);
    if (mapped != CUDA_SUCCESS) {
      device_->driver().MemAddressFree(address, exported_.bytes);
      return device_->Status(mapped,
                             absl::StrCat("map another process's ", exported_.bytes, " bytes"));
    }
    auto imported = Imported(address);
    CUmemAccessDesc access = {};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_->index()};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    TH_RETURN_IF_ERROR(
        device_->Status(device_->driver().MemSetAccess(address, exported_.bytes, &access, 1),
                        absl::StrCat("use another process's ", exported_.bytes, " bytes of GPU ",
                                     exported_.device_uuid)));
    return imported;
  }

 private:
  std::unique_ptr<ImportedAllocation> Imported(uint64_t address) const {
    return std::unique_ptr<ImportedAllocation>(new ImportedAllocation(device_, exported_, address));
  }

  CudaDevice* const device_;
  const ExportedAllocation& exported_;
};

absl::StatusOr<std::unique_ptr<ImportedAllocation>> ImportAllocation(
    const CudaDevices& devices, const ExportedAllocation& exported, ImportOptions options) {
  CudaDevice* device = options.device;
  if (device == nullptr) {
    TH_ASSIGN_OR_RETURN(device, devices.ByUuid(exported.device_uuid));
  }
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device->Enter());
  const AllocationImporter importer(device, exported);
  return exported.kind == SharedMemoryKind::kMapped ? importer.Map(options.file_descriptor)
                                                    : importer.Open();
}

ImportedAllocation::~ImportedAllocation() {
  if (!closed_) static_cast<void>(Close().ok());
}

absl::Status ImportedAllocation::Close() {
  if (closed_) return absl::FailedPreconditionError("this imported allocation is closed already");
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device_->Enter());
  closed_ = true;
  if (kind_ == SharedMemoryKind::kMapped) return Unmap();
  return device_->Status(device_->driver().IpcCloseMemHandle(address_),
                         "close another process's memory");
}

absl::Status ImportedAllocation::Unmap() {
  TH_RETURN_IF_ERROR(device_->Status(device_->driver().MemUnmap(address_, bytes_),
                                     "unmap another process's memory"));
  return device_->Status(device_->driver().MemAddressFree(address_, bytes_),
                         "give back the addresses of another process's memory");
}

}  // namespace th
