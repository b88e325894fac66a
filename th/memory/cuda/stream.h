// Streams, events, and memory of our own, given back when they end; and fences, "after what was
// asked for before".
//
//   TH_ASSIGN_OR_RETURN(const CudaStream stream, CudaStream::Create(device));
//   TH_RETURN_IF_ERROR(stream.CopyToHost(pinned.data(), address, bytes));   // returns at once
//   TH_RETURN_IF_ERROR(stream.Synchronize());
//
//   // Publish what the trainer's optimizer step has written, once it has:
//   TH_ASSIGN_OR_RETURN(DeviceFence fence, DeviceFence::AfterEvent(device, event.cuda_event));
//   TH_RETURN_IF_ERROR(fence.Wait(absl::Seconds(30)));
//
// Movable, each used by one thread at a time; a fence by many. They end before their device.
#ifndef TH_MEMORY_CUDA_STREAM_H_
#define TH_MEMORY_CUDA_STREAM_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/memory/cuda/device.h"

namespace th {

class CudaEvent {
 public:
  static absl::StatusOr<CudaEvent> Create(CudaDevice* device);
  ~CudaEvent();
  CudaEvent(CudaEvent&& other) noexcept
      : device_(other.device_), event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&&) = delete;

  CUevent handle() const { return event_; }
  // Blocks until what was recorded last has happened: work of streams of ours only, which the
  // driver ends or fails. For events of others there is DeviceFence, whose wait has a limit.
  absl::Status Synchronize() const;

 private:
  CudaEvent(CudaDevice* device, CUevent event) : device_(device), event_(event) {}
  CudaDevice* device_;
  CUevent event_;
};

class CudaStream {
 public:
  // A stream that does not wait for the null stream.
  static absl::StatusOr<CudaStream> Create(CudaDevice* device);
  ~CudaStream();
  CudaStream(CudaStream&& other) noexcept
      : device_(other.device_), stream_(std::exchange(other.stream_, nullptr)) {}
  CudaStream& operator=(CudaStream&&) = delete;

  CudaDevice& device() const { return *device_; }
  CUstream handle() const { return stream_; }

  // Each returns once the work is asked for. Host memory that is not pinned makes copies slow and
  // synchronous.
  absl::Status CopyToHost(void* to, uint64_t from, uint64_t bytes) const;
  absl::Status CopyToDevice(uint64_t to, const void* from, uint64_t bytes) const;
  absl::Status CopyOnDevice(uint64_t to, uint64_t from, uint64_t bytes) const;
  // From memory of another device: directly where this one reaches it, else through memory of the
  // driver's in the host.
  absl::Status CopyFromPeer(uint64_t to, CudaDevice& peer, uint64_t from, uint64_t bytes) const;
  absl::Status Record(const CudaEvent& event) const;
  absl::Status WaitFor(CUevent event) const;
  absl::Status Launch(CUfunction kernel, uint32_t blocks, uint32_t block_threads,
                      void* arguments) const;
  // Blocks until all of it is done; an error of any of it is returned here.
  absl::Status Synchronize() const;

 private:
  CudaStream(CudaDevice* device, CUstream stream) : device_(device), stream_(stream) {}
  CudaDevice* device_;
  CUstream stream_;
};

// Memory of the device.
class DeviceBuffer {
 public:
  // RESOURCE_EXHAUSTED: the device has no room.
  static absl::StatusOr<DeviceBuffer> Allocate(CudaDevice* device, uint64_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : device_(other.device_), address_(std::exchange(other.address_, 0)), bytes_(other.bytes_) {}
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;

  uint64_t address() const { return address_; }
  void* pointer() const { return reinterpret_cast<void*>(address_); }  // not to be dereferenced
  uint64_t bytes() const { return bytes_; }

 private:
  DeviceBuffer(CudaDevice* device, uint64_t address, uint64_t bytes)
      : device_(device), address_(address), bytes_(bytes) {}
  CudaDevice* device_;
  uint64_t address_;
  uint64_t bytes_;
};

// Host memory that the device reads and writes itself.
class PinnedBuffer {
 public:
  // RESOURCE_EXHAUSTED: the host has no room, or may not lock so much memory.
  static absl::StatusOr<PinnedBuffer> Allocate(CudaDevice* device, uint64_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  PinnedBuffer& operator=(PinnedBuffer&&) = delete;

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  PinnedBuffer(CudaDevice* device, std::byte* data, uint64_t bytes)
      : device_(device), data_(data), bytes_(bytes) {}
  CudaDevice* device_;
  std::byte* data_;
  uint64_t bytes_;
};

// Tells when work that others have asked the device for is done. Thread-safe but for its end.
class DeviceFence {
 public:
  // After what the event has recorded by now; it may be recorded anew or destroyed at once. `event`
  // is a CUevent (torch: Event.cuda_event) of a context of this device.
  static absl::StatusOr<DeviceFence> AfterEvent(CudaDevice* device, uintptr_t event);
  // After all that the stream was asked for by now. `stream` is a CUstream (torch:
  // Stream.cuda_stream), 0 the null stream.
  static absl::StatusOr<DeviceFence> AfterStream(CudaDevice* device, uintptr_t stream);

  bool IsDone() const { return done_->HasBeenNotified(); }
  // DEADLINE_EXCEEDED: it is not done yet, or the device has failed and never will be.
  absl::Status Wait(absl::Duration timeout) const;

 private:
  DeviceFence(CudaStream stream, std::shared_ptr<absl::Notification> done)
      : stream_(std::move(stream)), done_(std::move(done)) {}
  CudaStream stream_;
  std::shared_ptr<absl::Notification>
      done_;  // shared with the driver, which may call after the fence has ended
};

}  // namespace th

#endif  // TH_MEMORY_CUDA_STREAM_H_
