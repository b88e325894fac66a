// One registered buffer of this process: its store, its fill, its sealing, as the session orders
// them.
//
// What is marked so may be used from any thread; all else on th-control only.
#ifndef TH_CLIENT_LOCAL_BUFFER_H_
#define TH_CLIENT_LOCAL_BUFFER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/client/cancel_hook.h"
#include "th/client/data_plane.h"
#include "th/client/fill_driver.h"
#include "th/client/task_loop.h"
#include "th/client/tensor_binding.h"
#include "th/memory/device_side.h"
#include "th/memory/memory_region.h"
#include "th/transfer/device_staging.h"
#include "th/transfer/segment_ring.h"
#include "th/transfer/segment_store.h"
#include "th/weights/segments.h"
#include "th/worker_session/session_types.h"

namespace th {

// Revokes all of them, and waits until nothing uses them, for `timeout` at most in all:
// DEADLINE_EXCEEDED names one that is in use. On a thread that may wait.
absl::Status RevokeDevices(absl::Span<const std::shared_ptr<DeviceSide>> sides,
                           absl::Duration timeout);

class LocalBuffer : public std::enable_shared_from_this<LocalBuffer> {
 public:
  struct Spec {
    BufferId id;
    std::string form;
    BindingOptions binding_options;
    TensorBinding binding;
    // The memory in which the storages lie when it is not the caller's; ends with the buffer.
    std::shared_ptr<void> memory = nullptr;
    // The ring of a streaming reader: what its fill receives passes through here and the store
    // holds nothing.
    std::shared_ptr<SegmentRing> ring = nullptr;
    // A reader that attaches has one: its fill receives nothing, and puts what it has mapped there.
    std::shared_ptr<MappingTarget> mapping = nullptr;
  };
  // Runs `work` on a thread where it may take its time, then `then` on th-control; the buffer does
  // not count as quiet until that has run.
  using RunBeside = std::function<void(std::shared_ptr<LocalBuffer>, std::function<void()> work,
                                       std::function<void()> then)>;
  // `run_beside` may be null in tests of buffers that nobody attaches.
  explicit LocalBuffer(Spec spec, RunBeside run_beside = nullptr);

  // ---- any thread
  BufferId id() const { return spec_.id; }
  const std::string& form() const { return spec_.form; }
  const BindingOptions& binding_options() const { return spec_.binding_options; }
  const std::shared_ptr<const ShardLayout>& layout() const { return spec_.binding.layout; }
  const std::shared_ptr<SegmentStore>& store() const { return store_; }
  const std::shared_ptr<SegmentRing>& ring() const { return spec_.ring; }
  const std::shared_ptr<MappingTarget>& mapping() const { return spec_.mapping; }
  bool owns_memory() const { return spec_.memory != nullptr; }
  std::atomic<uint64_t>& bytes_sent() { return bytes_sent_; }
  // The bytes of host memory from which it is published; 0: the caller's own is.
  uint64_t snapshot_bytes() const { return snapshot_bytes_.load(); }
  // See WeightBuffer::gpu_registrations.
  std::vector<std::string> gpu_registrations() const {
    absl::MutexLock lock(&gpu_registrations_mu_);
    return gpu_registrations_;
  }
  // Notified once the server has taken the buffer, or refused it; then ready_status says which.
  Signal& ready() { return ready_; }
  const absl::Status& ready_status() const { return ready_status_; }
  // Why the sums of what is published cannot be taken: its device memory is gone. Else OK.
  absl::Status seal_status() const;

  // ---- the owner's thread, before the buffer is used and after its last transfer
  // Tells the transports of the memory; blocks while it is registered.
  void AttachMemory(std::shared_ptr<DataPlane> data_plane);
  // No transport knows the memory any more, nor learns of it before Rebind. Its device_sides() may
  // still be in use. Also on th-control.
  void DetachMemory();

  // ---- th-control
  void SetReady(absl::Status status);
  void Serve(const ServingChanged& serving);
  // The GPU that the sums of its memory wait for, of several the first; empty: none.
  std::string gpu() const;
  // `done` runs on `sealer`, when the sums are complete, or have failed for the reason that
  // seal_status() says then, and their publication still lasts.
  void Seal(TaskLoop& sealer, std::function<void(absl::StatusOr<Digest> root)> done);

  // The devices' sides of the caller's memory, and those before Rebind that may be in use still: a
  // copy may be using them. The caller revokes them before the memory is freed. Also on the owner's
  // thread, after DetachMemory.
  std::vector<std::shared_ptr<DeviceSide>> device_sides() const;
  // Other addresses of the caller's. Only while nothing is served or filled.
  absl::Status Rebind(const TensorBinding& binding);
  // The caller's memory, as it is bound now. The copies are for any thread.
  std::vector<void*> storages() const { return storages_; }
  StorageMemory memory() const { return {.regions = regions_, .device = device_}; }
  // The next publication is served from `storages`, which lie in `memory`, until the buffer is
  // writable again. Only while nothing is served or filled.
  absl::Status BindSnapshot(std::vector<void*> storages, std::shared_ptr<void> memory);
  // Back to the caller's memory.
  void DropSnapshot();

  // Orders for fills are carried out in their order; those for the next one wait for the end of
  // the one before.
  void StartFill(th::StartFill order, FillDriver::Parts parts);
  void SetSources(th::SetSources order);
  void SetRoot(th::SetRoot order);
  // `stopped` runs once nothing of this operation writes any more; maybe at once.
  void StopFill(OperationKey operation, std::function<void()> stopped);
  // OK where the memory may be written and freed; else a GPU still reads what was published, and
  // this names it.
  absl::Status device_status() const { return store_->AwaitDevices(absl::ZeroDuration()); }
  // The end: stops the fill that there is, takes no order for another, serves and reads nothing.
  // What readers have attached is left to them; until that is done the buffer is not quiet.
  void Close();
  // The fill has stopped.
  void FillStopped();
  // Runs `task` when no fill is being stopped and the memory is the buffer's alone: at once, or
  // after FillStopped, or once memory that readers have attached was renewed.
  void WhenQuiet(std::function<void()> task);
  // The status of the last fill, once.
  FillStatus TakeFillStatus();

 private:
  bool busy() const {
    return renewing_ || awaiting_devices_ > 0 || (fill_ != nullptr && fill_->stopping());
  }
  bool IsFill(OperationKey operation) const;
  void RunWaiting();
  void StopSealing();
  absl::Status BindOwn();
  void ServeAll(BufferGeneration generation);
  // The arenas in which the caller's storages lie and that readers have attached.
  std::vector<std::byte*> AttachedArenas() const;
  // The caller's memory may be written from here on: what readers have attached of it is left to
  // them, before `then` runs and before whatever waits for the buffer to be quiet. Only after the
  // store has left the generation that they were let in for.
  void LeaveToReaders(std::function<void()> then);
  // Runs `then` once no GPU reads what was served before, or kDeviceTime is over: at once, or later
  // and with the buffer busy meanwhile. Only after the store has left that publication.
  void AwaitDevices(std::function<void(absl::Status)> then);
  // The buffer is busy meanwhile. With no patience the arenas become private.
  void RenewBeside(std::vector<std::byte*> arenas, absl::Duration patience,
                   std::function<void()> then);
  void AttachAgain();
  void AttachRegions(absl::Span<const MemoryRegion> regions);

  const Spec spec_;
  const RunBeside run_beside_;
  const std::shared_ptr<SegmentStore> store_;  // shared with transfers
  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> snapshot_bytes_{0};
  mutable absl::Mutex gpu_registrations_mu_;
  std::vector<std::string> gpu_registrations_ ABSL_GUARDED_BY(gpu_registrations_mu_);
  Signal ready_;
  absl::Status ready_status_;
  struct SealStatus {
    absl::Mutex mu;
    absl::Status status ABSL_GUARDED_BY(mu);
  };
  std::shared_ptr<SealStatus> seal_status_ = std::make_shared<SealStatus>();  // with th-seal

  std::vector<void*> storages_;         // the caller's
  std::vector<MemoryRegion> regions_;   // the same; empty where all of it is host memory
  std::shared_ptr<DeviceSide> device_;  // of these; shared with the store, and whoever revokes it
  // The sides of memory before Rebind, until nobody uses them.
  std::vector<std::weak_ptr<DeviceSide>> devices_before_;
  // Keeps the pinned memory of transfers from one to the next; null without device memory.
  std::shared_ptr<DeviceStaging> staging_;
  std::shared_ptr<void> snapshot_;         // what the store serves instead; shared with nobody
  std::shared_ptr<DataPlane> data_plane_;  // set by AttachMemory; knows the memory of these two
  DataPlaneMemory attached_;               // the caller's memory, or the ring's
  DataPlaneMemory attached_snapshot_;
  bool closed_ = false;
  bool detached_ = false;                          // by DetachMemory, until Rebind
  bool renewing_ = false;                          // the caller's memory
  int awaiting_devices_ = 0;                       // AwaitDevices that are under way
  std::optional<BufferGeneration> serving_under_;  // published or filled under
  bool content_stands_ = false;  // what was published or filled last has not been written since
  std::shared_ptr<std::atomic<bool>> stop_sealing_;  // shared with th-seal
  std::shared_ptr<FillDriver> fill_;
  // The segments that the store could serve when the fill began; none once that has written a byte.
  std::optional<SegmentSet> before_fill_;
  FillStatus last_fill_;
  bool status_taken_ = false;                  // of `fill_`, which its operation has outrun
  std::deque<std::function<void()>> waiting_;  // for the buffer to be quiet
};

}  // namespace th

#endif  // TH_CLIENT_LOCAL_BUFFER_H_
