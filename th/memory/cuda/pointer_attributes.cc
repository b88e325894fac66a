#include "th/memory/cuda/pointer_attributes.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"

namespace th {

absl::StatusOr<PointerAttributes> GetPointerAttributes(const CudaDriver& driver, uint64_t address) {
  unsigned type = 0;
  unsigned managed = 0;
  int device = -1;
  unsigned long long buffer_id = 0;  // NOLINT(google-runtime-int): the driver's type
  unsigned has_ipc_handle = 0;       // as large as any boolean that the driver writes
  std::array<CUpointer_attribute, 5> names = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_BUFFER_ID,
      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
  std::array<void*, 5> values = {&type, &managed, &device, &buffer_id, &has_ipc_handle};
  // Unlike the call for one attribute, this one takes pointers that are not CUDA's.
  TH_RETURN_IF_ERROR(CudaStatus(
      driver, driver.PointerGetAttributes(names.size(), names.data(), values.data(), address),
      absl::StrCat("find out what memory is at 0x", absl::Hex(address))));
  if (type != CU_MEMORYTYPE_DEVICE || managed != 0) return PointerAttributes{};
  return PointerAttributes{true, device, buffer_id, has_ipc_handle != 0};
}

}  // namespace th
