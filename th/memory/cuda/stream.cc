#include "th/memory/cuda/stream.h"

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

// The driver has the notification until it calls back.
void CUDA_CB Notify(void* argument) {
  const std::unique_ptr<std::shared_ptr<absl::Notification>> done(
      static_cast<std::shared_ptr<absl::Notification>*>(argument));
  (*done)->Notify();
}

}  // namespace

// ---- events ----

absl::StatusOr<CudaEvent> CudaEvent::Create(CudaDevice* device) {
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device->Enter());
  CUevent event = nullptr;
  const unsigned flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC;
  TH_RETURN_IF_ERROR(device->Status(device->driver().EventCreate(&event, flags), "make an event"));
  return CudaEvent(device, event);
}

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) device_->driver().EventDestroy(event_);
}

absl::Status CudaEvent::Synchronize() const {
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device_->Enter());
  return device_->Status(device_->driver().EventSynchronize(event_), "wait for a copy");
}

// ---- streams ----

absl::StatusOr<CudaStream> CudaStream::Create(CudaDevice* device) {
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device->Enter());
  CUstream stream = nullptr;
  TH_RETURN_IF_ERROR(device->Status(device->driver().StreamCreate(&stream, CU_STREAM_NON_BLOCKING),
                                    "make a stream"));
  return CudaStream(device, stream);
}

CudaStream::~CudaStream() {
  if (stream_ != nullptr) device_->driver().StreamDestroy(stream_);
}

absl::Status CudaStream::CopyToHost(void* to, uint64_t from, uint64_t bytes) const {
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device_->Enter());
  return device_->Status(device_->driver().MemcpyDtoHAsync(to, from, bytes, stream_),
                         absl::StrCat("copy ", bytes, " bytes from 0x", absl::Hex(from)));
}

absl::Status CudaStream::CopyToDevice(uint64_t to, const void* from, uint64_t bytes) const {
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device_->Enter());
  return device_->Status(device_->driver().MemcpyHtoDAsync(to, from, bytes, stream_),
                         absl::StrCat("copy ", bytes, " bytes to 0x", absl::Hex(to)));
}

absl::Status CudaStream::CopyOnDevice(uint64_t to, uint64_t from, uint64_t bytes) const {
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device_->Enter());
  return device_->Status(
      device_->driver().MemcpyDtoDAsync(to, from, bytes, stream_),
      absl::StrCat("copy ", bytes, " bytes from 0x", absl::Hex(from), " to 0x", absl::Hex(to)));
}

absl::Status CudaStream::CopyFromPeer(uint64_t to, CudaDevice& peer, uint64_t from,
                                      uint64_t bytes) const {
  TH_ASSIGN_OR_RETURN(CUcontext const own_context, device_->Context());
  TH_ASSIGN_OR_RETURN(CUcontext const peer_context, peer.Context());
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device_->Enter());
  return device_->Status(
      device_->driver().MemcpyPeerAsync(to, own_context, from, peer_context, bytes, stream_),
      absl::StrCat("copy ", bytes, " bytes from 0x", absl::Hex(from), " of GPU ",
                   peer.pci_address(), " to 0x", absl::Hex(to)));
}

absl::Status CudaStream::Record(const CudaEvent& event) const {
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device_->Enter());
  return device_->Status(device_->driver().EventRecord(event.handle(), stream_), "record an event");
}

absl::Status CudaStream::WaitFor(CUevent event) const {
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device_->Enter());
  return device_->Status(device_->driver().StreamWaitEvent(stream_, event, CU_EVENT_WAIT_DEFAULT),
                         "wait for an event");
}

absl::Status CudaStream::Launch(CUfunction kernel, uint32_t blocks, uint32_t block_threads,
                                void* arguments) const {
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device_->Enter());
  void* parameters[] = {arguments};
  return device_->Status(device_->driver().LaunchKernel(kernel, blocks, 1, 1, block_threads, 1, 1,
                                                        0, stream_, parameters, nullptr),
                         "run a kernel");
}

absl::Status CudaStream::Synchronize() const {
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device_->Enter());
  return device_->Status(device_->driver().StreamSynchronize(stream_), "end the work of a stream");
}

// ---- memory ----

absl::StatusOr<DeviceBuffer> DeviceBuffer::Allocate(CudaDevice* device, uint64_t bytes) {
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device->Enter());
  CUdeviceptr address = 0;
  TH_RETURN_IF_ERROR(device->Status(device->driver().MemAlloc(&address, bytes),
                                    absl::StrCat("allocate ", bytes, " bytes of device memory")));
  return DeviceBuffer(device, address, bytes);
}

DeviceBuffer::~DeviceBuffer() {
  if (address_ == 0) return;
  const absl::StatusOr<CudaDevice::Scope> scope = device_->Enter();
  if (scope.ok()) device_->driver().MemFree(address_);
}

absl::StatusOr<PinnedBuffer> PinnedBuffer::Allocate(CudaDevice* device, uint64_t bytes) {
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device->Enter());
  void* data = nullptr;
  TH_RETURN_IF_ERROR(
      device->Status(device->driver().MemHostAlloc(&data, bytes, CU_MEMHOSTALLOC_PORTABLE),
                     absl::StrCat("allocate ", bytes, " bytes of pinned host memory")));
  return PinnedBuffer(device, static_cast<std::byte*>(data), bytes);
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ == nullptr) return;
  const absl::StatusOr<CudaDevice::Scope> scope = device_->Enter();
  if (scope.ok()) device_->driver().MemFreeHost(data_);
}

// ---- fences ----

absl::StatusOr<DeviceFence> DeviceFence::AfterEvent(CudaDevice* device, uintptr_t event) {
  // A stream of its own: the wait for one event holds up no other.
  TH_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Create(device));
  TH_RETURN_IF_ERROR(stream.WaitFor(reinterpret_cast<CUevent>(event)));
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device->Enter());
  auto done = std::make_shared<absl::Notification>();
  auto for_driver = std::make_unique<std::shared_ptr<absl::Notification>>(done);
  TH_RETURN_IF_ERROR(
      device->Status(device->driver().LaunchHostFunc(stream.handle(), Notify, for_driver.get()),
                     "be told of an event"));
  static_cast<void>(for_driver.release());
  return DeviceFence(std::move(stream), std::move(done));
}

absl::StatusOr<DeviceFence> DeviceFence::AfterStream(CudaDevice* device, uintptr_t stream) {
  TH_ASSIGN_OR_RETURN(const CudaEvent event, CudaEvent::Create(device));
  {
    TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device->Enter());
    TH_RETURN_IF_ERROR(device->Status(
        device->driver().EventRecord(event.handle(), reinterpret_cast<CUstream>(stream)),
        "record an event on a stream"));
  }
  return AfterEvent(device, reinterpret_cast<uintptr_t>(event.handle()));
}

absl::Status DeviceFence::Wait(absl::Duration timeout) const {
  if (done_->WaitForNotificationWithTimeout(timeout)) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      "GPU ", stream_.device().pci_address(), " has not done what it was asked for before within ",
      absl::FormatDuration(timeout),
      ": either its stream waits for something, or the device has failed"));
}

}  // namespace th
