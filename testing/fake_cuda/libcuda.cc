// The functions of libcuda.so.1 that TensorHub uses, over the fake. Each answers as the driver
// documents.
#include <cuda.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "testing/fake_cuda/fake_driver.h"
#include "testing/fake_cuda/fake_memory.h"
#include "testing/fake_cuda/fake_stream.h"
#include "th/memory/cuda/kernels/host_kernels.h"

namespace {

using th::testing::FakeDriver;
using th::testing::FakeEvent;
using th::testing::FakeMemory;
using th::testing::FakeStream;
using th::testing::Physical;

FakeDriver& Driver() { return FakeDriver::Get(); }

// Ends the function unless it may go on.
#define BEGIN(function)                                     \
  do {                                                      \
    const CUresult begin_result = Driver().Begin(function); \
    if (begin_result != CUDA_SUCCESS) return begin_result;  \
  } while (false)
#define NEEDS_CONTEXT() \
  if (Driver().current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT

// The devices that were current before, on this thread.
std::vector<int>& ContextStack() {
  thread_local std::vector<int> stack;
  return stack;
}

bool IsDevice(CUdevice device) { return device >= 0 && device < Driver().devices(); }

// The kernel lets a thread sleep 50 us longer than it asks to, unless it says how exact it wants
// it.
void Wait(std::chrono::microseconds time) {
  if (time.count() == 0) return;
  prctl(PR_SET_TIMERSLACK, 1UL);
  std::this_thread::sleep_for(time);
}

CUresult CopyText(const std::string& text, char* out, int length) {
  if (length <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(out, static_cast<size_t>(length), "%s", text.c_str());
  return CUDA_SUCCESS;
}

// Work that copies, if both ranges are still what they were when it was asked for.
CUresult AddCopy(CUstream stream, uint64_t to, bool to_device, uint64_t from, bool from_device,
                 uint64_t bytes) {
  const std::shared_ptr<FakeStream> on = Driver().FindStream(stream);
  if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto valid = [=] {
    const FakeMemory& memory = Driver().memory();
    return (to_device ? memory.IsCopyableOnDevice(to, bytes)
                      : memory.IsCopyableOnHost(to, bytes)) &&
           (from_device ? memory.IsCopyableOnDevice(from, bytes)
                        : memory.IsCopyableOnHost(from, bytes));
  };
  if (!valid()) return CUDA_ERROR_INVALID_VALUE;
  on->Add([=] {
    if (!valid()) return CUDA_ERROR_ILLEGAL_ADDRESS;
    const bool lost = to_device && from_device && Driver().loses_device_copies();
    if (bytes > 0 && !lost) {
      std::memmove(Driver().memory().Alias(to), Driver().memory().Alias(from), bytes);
    }
    return CUDA_SUCCESS;
  });
  return CUDA_SUCCESS;
}

uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// One attribute; zeros for a pointer that the driver does not know.
void WriteAttribute(CUpointer_attribute attribute, void* out,
                    const std::optional<FakeMemory::Allocation>& allocation) {
  const bool known = allocation.has_value();
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: {
      const bool host = known && allocation->kind == FakeMemory::Kind::kPinnedHost;
      const unsigned type = !known ? 0 : host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      std::memcpy(out, &type, sizeof(type));
      return;
    }
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: {
      const int ordinal = known ? allocation->device : -2;  // as the driver: no device
      std::memcpy(out, &ordinal, sizeof(ordinal));
      return;
    }
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: {
      const unsigned long long id =
          known ? allocation->buffer_id : 0;  // NOLINT(google-runtime-int)
      std::memcpy(out, &id, sizeof(id));
      return;
    }
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: {
      const unsigned managed = 0;
      std::memcpy(out, &managed, sizeof(managed));
      return;
    }
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: {
      const bool capable = known && allocation->kind == FakeMemory::Kind::kPlain;
      std::memcpy(out, &capable, sizeof(capable));
      return;
    }
    default:
      std::fprintf(stderr, "fake_cuda: pointer attribute %d is not known\n", attribute);
      std::abort();
  }
}

}  // namespace

extern "C" {

// ---- driver and devices ----

CUresult cuInit(unsigned flags) {
  BEGIN("cuInit");
  return flags != 0 ? CUDA_ERROR_INVALID_VALUE : Driver().Initialize();
}

CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  switch (error) {
    case CUDA_ERROR_NO_DEVICE:
      *name = "CUDA_ERROR_NO_DEVICE";
      return CUDA_SUCCESS;
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
      return CUDA_SUCCESS;
    case CUDA_ERROR_OUT_OF_MEMORY:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      return CUDA_SUCCESS;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_VALUE:
      *name = "CUDA_ERROR_INVALID_VALUE";
      return CUDA_SUCCESS;
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
      *name = "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED";
      return CUDA_SUCCESS;
    default:
      *name = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDeviceGetCount(int* count) {
  BEGIN("cuDeviceGetCount");
  *count = Driver().devices();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  BEGIN("cuDeviceGet");
  if (!IsDevice(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  BEGIN("cuDeviceGetName");
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  return CopyText("Fake GPU", name, length);
}

// The same in every process of a host, as a device's is.
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  BEGIN("cuDeviceGetUuid");
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::memset(uuid->bytes, 0xfa, sizeof(uuid->bytes));
  uuid->bytes[15] = static_cast<char>(device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* out, int length, CUdevice device) {
  BEGIN("cuDeviceGetPCIBusId");
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  return CopyText("0000:0" + std::to_string(device + 1) + ":00.0", out, length);
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  BEGIN("cuDeviceTotalMem");
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = th::testing::kDeviceBytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  BEGIN("cuDeviceGetAttribute");
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
      *value = 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
      *value = Driver().writes_ordering();
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS:
      *value = CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDeviceCanAccessPeer(int* reaches, CUdevice device, CUdevice peer) {
  BEGIN("cuDeviceCanAccessPeer");
  if (!IsDevice(device) || !IsDevice(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *reaches = device != peer && Driver().memory().Reaches(device, peer) ? 1 : 0;
  return CUDA_SUCCESS;
}

// ---- contexts ----

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  BEGIN("cuDevicePrimaryCtxRetain");
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *context = reinterpret_cast<CUcontext>(Driver().RetainContext(device));
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  BEGIN("cuDevicePrimaryCtxRelease");
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  return Driver().ReleaseContext(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  BEGIN("cuCtxPushCurrent");
  const int device = static_cast<int>(AddressOf(context)) - 1;
  if (!IsDevice(device) || !Driver().HasContext(device)) return CUDA_ERROR_INVALID_CONTEXT;
  ContextStack().push_back(Driver().current_device());
  Driver().current_device() = device;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  BEGIN("cuCtxPopCurrent");
  if (ContextStack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) {
    *context = reinterpret_cast<CUcontext>(static_cast<uint64_t>(Driver().current_device()) + 1);
  }
  Driver().current_device() = ContextStack().back();
  ContextStack().pop_back();
  return CUDA_SUCCESS;
}

// ---- memory ----

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  BEGIN("cuMemAlloc");
  NEEDS_CONTEXT();
  uint64_t got = 0;
  const CUresult result = Driver().memory().Allocate(Driver().current_device(), bytes, &got);
  *address = got;
  return result;
}

CUresult cuMemFree(CUdeviceptr address) {
  BEGIN("cuMemFree");
  NEEDS_CONTEXT();
  return Driver().memory().Free(address);
}

CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  BEGIN("cuMemHostAlloc");
  NEEDS_CONTEXT();
  return Driver().memory().AllocateHost(bytes, address);
}

CUresult cuMemFreeHost(void* address) {
  BEGIN("cuMemFreeHost");
  NEEDS_CONTEXT();
  return Driver().memory().FreeHost(address);
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  BEGIN("cuMemGetAddressRange");
  const auto allocation = Driver().memory().FindAllocation(address);
  if (!allocation) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = allocation->address;
  if (bytes != nullptr) *bytes = allocation->bytes;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** out,
                                CUdeviceptr address) {
  BEGIN("cuPointerGetAttributes");
  const auto allocation = Driver().memory().FindAllocation(address);
  for (unsigned i = 0; i < count; ++i) WriteAttribute(attributes[i], out[i], allocation);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  BEGIN("cuMemcpyHtoDAsync");
  NEEDS_CONTEXT();
  return AddCopy(stream, to, true, AddressOf(from), false, bytes);
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  BEGIN("cuMemcpyDtoHAsync");
  NEEDS_CONTEXT();
  Driver().CountToHost(bytes);
  return AddCopy(stream, AddressOf(to), false, from, true, bytes);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  BEGIN("cuMemcpyDtoDAsync");
  NEEDS_CONTEXT();
  return AddCopy(stream, to, true, from, true, bytes);
}

// Copies between devices that do not reach each other too, as the driver does, through the host.
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, size_t bytes, CUstream stream) {
  BEGIN("cuMemcpyPeerAsync");
  NEEDS_CONTEXT();
  for (CUcontext const context : {to_context, from_context}) {
    const int device = static_cast<int>(AddressOf(context)) - 1;
    if (!IsDevice(device) || !Driver().HasContext(device)) return CUDA_ERROR_INVALID_CONTEXT;
  }
  return AddCopy(stream, to, true, from, true, bytes);
}

// ---- virtual memory management ----

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  BEGIN("cuMemGetAllocationGranularity");
  *bytes = th::testing::kMappingGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr,
                             unsigned long long) {  // NOLINT(google-runtime-int)
  BEGIN("cuMemAddressReserve");
  uint64_t got = 0;
  const CUresult result = Driver().memory().Reserve(bytes, &got);
  *address = got;
  return result;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  BEGIN("cuMemAddressFree");
  return Driver().memory().Unreserve(address, bytes);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties,
                     unsigned long long) {  // NOLINT(google-runtime-int)
  BEGIN("cuMemCreate");
  if (bytes == 0 || bytes % th::testing::kMappingGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  std::shared_ptr<const Physical> physical = Driver().memory().Create(
      properties->location.id, bytes,
      (properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0);
  if (physical == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = Driver().AddPhysical(std::move(physical));
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  BEGIN("cuMemRelease");
  return Driver().RemovePhysical(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle,
                  unsigned long long) {  // NOLINT(google-runtime-int)
  BEGIN("cuMemMap");
  std::shared_ptr<const Physical> physical = Driver().FindPhysical(handle);
  if (physical == nullptr || offset != 0) return CUDA_ERROR_INVALID_VALUE;
  return Driver().memory().Map(address, bytes, std::move(physical));
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  BEGIN("cuMemUnmap");
  return Driver().memory().Unmap(address, bytes);
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access,
                        size_t count) {
  BEGIN("cuMemSetAccess");
  if (count != 1 || !IsDevice(access->location.id)) return CUDA_ERROR_INVALID_VALUE;
  return Driver().memory().SetAccess(address, bytes, access->location.id);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  BEGIN("cuMemRetainAllocationHandle");
  const auto allocation = Driver().memory().FindAllocation(AddressOf(address));
  if (!allocation || allocation->physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = Driver().AddPhysical(allocation->physical);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
  BEGIN("cuMemGetAllocationPropertiesFromHandle");
  const std::shared_ptr<const Physical> physical = Driver().FindPhysical(handle);
  if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *properties = {};
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->location = {CU_MEM_LOCATION_TYPE_DEVICE, physical->device};
  properties->requestedHandleTypes =
      physical->exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type,
                                      unsigned long long) {  // NOLINT(google-runtime-int)
  BEGIN("cuMemExportToShareableHandle");
  const std::shared_ptr<const Physical> physical = Driver().FindPhysical(handle);
  if (physical == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return Driver().memory().ExportPhysical(*physical, static_cast<int*>(out));
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* descriptor,
                                        CUmemAllocationHandleType type) {
  BEGIN("cuMemImportFromShareableHandle");
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<const Physical> physical =
      Driver().memory().ImportPhysical(static_cast<int>(AddressOf(descriptor)));
  if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = Driver().AddPhysical(std::move(physical));
  return CUDA_SUCCESS;
}

// ---- adapters of the network ----

CUresult cuMemGetHandleForAddressRange(void* out, CUdeviceptr address, size_t bytes,
                                       CUmemRangeHandleType type,
                                       unsigned long long flags) {  // NOLINT(google-runtime-int)
  BEGIN("cuMemGetHandleForAddressRange");
  if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return Driver().memory().ExportRange(address, bytes, static_cast<int*>(out));
}

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget,
                                    CUflushGPUDirectRDMAWritesScope) {
  BEGIN("cuFlushGPUDirectRDMAWrites");
  NEEDS_CONTEXT();
  Driver().CountFlush();
  return CUDA_SUCCESS;
}

// ---- streams and events ----

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  BEGIN("cuStreamCreate");
  NEEDS_CONTEXT();
  *stream = Driver().AddStream();
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
  BEGIN("cuStreamDestroy");
  return Driver().RemoveStream(stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuStreamSynchronize(CUstream stream) {
  BEGIN("cuStreamSynchronize");
  Driver().CountSynchronization();
  const std::shared_ptr<FakeStream> found = Driver().FindStream(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult result = found->Synchronize();
  Wait(Driver().synchronize_time());
  return result;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  BEGIN("cuStreamWaitEvent");
  const std::shared_ptr<FakeStream> on = Driver().FindStream(stream);
  const std::shared_ptr<FakeEvent> found = Driver().FindEvent(event);
  if (on == nullptr || found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  on->Add([found, record = found->last_record()] {
    found->Wait(record);
    return CUDA_SUCCESS;
  });
  return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* argument) {
  BEGIN("cuLaunchHostFunc");
  const std::shared_ptr<FakeStream> on = Driver().FindStream(stream);
  if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  on->Add([=] {
    function(argument);
    return CUDA_SUCCESS;
  });
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned) {
  BEGIN("cuEventCreate");
  NEEDS_CONTEXT();
  *event = Driver().AddEvent();
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  BEGIN("cuEventDestroy");
  return Driver().RemoveEvent(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  BEGIN("cuEventRecord");
  const std::shared_ptr<FakeStream> on = Driver().FindStream(stream);
  const std::shared_ptr<FakeEvent> found = Driver().FindEvent(event);
  if (on == nullptr || found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  on->Add([found, record = found->Record()] {
    found->Happened(record);
    return CUDA_SUCCESS;
  });
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  BEGIN("cuEventQuery");
  const std::shared_ptr<FakeEvent> found = Driver().FindEvent(event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return found->has_happened() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
  BEGIN("cuEventSynchronize");
  Driver().CountSynchronization();
  const std::shared_ptr<FakeEvent> found = Driver().FindEvent(event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  found->Wait(found->last_record());
  return CUDA_SUCCESS;
}

// ---- kernels ----

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  BEGIN("cuModuleLoadData");
  NEEDS_CONTEXT();
  constexpr uint32_t kFatbinMagic = 0xba55ed50;
  uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof(magic));
  if (magic != kFatbinMagic) return CUDA_ERROR_INVALID_IMAGE;
  *module = Driver().AddModule();
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  BEGIN("cuModuleUnload");
  return Driver().RemoveModule(module) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  BEGIN("cuModuleGetFunction");
  if (!Driver().HasModule(module)) return CUDA_ERROR_INVALID_HANDLE;
  const th::kernels::HostKernel kernel = th::kernels::FindHostKernel(name);
  if (kernel == nullptr) return CUDA_ERROR_NOT_FOUND;
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned,
                        CUstream stream, void** parameters, void**) {
  BEGIN("cuLaunchKernel");
  NEEDS_CONTEXT();
  if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x != th::kernels::kBlockThreads ||
      block_y != 1 || block_z != 1) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::shared_ptr<FakeStream> on = Driver().FindStream(stream);
  if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  // The arguments are copied at the launch; all kernels have one structure of this size.
  static_assert(sizeof(th::kernels::LeafChecksumsArguments) ==
                sizeof(th::kernels::CopyPiecesArguments));
  static_assert(sizeof(th::kernels::LeafChecksumsArguments) ==
                sizeof(th::kernels::MovePiecesArguments));
  th::kernels::LeafChecksumsArguments arguments;
  std::memcpy(&arguments, parameters[0], sizeof(arguments));
  const auto kernel = reinterpret_cast<th::kernels::HostKernel>(function);
  on->Add([=] {
    if (!Driver().loses_device_copies()) kernel(&arguments, grid_x, Driver().memory());
    return CUDA_SUCCESS;
  });
  return CUDA_SUCCESS;
}

// ---- other processes ----

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  BEGIN("cuIpcGetMemHandle");
  NEEDS_CONTEXT();
  return Driver().memory().Export(address, handle);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  BEGIN("cuIpcOpenMemHandle");
  NEEDS_CONTEXT();
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  uint64_t got = 0;
  const CUresult result = Driver().memory().Import(handle, Driver().current_device(), &got);
  *address = got;
  return result;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  BEGIN("cuIpcCloseMemHandle");
  NEEDS_CONTEXT();
  return Driver().memory().CloseImport(address);
}

// ---- what tests control; see fake_cuda.h ----

void th_fake_cuda_fail(const char* function, int result, int skipped, int times) {
  Driver().Fail(function, static_cast<CUresult>(result), skipped, times);
}

void th_fake_cuda_hold_streams(int held) { Driver().gate().HoldAll(held != 0); }

void th_fake_cuda_hold_streams_of(int device, int held) { Driver().gate().Hold(device, held != 0); }

void th_fake_cuda_await_held() { Driver().gate().AwaitHeld(); }

uint64_t th_fake_cuda_live() { return Driver().live(); }

uint64_t th_fake_cuda_imports() { return Driver().memory().imports(); }

void* th_fake_cuda_alias(void* address) { return Driver().memory().Alias(AddressOf(address)); }

uint64_t th_fake_cuda_flushes() { return Driver().flushes(); }

uint64_t th_fake_cuda_synchronizations() { return Driver().synchronizations(); }

uint64_t th_fake_cuda_bytes_to_host() { return Driver().bytes_to_host(); }

void th_fake_cuda_order_writes(int ordering) { Driver().OrderWrites(ordering); }

void th_fake_cuda_refuse_peers(int refused) { Driver().memory().RefusePeers(refused != 0); }

void th_fake_cuda_allow_own_imports(int allowed) {
  Driver().memory().AllowOwnImports(allowed != 0);
}

}  // extern "C"
