// Finishes segments that an adapter has written into GPU memory: flushes the writes, so that
// kernels see them, has the GPU sum the bytes, and checks that the memory is still what was
// registered. All of it waits for the GPU, so it runs on a thread of its own, one for each GPU: one
// that hangs holds up the landings of no other.
//
//   auto landing = std::make_shared<GpuLanding>(GpuLanding::Spec{..., .on_end = [] { Ring(); }});
//   landings.Submit(landing);          // once the READs of its bytes have completed
//   ... once it rang: landing->status(), landing->checksum() ...
//   if (landing->Cancel()) ...;        // its memory is not read any more
//
// A landing that has begun keeps what it reads: the registrations, their use, the GPU. Whoever
// gives it up leaves it to the thread, which lets go of them once the GPU has ended.
//
// Landings that wait are done together: a GPU is flushed and asked for sums once for all of them.
//
// Thread-safe.
#ifndef TH_TRANSFER_IBVERBS_GPU_LANDINGS_H_
#define TH_TRANSFER_IBVERBS_GPU_LANDINGS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "th/memory/cuda/cuda_memory_devices.h"
#include "th/memory/cuda/device_memory.h"
#include "th/memory/cuda/device_pieces.h"
#include "th/transfer/task_thread.h"
#include "th/weights/checksum.h"

namespace th::ibverbs {

// One segment.
class GpuLanding {
 public:
  struct Spec {
    std::shared_ptr<CudaMemoryDevices> gpus;
    std::vector<std::shared_ptr<DeviceMemory>> memories;  // of the pieces
    std::vector<DevicePiece> pieces;                      // in order, all on one GPU
    // The use of the pieces, begun before the first byte was written.
    PiecesUse use;
    bool checksummed = false;
    // Called on the thread of the landings, under the landing's lock: it must not block nor call
    // the landing. It is not called of a landing that was cancelled before it had begun.
    std::function<void()> on_end;
  };
  explicit GpuLanding(Spec spec)
      : spec_(std::move(spec)),
        device_(&spec_.pieces.front().memory->device()),
        device_name_(device_->pci_address()) {}

  // Ends it if it has not begun. True: it has ended; false: the GPU is at it.
  bool Cancel();
  // False: it has not ended within `timeout`.
  bool AwaitEnd(absl::Duration timeout) const;
  bool ended() const;
  const std::string& device_name() const { return device_name_; }
  // Once it has ended.
  const absl::Status& status() const { return status_; }
  std::optional<SegmentChecksum> checksum() const { return checksum_; }

 private:
  friend class GpuLandings;
  enum class State : uint8_t { kWaiting, kRunning, kEnded };
  bool Begin();
  void End(absl::Status status, std::optional<SegmentChecksum> checksum);
  // Ends the use of the pieces and all else that it was made with, before anybody hears of the end.
  std::function<void()> GiveUpSpec() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The landings' thread reads it without the lock between Begin and End.
  Spec spec_;
  CudaDevice* const device_;  // kept by spec_, until the end
  const std::string device_name_;
  mutable absl::Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kWaiting;
  // Written before kEnded; read by callers once ended() only.
  absl::Status status_;
  std::optional<SegmentChecksum> checksum_;
};

class GpuLandings {
 public:
  // The callers bound what they submit and have not seen ended: each connection by its window.
  void Submit(std::shared_ptr<GpuLanding> landing);

 private:
  using Batch = std::vector<std::shared_ptr<GpuLanding>>;
  struct OfDevice {
    Batch waiting;
    TaskThread thread{"th-rdma-gpu"};  // ends before the rest
  };
  void RunWaiting(OfDevice& of_device);
  static void RunOnDevice(CudaDevice& device, const Batch& batch);

  absl::Mutex mu_;
  std::map<CudaDevice*, OfDevice> devices_ ABSL_GUARDED_BY(mu_);  // each begun with the first one
};

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_GPU_LANDINGS_H_
