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
// Threads: data threads tell the session of segments and ask for more, each for its own source;
// everything else that the session wants is carried out on th-fill. Both hold mu_ for the session,
// and none holds it while it calls an observer or a transport.
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
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "th/pipeline_replicator/fill_session.h"
#include "th/pipeline_replicator/pipeline_replicator.h"
#include "th/protocol/messages.h"
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
  virtual void OnSourceFailed(AssignmentId assignment, BufferAddress source, SourceFailure failure,
                              std::string detail) = 0;
  virtual void OnSourceSuspected(AssignmentId assignment, BufferAddress source,
                                 std::string detail) = 0;
  // After Stop(), or OnComplete: nothing is written any more and no call follows.
  virtual void OnStopped() = 0;
};

struct FillSpec {
  std::shared_ptr<SegmentStore> store;  // BeginFill was called by the owner
  SegmentSet resume;
  // Of what the store holds from before; empty where somebody may have written it since.
  SegmentStore::KnownSums before;
  std::optional<Digest> root;
  ReplicatorLimits limits;
  bool strict_transport = false;  // as of FillSession::Spec
  // Transports that this process was to use and could not begin: why not, by name.
  std::map<std::string, std::string> absent_transports;
  // The fill hands on what it receives: its bytes go here and not into the store, which gives only
  // the layout then and serves nothing. `resume` is empty. Shared with the consumer. OnComplete
  // says no root where the ring wants but a part of the shard.
  std::shared_ptr<SegmentRing> ring;
};

// Shared with what is posted to th-fill.
class Fill final : public std::enable_shared_from_this<Fill> {
 public:
  // `transports` and `observer` outlive OnStopped, and so does the caller's share of the fill.
  static std::shared_ptr<Fill> Start(FillSpec spec, std::vector<Transport*> transports,
                                     FillObserver* observer);
  // As FillSession's.
  void SetSources(AssignmentId assignment, std::vector<AssignedSource> sources);
  void SetRoot(Digest root);
  void Stop();
  FillStatus status() const;
  bool wrote() const;
  // Stop was called, or OnComplete comes or has come: nothing new begins.
  bool stopping() const;
  bool completed() const;

 private:
  class Sink;
  struct Link {
    std::unique_ptr<Sink> sink;  // of all pulls from one source, which follow each other
    std::shared_ptr<Pull> pull;  // shared with the data thread that is just asking; null: none
  };
  // What to ask once mu_ is free.
  struct Asking {
    std::shared_ptr<Pull> pull;
    bool sums = false;
    std::vector<SegmentRange> ranges;
    void Send() const;
  };

  Fill(FillSpec spec, std::vector<Transport*> transports, FillObserver* observer);

  // ---- data threads, and the consumer's
  void Admitted(SourceIndex source, bool lists_sums);
  void SumsCame(SourceIndex source, SegmentIndex first, absl::Span<const SegmentSum> sums);
  bool SegmentBegins(SourceIndex source, SegmentIndex segment, std::vector<iovec>* iov);
  void SegmentLanded(SourceIndex source, SegmentIndex segment, SegmentSum sent,
                     SegmentSum computed);
  void Alive(SourceIndex source);
  void Closed(SourceIndex source, SourceFailure failure, std::string detail);
  void HandedOn(SegmentIndex end);

  Asking RequestsOf(SourceIndex source, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What the session has found out about the whole of the shard is so in the store too.
  void FollowSession() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Has what the session wants carried out.
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- th-fill
  void ClosedOnFillThread(SourceIndex source, SourceFailure failure, std::string detail);
  void TickOnFillThread();
  void CarryOut();
  std::optional<FillOutput> TakeOutput();
  std::shared_ptr<Pull> PullOf(SourceIndex source) const;
  void Do(OpenPull open);
  void Do(AskPull ask);
  void Do(AskPullSums ask);
  void Do(FinishPull finish);
  void Do(ClosePull close);
  void Do(FillFirstWrite) { observer_->OnFirstWrite(); }
  void Do(FillProgressed progress) { observer_->OnProgress(std::move(progress)); }
  void Do(FillReceived) { observer_->OnAllReceived(); }
  void Do(FillCompleted completed) { observer_->OnComplete(completed.root); }
  void Do(FillFailed failed) { observer_->OnFailed(std::move(failed.why)); }
  void Do(FillSourceFailed lost);
  void Do(FillSourceSuspected suspected);
  void Do(FillStopped) { observer_->OnStopped(); }

  const std::shared_ptr<SegmentStore> store_;
  const std::shared_ptr<SegmentRing> ring_;  // shared with the consumer; null: the store keeps all
  const std::vector<Transport*> transports_;
  FillObserver* const observer_;
  const std::shared_ptr<ExtraBytes> extra_ = std::make_shared<ExtraBytes>();  // with the pulls
  const std::shared_ptr<std::atomic<uint64_t>> cut_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(0);  // likewise
  const std::shared_ptr<TaskThread> thread_ = SharedFillThread();

  mutable absl::Mutex mu_;
  FillSession session_ ABSL_GUARDED_BY(mu_);
  // By the session's number. Kept to the end: transports may still call the sinks until OnStopped.
  std::deque<Link> links_ ABSL_GUARDED_BY(mu_);
  bool woken_ ABSL_GUARDED_BY(mu_) = false;    // CarryOut is posted
  bool ticking_ ABSL_GUARDED_BY(mu_) = false;  // so is the next tick
};

}  // namespace th

#endif  // TH_TRANSFER_FILL_H_
