// The CUDA driver, opened at run time: one binary runs with and without a GPU.
//
//   TH_ASSIGN_OR_RETURN(const CudaDriver* driver, CudaDriver::Load());
//   int count = 0;
//   TH_RETURN_IF_ERROR(CudaStatus(*driver, driver->DeviceGetCount(&count), "count GPUs"));
//
// Immutable and thread-safe. A driver that was loaded stays until the process ends: libcuda cannot
// be unloaded.
#ifndef TH_MEMORY_CUDA_DRIVER_H_
#define TH_MEMORY_CUDA_DRIVER_H_

#include <cuda.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace th {

inline constexpr absl::string_view kCudaLibrary = "libcuda.so.1";

// F(member, function): the functions of the driver in use. The oldest driver that has them all is
// CUDA 11.4's.
#define TH_CUDA_FUNCTIONS(F)                                                      \
  F(Init, cuInit)                                                                 \
  F(GetErrorName, cuGetErrorName)                                                 \
  F(DeviceGetCount, cuDeviceGetCount)                                             \
  F(DeviceGet, cuDeviceGet)                                                       \
  F(DeviceGetName, cuDeviceGetName)                                               \
  F(DeviceGetUuid, cuDeviceGetUuid)                                               \
  F(DeviceGetPciBusId, cuDeviceGetPCIBusId)                                       \
  F(DeviceTotalMem, cuDeviceTotalMem)                                             \
  F(DeviceGetAttribute, cuDeviceGetAttribute)                                     \
  F(DeviceCanAccessPeer, cuDeviceCanAccessPeer)                                   \
  F(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)                             \
  F(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease)                           \
  F(CtxPushCurrent, cuCtxPushCurrent)                                             \
  F(CtxPopCurrent, cuCtxPopCurrent)                                               \
  F(MemAlloc, cuMemAlloc)                                                         \
  F(MemFree, cuMemFree)                                                           \
  F(MemHostAlloc, cuMemHostAlloc)                                                 \
  F(MemFreeHost, cuMemFreeHost)                                                   \
  F(MemGetAddressRange, cuMemGetAddressRange)                                     \
  F(PointerGetAttributes, cuPointerGetAttributes)                                 \
  F(MemcpyHtoDAsync, cuMemcpyHtoDAsync)                                           \
  F(MemcpyDtoHAsync, cuMemcpyDtoHAsync)                                           \
  F(MemcpyDtoDAsync, cuMemcpyDtoDAsync)                                           \
  F(MemcpyPeerAsync, cuMemcpyPeerAsync)                                           \
  F(StreamCreate, cuStreamCreate)                                                 \
  F(StreamDestroy, cuStreamDestroy)                                               \
  F(StreamSynchronize, cuStreamSynchronize)                                       \
  F(StreamWaitEvent, cuStreamWaitEvent)                                           \
  F(LaunchHostFunc, cuLaunchHostFunc)                                             \
  F(EventCreate, cuEventCreate)                                                   \
  F(EventDestroy, cuEventDestroy)                                                 \
  F(EventRecord, cuEventRecord)                                                   \
  F(EventSynchronize, cuEventSynchronize)                                         \
  F(ModuleLoadData, cuModuleLoadData)                                             \
  F(ModuleUnload, cuModuleUnload)                                                 \
  F(ModuleGetFunction, cuModuleGetFunction)                                       \
  F(LaunchKernel, cuLaunchKernel)                                                 \
  F(IpcGetMemHandle, cuIpcGetMemHandle)                                           \
  F(IpcOpenMemHandle, cuIpcOpenMemHandle)                                         \
  F(IpcCloseMemHandle, cuIpcCloseMemHandle)                                       \
  F(MemRetainAllocationHandle, cuMemRetainAllocationHandle)                       \
  F(MemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle) \
  F(MemExportToShareableHandle, cuMemExportToShareableHandle)                     \
  F(MemImportFromShareableHandle, cuMemImportFromShareableHandle)                 \
  F(MemAddressReserve, cuMemAddressReserve)                                       \
  F(MemAddressFree, cuMemAddressFree)                                             \
  F(MemMap, cuMemMap)                                                             \
  F(MemUnmap, cuMemUnmap)                                                         \
  F(MemSetAccess, cuMemSetAccess)                                                 \
  F(MemRelease, cuMemRelease)                                                     \
  F(FlushGpuDirectRdmaWrites, cuFlushGPUDirectRDMAWrites)

// The functions that later drivers have: null in one that has them not. CUDA 11.7.
#define TH_CUDA_LATER_FUNCTIONS(F) F(MemGetHandleForAddressRange, cuMemGetHandleForAddressRange)

struct CudaDriver {
  // Opens a library and starts the driver in it; the second call with the same path returns what
  // the first did if that succeeded. UNAVAILABLE: there is no library, it is too old, or the driver
  // does not start (no GPU, another kernel module), with the driver's own code.
  static absl::StatusOr<const CudaDriver*> Load(absl::string_view path = kCudaLibrary);

  // True when the library is loaded in this process, by whomever. Loads nothing.
  static bool IsLoaded(absl::string_view path = kCudaLibrary);

  std::string path;
#define TH_CUDA_DECLARE(member, function) decltype(&::function) member = nullptr;
  TH_CUDA_FUNCTIONS(TH_CUDA_DECLARE)
  TH_CUDA_LATER_FUNCTIONS(TH_CUDA_DECLARE)
#undef TH_CUDA_DECLARE
};

// OK for CUDA_SUCCESS. Else "cannot WHAT: CUDA_ERROR_X (N)" as RESOURCE_EXHAUSTED (no memory),
// INVALID_ARGUMENT (a value or an address), NOT_FOUND (no such device), UNAVAILABLE (no driver or
// device to talk to), INTERNAL (the rest, an illegal access by a kernel included, after which the
// process's GPU context is of no use).
absl::Status CudaStatus(const CudaDriver& driver, CUresult result, absl::string_view what);

}  // namespace th

#endif  // TH_MEMORY_CUDA_DRIVER_H_
