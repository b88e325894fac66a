// What is behind a Fill: the pipeline replicator's core, the sources that were assigned, and the
// pulls from them. Fill is the handle; see fill.h for what callers may rely on.
#ifndef TH_TRANSFER_FILL_STATE_H_
#define TH_TRANSFER_FILL_STATE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "th/pipeline_replicator/pipeline_replicator.h"
#include "th/protocol/messages.h"
#include "th/transfer/extra_bytes.h"
#include "th/transfer/fill.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/task_thread.h"
#include "th/transfer/transport.h"

namespace th {

class FillState;

// One source of a fill, from its assignment to the end of the fill.
struct FillSource final : PullSink {
  FillSource(FillState* fill, SourceIndex index, AssignmentId assignment, AssignedSource assigned)
      : fill(fill), index(index), assigned(std::move(assigned)), assignment(assignment) {}

  // PullSink, on data threads.
  void OnAdmitted(BufferGeneration generation) override;
  bool OnSegmentBegins(SegmentIndex segment, std::vector<iovec>* iov) override;
  void OnSegment(SegmentIndex segment, SegmentSum sent, SegmentSum computed) override;
  void OnAlive() override;
  void OnClosed(SourceFailure failure, std::string detail) override;

  FillState* const fill;  // outlives every call, see FillState::sources_
  const SourceIndex index;
  const AssignedSource assigned;
  // Under the fill's mutex from here on.
  AssignmentId assignment;
  size_t next_endpoint = 0;
  std::shared_ptr<Pull> pull;  // shared with the data thread that is just asking
  bool open = false;           // OnClosed is still to come
  bool admitted = false;
  bool let_go = false;  // by us, or reported as failed: nothing more is to be said of it
  // Let go because a newer assignment does not name it: what it has begun to send still counts.
  bool replaced = false;
  std::string peer;
  std::string transport;
  std::string failure;
  absl::Time first_byte = absl::InfiniteFuture();
  absl::Time last_byte = absl::InfinitePast();
};

// Decisions are made on th-fill ("…OnFillThread"); data threads only move segments through the
// core. Both hold mu_ for the core, and none holds it while it calls an observer or a transport.
class FillState : public std::enable_shared_from_this<FillState> {
 public:
  FillState(FillSpec spec, std::vector<Transport*> transports, FillObserver* observer);

  void Post(void (FillState::*step)());
  void SetSources(AssignmentId assignment, std::vector<AssignedSource> sources);
  void SetRoot(Digest root);
  void StopOnFillThread();
  void AdvanceOnFillThread();
  FillStatus status() const;
  const std::shared_ptr<SegmentRing>& ring() const { return ring_; }
  // On the consumer's thread: everything before `end` is.
  void HandedOn(SegmentIndex end);

  void Admitted(FillSource* source);
  bool SegmentBegins(FillSource* source, SegmentIndex segment, std::vector<iovec>* iov);
  void SegmentLanded(FillSource* source, SegmentIndex segment, SegmentSum sent,
                     SegmentSum computed);
  void Alive(FillSource* source);
  void Closed(FillSource* source, SourceFailure failure, std::string detail);

 private:
  struct Attempt {
    Transport* transport = nullptr;
    Endpoint endpoint;
  };

  void SetSourcesOnFillThread(AssignmentId assignment, std::vector<AssignedSource> sources);
  void OpenAssignedOnFillThread();
  FillSource* FindInUse(const AssignedSource& wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LetGoOthersOnFillThread(const std::vector<AssignedSource>& wanted);
  void OpenOnFillThread(FillSource* source);
  bool NextAttempt(FillSource* source, Attempt* attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ClosedOnFillThread(FillSource* source, SourceFailure failure, const std::string& detail);
  void FailOnFillThread(FillSource* source, SourceFailure failure, const std::string& detail);
  void CloseOnFillThread(FillSource* source);
  void CloseAllOnFillThread();
  void StoppedOnFillThread();

  void StartTicking();
  void TickOnFillThread();
  void ReportLostOnFillThread(absl::Time now);
  void ReportSuspectedOnFillThread();
  void ReportProgressOnFillThread(absl::Time now);
  bool Busy() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void Pump(FillSource* source);
  void PumpAll();
  void CountReroute() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // After anything that may have checked the list: forgets what is served when it was wrong.
  void AfterCheck() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A segment is here and checked.
  void Keep(SegmentIndex segment, SegmentSum sum) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string NoTransport(const FillSource& source) const;

  const std::shared_ptr<SegmentStore> store_;
  const std::shared_ptr<SegmentRing> ring_;  // shared with the consumer; null: the store keeps all
  const std::vector<Transport*> transports_;
  FillObserver* const observer_;
  const std::shared_ptr<ExtraBytes> extra_ = std::make_shared<ExtraBytes>();  // with the pulls
  const std::shared_ptr<std::atomic<uint64_t>> cut_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(0);  // likewise
  const std::shared_ptr<TaskThread> thread_ = SharedFillThread();

  mutable absl::Mutex mu_;
  PipelineReplicator core_ ABSL_GUARDED_BY(mu_);
  // Kept to the end: reports name them, and their transports may still call them until OnStopped.
  std::vector<std::unique_ptr<FillSource>> sources_ ABSL_GUARDED_BY(mu_);
  std::optional<Digest> root_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool wrote_ ABSL_GUARDED_BY(mu_) = false;
  uint32_t root_mismatches_seen_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t reroutes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t rerouted_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t discarded_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of whole segments

  const absl::Time began_at_ = MonotonicNow();
  // The fill thread only.
  AssignmentId assignment_;
  std::vector<AssignedSource> assigned_;
  bool ticking_ = false;
  absl::Time ticked_at_, progress_at_;
  uint64_t progress_bytes_ = 0;
  uint32_t root_mismatches_told_ = 0;
  bool told_received_ = false, told_complete_ = false, told_failed_ = false, told_stopped_ = false;
};

}  // namespace th

#endif  // TH_TRANSFER_FILL_STATE_H_
