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

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "th/client/data_plane.h"
#include "th/client/fill_driver.h"
#include "th/client/task_loop.h"
#include "th/client/tensor_binding.h"
#include "th/transfer/segment_ring.h"
#include "th/transfer/segment_store.h"
#include "th/weights/segments.h"
#include "th/worker_session/session_types.h"

namespace th {

class LocalBuffer : public std::enable_shared_from_this<LocalBuffer> {
 public:
  struct Spec {
    BufferId id;
    std::string form;
    BindingOptions binding_options;
    TensorBinding binding;
    // What the storages lie in when that is not the caller's; ends with the buffer.
    std::shared_ptr<void> memory = nullptr;
    // Of a streaming reader: what its fill receives passes through here and the store holds
    // nothing.
    std::shared_ptr<SegmentRing> ring = nullptr;
  };
  explicit LocalBuffer(Spec spec);

  // ---- any thread
  BufferId id() const { return spec_.id; }
  const std::string& form() const { return spec_.form; }
  const BindingOptions& binding_options() const { return spec_.binding_options; }
  const std::shared_ptr<const ShardLayout>& layout() const { return spec_.binding.layout; }
  const std::shared_ptr<SegmentStore>& store() const { return store_; }
  const std::shared_ptr<SegmentRing>& ring() const { return spec_.ring; }
  bool owns_memory() const { return spec_.memory != nullptr; }
  std::atomic<uint64_t>& bytes_sent() { return bytes_sent_; }
  // Of host memory that it is published from; 0: the caller's own is.
  uint64_t snapshot_bytes() const { return snapshot_bytes_.load(); }
  // Notified once the server has taken the buffer, or refused it; then ready_status says which.
  absl::Notification& ready() { return ready_; }
  const absl::Status& ready_status() const { return ready_status_; }

  // ---- the owner's thread, before the buffer is used and after its last transfer
  // Tells the transports of the memory; blocks while it is registered.
  void AttachMemory(std::shared_ptr<DataPlane> data_plane);
  void DetachMemory();

  // ---- th-control
  void SetReady(absl::Status status);
  void Serve(const ServingChanged& serving);
  // `done` runs on th-seal, when the sums are complete and their publication still lasts.
  void Seal(TaskLoop& sealer, std::function<void(Digest root)> done);

  // Other addresses of the caller's. Only while nothing is served or filled.
  absl::Status Rebind(std::vector<void*> storages);
  const std::vector<void*>& storages() const { return storages_; }
  // What is published next is served from `storages`, which lie in `memory`, until the buffer is
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
  // The end: stops the fill that there is, takes no order for another, serves and reads nothing.
  void Close();
  // The fill has stopped.
  void FillStopped();
  // Runs `task` when no fill is being stopped: at once, or after FillStopped.
  void WhenQuiet(std::function<void()> task);
  // What the last fill came to, once.
  FillStatus TakeFillStatus();

 private:
  bool stopping() const { return fill_ != nullptr && fill_->stopping(); }
  bool IsFill(OperationKey operation) const;
  void RunWaiting();
  void StopSealing();
  void ServeAll(BufferGeneration generation);

  const Spec spec_;
  const std::shared_ptr<SegmentStore> store_;  // shared with transfers
  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> snapshot_bytes_{0};
  absl::Notification ready_;
  absl::Status ready_status_;

  std::vector<void*> storages_;            // the caller's
  std::shared_ptr<void> snapshot_;         // what the store serves instead; shared with nobody
  std::shared_ptr<DataPlane> data_plane_;  // set by AttachMemory; knows the memory of these two
  DataPlaneMemory attached_;               // the caller's memory, or the ring's
  DataPlaneMemory attached_snapshot_;
  bool closed_ = false;
  std::optional<BufferGeneration> serving_under_;  // published or filled under
  bool content_stands_ = false;  // what was published or filled last has not been written since
  std::shared_ptr<std::atomic<bool>> stop_sealing_;  // shared with th-seal
  std::shared_ptr<FillDriver> fill_;
  // What the store could serve when the fill began; none once that has written a byte.
  std::optional<SegmentSet> before_fill_;
  FillStatus last_fill_;
  bool status_taken_ = false;                  // of `fill_`, which its operation has outrun
  std::deque<std::function<void()>> waiting_;  // for the fill to have stopped
};

}  // namespace th

#endif  // TH_CLIENT_LOCAL_BUFFER_H_
