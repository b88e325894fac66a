#include "th/memory/cuda/gpu_direct.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

// True where every device sees an adapter's writes to this one in their order. One whose own
// kernels alone do is flushed too, as other GPUs of the host copy weights out of it.
bool OrdersRemoteWrites(const CudaDevice& device) {
  const absl::StatusOr<int> ordering =
      device.Attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
  return ordering.ok() && *ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES;
}

}  // namespace

absl::StatusOr<DmaBuf> DmaBuf::Export(CudaDevice& device, uint64_t address, uint64_t bytes) {
  const CudaDriver& driver = device.driver();
  if (driver.MemGetHandleForAddressRange == nullptr) {
    return absl::UnimplementedError("the CUDA driver is older than 515 (CUDA 11.7)");
  }
  const absl::StatusOr<int> supported = device.Attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
  if (!supported.ok() || *supported == 0) {
    return absl::UnimplementedError("the GPU's kernel modules have none (the open ones do)");
  }
  static const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = address / page * page;
  const uint64_t end = (address + bytes + page - 1) / page * page;
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device.Enter());
  int file_descriptor = -1;
  TH_RETURN_IF_ERROR(
      CudaStatus(driver,
                 driver.MemGetHandleForAddressRange(&file_descriptor, begin, end - begin,
                                                    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
                 "export"));
  return DmaBuf(file_descriptor, address - begin);
}

DmaBuf::~DmaBuf() {
  if (file_descriptor_ >= 0) close(file_descriptor_);
}

absl::Status CanFlushRemoteWrites(const CudaDevice& device) {
  if (OrdersRemoteWrites(device)) return absl::OkStatus();
  const absl::StatusOr<int> options =
      device.Attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
  if (options.ok() && (*options & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) != 0) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "GPU ", device.pci_address(), " neither orders the writes of adapters nor flushes them"));
}

absl::Status FlushRemoteWrites(CudaDevice& device) {
  if (OrdersRemoteWrites(device)) return absl::OkStatus();
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device.Enter());
  return device.Status(
      device.driver().FlushGpuDirectRdmaWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                               CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES),
      "flush what adapters have written");
}

}  // namespace th
