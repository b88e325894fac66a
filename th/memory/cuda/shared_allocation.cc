#include "th/memory/cuda/shared_allocation.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "th/memory/cuda/pointer_attributes.h"
#include "th/weights/status_macros.h"

namespace th {
namespace {

// The encoding: magic, handle, bytes and offset (little-endian), and the UUID as the rest.
constexpr absl::string_view kMagic = "THCUDA1\n";
constexpr size_t kFixedBytes = kMagic.size() + sizeof(CUipcMemHandle) + 2 * sizeof(uint64_t);
constexpr size_t kUuidBytes = 40;  // "GPU-8-4-4-4-12"

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

}  // namespace

std::string ExportedAllocation::Encode() const {
  std::string encoded(kMagic);
  encoded.append(handle.reserved, sizeof(handle.reserved));
  AppendLittleEndian(bytes, &encoded);
  AppendLittleEndian(offset, &encoded);
  return encoded + device_uuid;
}

absl::StatusOr<ExportedAllocation> ExportedAllocation::Decode(absl::string_view encoded) {
  if (encoded.size() != kFixedBytes + kUuidBytes || encoded.substr(0, kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError(
        absl::StrCat(encoded.size(), " bytes that name no exported device memory"));
  }
  encoded.remove_prefix(kMagic.size());
  ExportedAllocation exported;
  std::memcpy(exported.handle.reserved, encoded.data(), sizeof(exported.handle.reserved));
  encoded.remove_prefix(sizeof(exported.handle.reserved));
  exported.bytes = TakeLittleEndian(&encoded);
  exported.offset = TakeLittleEndian(&encoded);
  exported.device_uuid = std::string(encoded);
  if (exported.offset < exported.bytes) return exported;
  return absl::InvalidArgumentError(absl::StrCat("exported device memory of ", exported.bytes,
                                                 " bytes with a pointer at offset ",
                                                 exported.offset));
}

absl::StatusOr<std::string> ExportAllocation(const CudaDevices& devices, const void* pointer) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  TH_ASSIGN_OR_RETURN(const PointerAttributes found,
                      GetPointerAttributes(devices.driver(), address));
  if (!found.is_device_memory) {
    return absl::InvalidArgumentError(absl::StrCat(
        "0x", absl::Hex(address), " is no device memory, and cannot be shared as such"));
  }
  TH_ASSIGN_OR_RETURN(CudaDevice * device, devices.ByIndex(found.device_index));
  if (!found.has_ipc_handle) {
    return absl::UnimplementedError(
        absl::StrCat("memory at 0x", absl::Hex(address), " of GPU ", device->pci_address(),
                     " was mapped (cuMemMap; torch: expandable_segments) or comes from a pool: it "
                     "has no handle for other "
                     "processes. Allocate it by cuMemAlloc (torch: expandable_segments:False)"));
  }
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device->Enter());
  CUdeviceptr base = 0;
  size_t bytes = 0;
  TH_RETURN_IF_ERROR(device->Status(device->driver().MemGetAddressRange(&base, &bytes, address),
                                    absl::StrCat("find the allocation at 0x", absl::Hex(address))));
  ExportedAllocation exported = {
      .device_uuid = device->uuid(), .bytes = bytes, .offset = address - base};
  TH_RETURN_IF_ERROR(device->Status(device->driver().IpcGetMemHandle(&exported.handle, base),
                                    absl::StrCat("export the allocation at 0x", absl::Hex(base))));
  return exported.Encode();
}

absl::StatusOr<std::unique_ptr<ImportedAllocation>> ImportAllocation(const CudaDevices& devices,
                                                                     absl::string_view exported) {
  TH_ASSIGN_OR_RETURN(const ExportedAllocation decoded, ExportedAllocation::Decode(exported));
  TH_ASSIGN_OR_RETURN(CudaDevice * device, devices.ByUuid(decoded.device_uuid));
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device->Enter());
  CUdeviceptr address = 0;
  TH_RETURN_IF_ERROR(
      device->Status(device->driver().IpcOpenMemHandle(&address, decoded.handle,
                                                       CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                     absl::StrCat("open another process's ", decoded.bytes, " bytes")));
  std::unique_ptr<ImportedAllocation> imported(
      new ImportedAllocation(device, address, decoded.bytes, decoded.offset));
  // The size is what the owner said: the driver knows better.
  CUdeviceptr base = 0;
  size_t bytes = 0;
  TH_RETURN_IF_ERROR(device->Status(device->driver().MemGetAddressRange(&base, &bytes, address),
                                    "find an opened allocation"));
  if (decoded.bytes > bytes || address - base > bytes - decoded.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("another process announced ", decoded.bytes,
                                                   " bytes of device memory, and its handle is of ",
                                                   bytes));
  }
  return imported;
}

ImportedAllocation::~ImportedAllocation() {
  if (!closed_) static_cast<void>(Close().ok());
}

absl::Status ImportedAllocation::Close() {
  if (closed_) return absl::FailedPreconditionError("this imported allocation is closed already");
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device_->Enter());
  closed_ = true;
  return device_->Status(device_->driver().IpcCloseMemHandle(address_),
                         "close another process's memory");
}

}  // namespace th
