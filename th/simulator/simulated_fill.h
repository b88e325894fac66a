// The reader's side in a simulation: one fill of one buffer, which drives the pipeline replicator's
// core as //th/transfer's Fill does, over the simulated network.
//
// What it has to say to the session is in TakeEvents(), which its owner asks for after every call.
#ifndef TH_SIMULATOR_SIMULATED_FILL_H_
#define TH_SIMULATOR_SIMULATED_FILL_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/pipeline_replicator/pipeline_replicator.h"
#include "th/protocol/messages.h"
#include "th/simulator/simulated_process.h"
#include "th/weights/digest.h"
#include "th/weights/identifiers.h"
#include "th/worker_session/session_types.h"

namespace th {

class SimulatedBuffer;
class SimulatedStream;
class SimulatedWorker;

// How often silence, progress and slow sources are looked at. This and what simulated_fill.cc names
// are as in th/transfer/fill_state.cc.
inline constexpr absl::Duration kSimulatedFillTick = absl::Milliseconds(20);

// A segment as it arrives: what its bytes are, and the sum that its source claims for them.
struct SentSegment {
  SegmentIndex index;
  SegmentSum bytes = 0;
  SegmentSum claimed_sum = 0;
};

struct FillFirstWrite {};
struct FillProgressed {
  FillReport report;
};
struct FillReceived {};
struct FillCompleted {
  Digest root;
};
struct FillFailed {
  absl::Status why;
};
struct FillSourceFailed {
  AssignmentId assignment;
  BufferAddress source;
  SourceFailure failure;
  std::string detail;
};
struct FillSourceSuspected {
  AssignmentId assignment;
  BufferAddress source;
};
using FillEvent = std::variant<FillFirstWrite, FillProgressed, FillReceived, FillCompleted,
                               FillFailed, FillSourceFailed, FillSourceSuspected>;

class SimulatedFill {
 public:
  // All outlive this. `stream` takes what arrives; null: `buffer` keeps it.
  SimulatedFill(SimulatedWorker* worker, SimulatedBuffer* buffer, const StartFill& start,
                SimulatedStream* stream);

  OperationKey operation() const { return operation_; }
  const VersionInfo& version() const { return version_; }
  const SegmentSet& held() const { return core_.held(); }
  bool wrote() const { return wrote_; }
  bool has_source() const;

  void SetSources(const th::SetSources& order);
  void SetRoot(const Digest& root);
  // Lets all sources go; their messages find nobody any more. `tell`: the sources hear of it.
  void CloseAll(bool tell);
  // After a stop of this process: its sources may send again.
  void ContinueAll();

  void HandleAdmitted(TransferId transfer, const absl::Status& status);
  void HandleSegment(TransferId transfer, const SentSegment& segment);
  void HandleAlive(TransferId transfer);
  void HandleClosed(TransferId transfer, const std::string& why);
  // The stream's room for all before `segment` is free.
  void HandleHandedOn(SegmentIndex segment);
  void HandleTick();

  std::vector<FillEvent> TakeEvents() { return std::exchange(events_, {}); }
  bool has_events() const { return !events_.empty(); }

 private:
  struct Source {
    SourceIndex index;
    AssignedSource assigned;
    AssignmentId assignment;
    TransferId transfer;
    SimulatedWorker* worker = nullptr;
    Wire wire;  // to the source
    absl::Time opened_at;
    bool open = true;
    bool admitted = false;
    bool let_go = false;  // for the sources of a newer assignment: what is on its way still counts
    uint64_t asked = 0, answered = 0;            // segments
    absl::Time alive_at = absl::InfinitePast();  // its latest keep-alive
  };

  Source* FindOpen(TransferId transfer);
  Source* FindOpen(const AssignedSource& wanted);
  Source& SourceOf(SourceIndex index) { return sources_[index.value]; }
  bool Busy() const { return !core_.all_received() && !core_.failed(); }
  void OpenAssigned();
  void Open(const AssignedSource& wanted);
  // Asks it for nothing new and takes what is on its way; it ends by itself.
  void LetGo(Source& source);
  void Close(Source& source, bool tell);
  void Fail(Source& source, SourceFailure failure, const std::string& detail);
  void Pump(Source& source);
  void PumpAll();
  void Keep(SegmentIndex segment);  // it is checked
  // Tells what has come true, in the order in which it does.
  void Advance();
  void ReportLost();
  void ReportSuspected();
  void ReportProgress();
  void JudgeAsking();
  void JudgeWrite(SegmentIndex segment) const;
  void JudgeAccepted(const Source& source, const SentSegment& segment) const;
  void StartTicking();

  SimulatedWorker* const worker_;
  SimulatedBuffer* const buffer_;
  SimulatedStream* const stream_;
  const OperationKey operation_;
  const VersionInfo version_;
  PipelineReplicator core_;
  std::optional<Digest> root_;
  AssignmentId assignment_;
  std::vector<AssignedSource> assigned_;
  std::deque<Source> sources_;  // by index; closed ones stay
  std::vector<FillEvent> events_;
  bool wrote_ = false, told_received_ = false, told_complete_ = false, told_failed_ = false;
  uint32_t rounds_seen_ = 0;
  uint64_t told_segments_ = 0;
  const absl::Time began_at_;
  absl::Time told_at_;
  bool ticking_ = false;
  absl::Time ticked_at_;
  absl::Time asks_nobody_since_ = absl::InfiniteFuture();
};

}  // namespace th

#endif  // TH_SIMULATOR_SIMULATED_FILL_H_
