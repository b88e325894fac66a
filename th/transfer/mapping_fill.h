// The fill of a reader that uses a version where it lies: no byte is moved, the shard of one source
// is mapped (Pull::AskMapping), and the source's list of sums is compared with the version's root.
//
//   auto target = std::make_shared<MappingTarget>();
//   auto fill = MappingFill::Start({.layout = layout, .target = target}, transports, observer);
//   fill->SetSources(assignment, sources);  // those on this host are tried, one after the other
//   fill->SetRoot(root);
//   ... observer->OnComplete(root) ...      // target->Take() has it
//   fill->Stop();
//
// Sources that cannot be mapped are reported as having refused, so that the server names others.
// When none of those that it names can be for other_source_wait, the fill fails and says why of
// each.
//
// Threads as of Fill: data threads bring what sources say; everything else happens on th-fill. Both
// hold mu_, and none holds it while it calls an observer or a transport.
#ifndef TH_TRANSFER_MAPPING_FILL_H_
#define TH_TRANSFER_MAPPING_FILL_H_

#include <cstdint>
#include <deque>
#include <map>
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
#include "th/protocol/messages.h"
#include "th/transfer/fill.h"
#include "th/transfer/mapped_shard.h"
#include "th/transfer/task_thread.h"
#include "th/transfer/transport.h"
#include "th/weights/digest.h"
#include "th/weights/shard_layout.h"

namespace th {

// Limits the wait for the server to name another source than those that refused.
inline constexpr absl::Duration kOtherSourceWait = absl::Milliseconds(300);
// A source that owes an answer and says nothing for so long is given up. With the ticks at which it
// is looked at less than the half second in which lost sources are noticed.
inline constexpr absl::Duration kMappingSilence = absl::Milliseconds(400);

struct MappedContent {
  std::shared_ptr<const MappedShard> shard;  // shared by all who use it
  std::vector<SegmentChecksum> checksums;    // by segment; none where the layout takes no checksums
  RankName source;
};

// The place into which a fill puts what it has mapped. Thread-safe.
class MappingTarget {
 public:
  void Put(MappedContent content);
  // Returns what was put last; no shard where nothing was.
  MappedContent Take();

 private:
  absl::Mutex mu_;
  MappedContent content_ ABSL_GUARDED_BY(mu_);
};

class MappingFill final : public FillControl, public std::enable_shared_from_this<MappingFill> {
 public:
  struct Spec {
    std::shared_ptr<const ShardLayout> layout;
    std::optional<Digest> root;
    std::shared_ptr<MappingTarget> target;  // shared with the consumer
    // Transports that this process was to use and could not begin: why not, by name.
    std::map<std::string, absl::Status> absent_transports = {};
    absl::Duration other_source_wait = kOtherSourceWait;
    absl::Duration silence = kMappingSilence;
  };
  // Starts as Fill::Start does.
  static std::shared_ptr<MappingFill> Start(Spec spec, std::vector<Transport*> transports,
                                            FillObserver* observer);

  ~MappingFill() override;

  void SetSources(AssignmentId assignment, std::vector<AssignedSource> sources) override;
  void SetRoot(Digest root) override;
  void Stop() override;
  FillStatus status() const override;
  bool wrote() const override { return false; }
  bool stopping() const override;
  bool completed() const override;

 private:
  class Sink;
  using Failure = std::pair<SourceFailure, std::string>;
  // One pull from one source.
  struct Attempt {
    AssignmentId assignment;
    AssignedSource source;
    Endpoint endpoint;
    std::unique_ptr<Sink> sink;
    std::shared_ptr<Pull> pull;  // shared with the data thread that is just asking
    bool admitted = false;
    bool asked = false;
    bool closing = false;
    bool closed = false;
    bool reported = false;  // to have failed
    absl::Time heard;
    std::vector<SegmentChecksum> checksums;
    std::shared_ptr<const MappedShard> shard;
    std::optional<Failure> failure;
  };
  enum class Life { kRunning, kComplete, kFailed, kStopped };

  MappingFill(Spec spec, std::vector<Transport*> transports, FillObserver* observer);

  // ---- data threads; `attempt` by its place in attempts_
  void Admitted(size_t attempt, bool lists_checksums);
  void ChecksumsCame(size_t attempt, SegmentIndex first,
                     absl::Span<const SegmentChecksum> checksums);
  void Mapped(size_t attempt, absl::StatusOr<std::shared_ptr<const MappedShard>> shard);
  void Alive(size_t attempt);
  void Closed(size_t attempt, SourceFailure failure, std::string detail);

  bool TakesChecksums() const { return spec_.layout->checksum() != ChecksumAlgorithm::kNone; }
  void AskIfAdmitted(size_t attempt);
  Attempt* Open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // the attempt that is under way; null: none
  bool Owes(const Attempt& attempt) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // True if the attempt has all that the fill wants; a list that is wrong is its failure.
  bool HasAll(Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool CoversTheShard(const MappedShard& shard) const;
  void Post();

  // ---- th-fill
  void CarryOn();
  // Each returns true when it has done something, and may have more to do.
  bool Finish();
  bool CloseWhatIsOver();
  bool TryNextSource();
  // Fails the fill when nobody is left to try and no other source has come for a while.
  void GiveUpInTime();
  void Tick();
  void ScheduleTick(absl::Time due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReportLost(const Attempt& attempt, const Failure& failure);
  absl::StatusOr<Endpoint> MappableEndpoint(const AssignedSource& source) const;

  const Spec spec_;
  const std::vector<Transport*> transports_;
  FillObserver* const observer_;
  const std::shared_ptr<ExtraBytes> extra_ = std::make_shared<ExtraBytes>();  // with the pulls
  const std::shared_ptr<TaskThread> thread_ = SharedFillThread();

  mutable absl::Mutex mu_;
  Life life_ ABSL_GUARDED_BY(mu_) = Life::kRunning;
  bool reported_complete_ ABSL_GUARDED_BY(mu_) = false;
  bool reported_stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool ticking_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time tick_due_ ABSL_GUARDED_BY(mu_);
  uint64_t last_tick_ ABSL_GUARDED_BY(mu_) = 0;  // the number of the one that counts
  std::optional<Digest> root_ ABSL_GUARDED_BY(mu_);
  AssignmentId assignment_ ABSL_GUARDED_BY(mu_);
  std::vector<AssignedSource> sources_ ABSL_GUARDED_BY(mu_);          // that were not tried yet
  std::map<std::string, std::string> refusals_ ABSL_GUARDED_BY(mu_);  // by the source's name
  absl::Time give_up_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  // Kept to the end: transports may still call the sinks until each is closed.
  std::deque<Attempt> attempts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace th

#endif  // TH_TRANSFER_MAPPING_FILL_H_
