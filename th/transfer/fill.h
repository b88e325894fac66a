// One fill of one buffer: a FillSession (//th/pipeline_replicator), which decides, driven over
// transports, which move the bytes.
//
//   auto fill = Fill::Start({.store = store, ...}, transports, observer);
//   fill->SetSources(assignment, sources);  // again whenever the server assigns anew
//   fill->SetRoot(root);
//   ... observer->OnComplete(root) ...
//   fill->Stop();                           // no byte is written after OnStopped
//
// Thread-safe. Lost, silent, refusing and corrupting sources are closed and reported; the fill
// keeps what it has and goes on with what SetSources names.
//
// Segments of which a part lies in device memory land in a pinned slot (DeviceStaging) and are
// copied to their place from there. They count, and may be served, once they are in place and the
// memory was the registered one to the end; if it was not, the fill fails. While there is no slot
// for them nothing is asked for.
//
// A device that has ended nothing for FillSpec::device_time hangs: the fill fails, naming it, and
// does not wait for it. What it still writes SegmentStore::AwaitDevices waits for.
//
// Threads: data threads tell the session of segments and ask for more, each for its own source;
// what has landed in a slot is copied on th-land-gpu, which tells the session so; everything else
// that the session wants is carried out on th-fill. All hold mu_ for the session, and none holds it
// while it calls an observer, a transport or a device.
#ifndef TH_TRANSFER_FILL_H_
#define TH_TRANSFER_FILL_H_

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "th/memory/device_side.h"
#include "th/memory/memory_region.h"
#include "th/pipeline_replicator/fill_session.h"
#include "th/pipeline_replicator/pipeline_replicator.h"
#include "th/protocol/messages.h"
#include "th/transfer/device_staging.h"
#include "th/transfer/extra_bytes.h"
#include "th/transfer/segment_ring.h"
#include "th/transfer/task_thread.h"
#include "th/transfer/transport.h"

namespace th {

// Called on the thread th-fill, which all fills of the process share, one call at a time, never
// inline from a call into the Fill. Must not block.
class FillObserver {
 public:
  virtual ~FillObserver() = default;
  virtual void OnFirstWrite() = 0;
  virtual void OnProgress(FillProgressed progress) = 0;
  virtual void OnAllReceived() = 0;
  virtual void OnComplete(Digest root) = 0;
  virtual void OnFailed(absl::Status why) = 0;
  virtual void OnSourceFailed(FillSourceFailed lost) = 0;
  virtual void OnSourceSuspected(AssignmentId assignment, BufferAddress source,
                                 std::string detail) = 0;
  // After Stop(), or OnComplete: nothing is written any more, but by a device that hangs
  // (SegmentStore::AwaitDevices), and no call follows.
  virtual void OnStopped() = 0;
};

struct FillSpec {
  std::shared_ptr<SegmentStore> store;  // BeginFill was called by the owner
  SegmentSet resume;
  // The sums of what the store holds from before; empty where somebody may have written it since.
  SegmentStore::KnownChecksums before;
  std::optional<Digest> root;
  ReplicatorLimits limits;
  bool strict_transport = false;  // as of FillSession::Spec
  // Transports that this process was to use and this fill cannot: why not, by name. It could not be
  // begun (OUT_OF_RANGE: it is of no use here, as without a GPU), or cannot write to the buffer's
  // memory.
  std::map<std::string, absl::Status> unusable_transports;
  // Names of transports, also of some that could not be begun, in the order in which a source's
  // endpoints are tried. Empty: that of the fill's transports.
  std::vector<std::string> transport_order;
  // The fill hands on what it receives: its bytes go here and not into the store, which gives only
  // the layout then and serves nothing. `resume` is empty. Shared with the consumer. OnComplete
  // says no root where the ring wants but a part of the shard.
  std::shared_ptr<SegmentRing> ring;
  absl::Duration device_time = kDeviceTime;
};

// The owner's side of a fill, whatever fills the buffer. Thread-safe.
class FillControl {
 public:
  virtual ~FillControl() = default;
  // The sources to pull from; replaces the assignment before it (FillSession::SetSources).
  virtual void SetSources(AssignmentId assignment, std::vector<AssignedSource> sources) = 0;
  virtual void SetRoot(Digest root) = 0;
  virtual void Stop() = 0;
  virtual FillStatus status() const = 0;
  virtual bool wrote() const = 0;
  // Stop was called, or OnComplete comes or has come: nothing new begins.
  virtual bool stopping() const = 0;
  virtual bool completed() const = 0;
};

// Shared with what is posted to th-fill.
class Fill final : public FillControl, public std::enable_shared_from_this<Fill> {
 public:
  // `transports` and `observer` outlive OnStopped, and so does the caller's share of the fill.
  static std::shared_ptr<Fill> Start(FillSpec spec, std::vector<Transport*> transports,
                                     FillObserver* observer);
  void SetSources(AssignmentId assignment, std::vector<AssignedSource> sources) override;
  void SetRoot(Digest root) override;
  void Stop() override;
  FillStatus status() const override;
  bool wrote() const override;
  bool stopping() const override;
  bool completed() const override;

 private:
  class Sink;
  struct Link {
    std::unique_ptr<Sink> sink;  // of all pulls from one source, which follow each other
    std::shared_ptr<Pull> pull;  // shared with the data thread that is just asking; null: none
  };
  // A request that is sent once mu_ is free.
  struct Asking {
    std::shared_ptr<Pull> pull;
    bool checksums = false;
    std::vector<SegmentRange> ranges;
    void Send() const;
  };

  Fill(FillSpec spec, std::vector<Transport*> transports, FillObserver* observer);

  // ---- data threads, and the consumer's
  void Admitted(SourceIndex source, bool lists_checksums);
  void ChecksumsCame(SourceIndex source, SegmentIndex first,
                     absl::Span<const SegmentChecksum> checksums);
  // `can_write`: device memory too, so that they need no slot; null: none.
  bool SegmentBegins(SourceIndex source, SegmentIndex segment, const PullSink::CanWrite* can_write,
                     std::vector<iovec>* iov);
  void SegmentLanded(SourceIndex source, SegmentIndex segment, SegmentChecksum sent,
                     SegmentChecksum computed);
  void Alive(SourceIndex source);
  void DeviceHangs(absl::Status why);
  void Closed(SourceIndex source, SourceFailure failure, std::string detail);
  void Consumed(SegmentIndex end);

  // ---- segments that land in a slot first
  // A segment whose bytes have been received into `slot`, with the sums as of OnSegment.
  struct Landed {
    SourceIndex source;
    SegmentIndex segment;
    SegmentChecksum sent = 0;
    SegmentChecksum computed = 0;
    std::shared_ptr<StagingSlot> slot;  // shared with nobody
  };
  // False: no slot is free, or the segment is not wanted.
  bool BeginInSlot(SourceIndex source, SegmentIndex segment, std::vector<iovec>* iov,
                   absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<StagingSlot> TakeSlot(SourceIndex source, SegmentIndex segment)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetLanding(SourceIndex source) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PrepareSlots() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SlotsPrepared(absl::Status prepared);  // on th-land
  // Nothing is asked for until there is a slot.
  void AwaitSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SlotCame(absl::StatusOr<std::shared_ptr<StagingSlot>> slot);  // on th-land
  void PutNextInPlace();                                             // on th-land-gpu
  // Takes the segments that go to their places next, in one go.
  std::vector<Landed> TakeLanded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CopyIn(absl::Span<const Landed> landed);
  // True while something of this fill is to be done on the devices' threads.
  bool DeviceOwes() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return preparing_ || placing_ > 0 || !landed_.empty();
  }
  // Has LookAtDevice called while it owes something.
  void WatchDevice() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LookAtDevice(absl::Time due);  // on th-fill
  void GiveUpDevice() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Arrived(SourceIndex source, SegmentIndex segment, SegmentChecksum sent,
               SegmentChecksum computed, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool LandsInPlace(SegmentIndex segment, const PullSink::CanWrite* can_write) const;
  bool LandsInSlot(SegmentIndex segment) const {
    return staging_ != nullptr && store_->PlaceOf(segment) != SegmentStore::Place::kHost;
  }

  Asking RequestsOf(SourceIndex source, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Applies to the store what the session has concluded about the whole shard: segments that are
  // unchanged, sums that were listed, or that the fill starts over.
  void ApplyToStore() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Posts CarryOut if the session has output and it is not posted yet.
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- th-fill
  void ClosedOnFillThread(SourceIndex source, SourceFailure failure, std::string detail);
  void TickOnFillThread();
  void CarryOut();
  std::optional<FillOutput> TakeOutput();
  std::shared_ptr<Pull> PullOf(SourceIndex source) const;
  void Do(OpenPull open);
  void Do(AskPull ask);
  void Do(AskPullChecksums ask);
  void Do(FinishPull finish);
  void Do(ClosePull close);
  void Do(FillFirstWrite) { observer_->OnFirstWrite(); }
  void Do(FillProgressed progress) { observer_->OnProgress(std::move(progress)); }
  void Do(FillReceived) { observer_->OnAllReceived(); }
  void Do(FillCompleted completed);
  void Do(FillFailed failed) { observer_->OnFailed(std::move(failed.why)); }
  void Do(FillSourceFailed lost);
  void Do(FillSourceSuspected suspected);
  void Do(FillStopped) { observer_->OnStopped(); }

  const std::shared_ptr<SegmentStore> store_;
  const std::shared_ptr<SegmentRing> ring_;  // shared with the consumer; null: the store keeps all
  const std::vector<Transport*> transports_;
  const std::vector<std::string> transport_order_;
  FillObserver* const observer_;
  const std::shared_ptr<const std::vector<MemoryRegion>> into_;               // with the pulls
  const std::shared_ptr<ExtraBytes> extra_ = std::make_shared<ExtraBytes>();  // with the pulls
  const std::shared_ptr<std::atomic<uint64_t>> cut_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(0);
  const std::shared_ptr<std::atomic<uint64_t>> packing_overhead_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(0);
  // likewise
  const std::shared_ptr<TaskThread> thread_ = SharedFillThread();
  const std::shared_ptr<DeviceStaging> staging_;  // of the process; null: all is host memory
  const absl::Duration device_time_;

  mutable absl::Mutex mu_;
  FillSession session_ ABSL_GUARDED_BY(mu_);
  // By the session's number. Kept to the end: transports may still call the sinks until OnStopped.
  std::deque<Link> links_ ABSL_GUARDED_BY(mu_);
  // The slots in which segments are landing, by the source and the segment's number.
  std::map<std::pair<uint32_t, uint64_t>, std::shared_ptr<StagingSlot>> landing_
      ABSL_GUARDED_BY(mu_);
  // The slot for the next segment, whoever else takes the others meanwhile. Null: AwaitSlot was not
  // called, or it is used.
  std::shared_ptr<StagingSlot> kept_slot_ ABSL_GUARDED_BY(mu_);
  bool awaits_slot_ ABSL_GUARDED_BY(mu_) = false;
  // In the order in which they go to their place; without those that are on their way there.
  std::deque<Landed> landed_ ABSL_GUARDED_BY(mu_);
  size_t placing_ ABSL_GUARDED_BY(mu_) = 0;      // those on their way
  bool preparing_ ABSL_GUARDED_BY(mu_) = false;  // slots
  // When something of this was done last, or the first was asked for after a rest.
  absl::Time device_moved_at_ ABSL_GUARDED_BY(mu_);
  bool watching_device_ ABSL_GUARDED_BY(mu_) = false;  // LookAtDevice is posted
  bool device_given_up_ ABSL_GUARDED_BY(mu_) = false;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;    // CarryOut is posted
  bool ticking_ ABSL_GUARDED_BY(mu_) = false;  // so is the next tick
};

}  // namespace th

#endif  // TH_TRANSFER_FILL_H_
