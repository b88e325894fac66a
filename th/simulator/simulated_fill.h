// The reader's side in a simulation: what //th/transfer's Fill is around a FillSession, over the
// simulated network. It decides nothing itself; it judges what the session decides.
//
// What it has to say to the worker's session is in TakeEvents(), which its owner asks for after
// every call.
#ifndef TH_SIMULATOR_SIMULATED_FILL_H_
#define TH_SIMULATOR_SIMULATED_FILL_H_

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/pipeline_replicator/fill_session.h"
#include "th/protocol/messages.h"
#include "th/simulator/simulated_process.h"
#include "th/weights/digest.h"
#include "th/worker_session/session_types.h"

namespace th {

class SimulatedBuffer;
class SimulatedStream;
class SimulatedWorker;

// A segment as it arrives: what its bytes are, and the sum that its source claims for them.
struct SentSegment {
  SegmentIndex index;
  SegmentChecksum bytes = 0;
  SegmentChecksum claimed_checksum = 0;
};

class SimulatedFill {
 public:
  // All outlive this. `stream` takes what arrives; null: `buffer` keeps it.
  SimulatedFill(SimulatedWorker* worker, SimulatedBuffer* buffer, const StartFill& start,
                SimulatedStream* stream);

  OperationKey operation() const { return operation_; }
  const VersionInfo& version() const { return version_; }
  const SegmentSet& held() const { return session_.held(); }
  bool wrote() const { return session_.wrote(); }
  bool has_source() const { return session_.has_source(); }
  bool completed() const { return session_.completed(); }

  void SetSources(const th::SetSources& order);
  void SetRoot(const Digest& root);
  // Asks nothing more. What is being written is on its way until Stop, which tells the sources: one
  // segment of each.
  void BeginStop();
  // Lets all sources go; their messages find nobody any more. `tell`: the sources hear of it.
  void Stop(bool report);
  // After a stop of this process: its sources may send again.
  void ContinueAll();

  void HandleAdmitted(TransferId transfer, const absl::Status& status);
  void HandleChecksums(TransferId transfer, SegmentIndex first,
                       const std::vector<SegmentChecksum>& checksums);
  void HandleSegment(TransferId transfer, const SentSegment& segment);
  void HandleAlive(TransferId transfer);
  void HandleClosed(TransferId transfer, const std::string& why);
  // The way to the source has broken, whatever becomes of that itself.
  void HandlePathBroken(TransferId transfer, const std::string& why);
  // The stream's room for all before `segment` is free.
  void HandleConsumed(SegmentIndex segment);
  void HandleTick();

  // The outputs of the session that are not about a pull.
  std::vector<FillOutput> TakeEvents() { return std::exchange(events_, {}); }
  bool has_events() const { return !events_.empty(); }

 private:
  // The pull from one source at one endpoint.
  struct Link {
    SourceIndex source;
    TransferId transfer;
    SimulatedWorker* worker = nullptr;  // null: none was opened
    Wire wire;                          // to the source
    bool open = false;
    absl::Time opened_at;
    std::optional<SegmentIndex> landing;         // begun before the stop
    uint64_t asked = 0, answered = 0;            // segments
    uint64_t checksums_open = 0;                 // asked for
    absl::Time alive_at = absl::InfinitePast();  // its latest keep-alive
  };

  Link* FindOpen(TransferId transfer);
  bool Is(const Link& link, FillSession::SourceState state) const {
    return link.open && session_.state(link.source) == state;
  }
  void CloseLink(Link& link, SourceFailure failure, const std::string& why, bool report);
  void GiveUpUnanswered();
  void AskMore(Link& link);
  void FollowSession();
  void CarryOut();
  void Do(const OpenPull& open);
  void Do(const AskPull& ask);
  void Do(const AskPullChecksums& ask);
  void Do(const FinishPull& finish);
  void Do(const ClosePull& close);
  void JudgeAsking();
  void JudgeLoss(const FillSourceFailed& lost);
  void JudgeWrite(SegmentIndex segment) const;
  void JudgeUnchanged(SegmentIndex segment) const;
  void JudgeAccepted(const Link& link, const SentSegment& segment) const;

  SimulatedWorker* const worker_;
  SimulatedBuffer* const buffer_;
  SimulatedStream* const stream_;
  const OperationKey operation_;
  const VersionInfo version_;
  FillSession session_;
  std::deque<Link> links_;  // by the session's number
  std::vector<FillOutput> events_;
  bool reports_sources_ = true;  // that it closes them
  bool closes_late_ = false;     // between BeginStop and Stop
  bool ticking_ = false;
  absl::Time asks_nobody_since_ = absl::InfiniteFuture();
};

}  // namespace th

#endif  // TH_SIMULATOR_SIMULATED_FILL_H_
