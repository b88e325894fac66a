// Copies segments out of another process's memory, host's or GPU's, into this one's, host's or
// GPU's, and sums them where they have landed. Threads of its own wait for the devices, so that
// data threads need not.
//
//   DeviceCopier copier(devices, kinds, counters, /*lanes=*/2);
//   auto job = std::make_shared<CopyJob>(CopyJob::Spec{..., .on_end = [bell] { bell->Ring(); }});
//   copier.Submit(device, lane, job);
//   ... once the bell has rung: job->status(), job->checksum() ...
//   if (job->Cancel()) ...;  // nothing is written into the destination any more
//   job->AwaitEnd();         // the same, for whoever may wait for a GPU
//   job->GiveUp();           // of a GPU that hangs: it is left to write what it will
//
// A GPU that hangs holds up only what is copied by it.
//
// Within a device one kernel copies all pieces; of another device's memory the small ones, where
// there are several, and the driver the larger ones. Jobs that wait are done together: the device
// is waited for once.
//
// Thread-safe.
#ifndef TH_TRANSFER_CUDA_IPC_DEVICE_COPIER_H_
#define TH_TRANSFER_CUDA_IPC_DEVICE_COPIER_H_

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "th/memory/cuda/device.h"
#include "th/transfer/cuda_ipc/imported_memory.h"
#include "th/transfer/cuda_ipc/memory_kinds.h"
#include "th/transfer/same_host/peer_memory.h"
#include "th/transfer/stream/frames.h"
#include "th/transfer/task_thread.h"
#include "th/weights/checksum.h"

namespace th::cuda_ipc {

// A piece whose key has this bit lies in device memory; the rest is its slot of the source's table.
// Other keys are of host memory.
inline constexpr uint32_t kDeviceKey = uint32_t{1} << 31;

// Bytes that were copied, by the way that they took.
struct CopyCounters {
  std::atomic<uint64_t> same_device_bytes{0};
  std::atomic<uint64_t> peer_access_bytes{0};
  std::atomic<uint64_t> staged_bytes{0};
  std::atomic<uint64_t> host_bytes{0};     // from or to memory of the host
  std::atomic<uint64_t> kernel_pieces{0};  // that kernels have copied
  std::atomic<uint64_t> waits{0};          // for a device
};

// One segment to copy.
class CopyJob {
 public:
  struct Spec {
    std::vector<stream::Located::Piece> from;
    std::vector<iovec> into;
    std::shared_ptr<SourceImports> source;
    same_host::PeerMemory process;
    bool checksummed = false;
    // On a thread of the copier's, under the job's lock: it must not block nor call the job. Not
    // for a job that was cancelled before it had begun. What it holds is given up when the job
    // ends, though the copier may keep the job for longer.
    std::function<void()> on_end;
    // Kept for as long as the destination may be written: until the job has ended.
    std::shared_ptr<const void> device_write = nullptr;
  };
  explicit CopyJob(Spec spec);

  // Ends it as CANCELLED if it has not begun. True: it has ended; false: a device is still at it,
  // and it ends with its own status.
  bool Cancel();
  // Without a limit: a device that hangs may write as long as it does.
  void AwaitEnd();
  // On return nothing is written into memory of the host any more. A device that is at it still may
  // write its own, and the job ends when it does, which nobody hears.
  void GiveUp();
  bool ended() const;
  // Runs `write`, which writes memory of the host, unless the job was given up.
  void WriteHost(absl::FunctionRef<void()> write);
  // Once it has ended.
  const absl::Status& status() const { return status_; }
  std::optional<SegmentChecksum> checksum() const { return checksum_; }

 private:
  friend class CopyBatch;
  friend class DeviceCopier;
  enum class State : uint8_t { kWaiting, kRunning, kEnded };
  bool Begin();
  void End(absl::Status status, std::optional<SegmentChecksum> checksum);

  Spec spec_;  // as it was made, but for on_end and device_write, which mu_ guards
  uint64_t bytes_ = 0;
  mutable absl::Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kWaiting;
  // Held while memory of the host is written, which takes a millisecond at most.
  absl::Mutex writing_;
  bool given_up_ ABSL_GUARDED_BY(writing_) = false;
  // Written before the end, and read after it.
  absl::Status status_;
  std::optional<SegmentChecksum> checksum_;
};

class DeviceCopier {
 public:
  // Beyond this a batch takes no more jobs: the first ones' ends wait for the last.
  static constexpr uint64_t kBatchBytes = uint64_t{64} << 20;

  // `lanes` of each device.
  DeviceCopier(std::shared_ptr<const CudaDevices> devices, std::shared_ptr<const MemoryKinds> kinds,
               std::shared_ptr<CopyCounters> counters, uint32_t lanes);
  // Waits for what has begun, and for what is queued behind it in its lane. A job that has not
  // begun by then may be dropped: it does not end, and on_end is not called, unless it is
  // cancelled.
  ~DeviceCopier();

  // Jobs of one lane are begun in order. Lanes of a device share threads. `device`: the one that
  // copies; null: it is not known.
  void Submit(const CudaDevice* device, uint32_t lane, std::shared_ptr<CopyJob> job);

 private:
  class Lane;

  const std::shared_ptr<const CudaDevices> devices_;
  const std::shared_ptr<const MemoryKinds> kinds_;
  const std::shared_ptr<CopyCounters> counters_;
  const uint32_t lanes_of_each_;
  absl::Mutex mu_;
  // Begun with the first job.
  std::map<std::pair<const CudaDevice*, uint32_t>, std::unique_ptr<Lane>> lanes_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace th::cuda_ipc

#endif  // TH_TRANSFER_CUDA_IPC_DEVICE_COPIER_H_
