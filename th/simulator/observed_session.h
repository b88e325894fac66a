// A worker session whose steps are noted where a run is observed (SessionObserver); otherwise the
// session and nothing else. A call that is not named here goes to the session unseen.
//
// Not thread-safe.
#ifndef TH_SIMULATOR_OBSERVED_SESSION_H_
#define TH_SIMULATOR_OBSERVED_SESSION_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/simulator/session_observer.h"
#include "th/simulator/transition_coverage.h"
#include "th/worker_session/worker_session.h"

namespace th {

class ObservedSession : public WorkerSession {
 public:
  // `coverage` outlives it. Null: nothing is observed.
  ObservedSession(SessionOptions options, SessionLimits limits, TransitionCoverage* coverage);

  // As the session's own.
  absl::StatusOr<BufferId> RegisterBuffer(std::string buffer_name, std::string form,
                                          std::shared_ptr<const ShardLayout> layout,
                                          absl::Time now);
  void Leave(absl::Time now);
  absl::Status Publish(CallId call, BufferId buffer, PublishRequest request, absl::Time now);
  absl::Status Unpublish(CallId call, BufferId buffer, UnpublishRequest request, absl::Time now);
  absl::Status Update(CallId call, BufferId buffer, UpdateRequest request, absl::Time now);
  absl::Status Apply(CallId call, BufferId buffer, UpdateRequest request, absl::Time now);
  absl::Status Reset(BufferId buffer, absl::Time now);
  absl::Status CanRebind(BufferId buffer);

  void HandleStreamClosed(absl::Status why, absl::Time now);
  void HandleServerMessage(const ServerMessage& message, absl::Time now);
  void HandleAdmission(TransferId transfer, BufferId buffer, const Capability& capability,
                       BufferGeneration generation, absl::Time now);
  void HandleReaderReleased(TransferId transfer, absl::Time now);
  void HandleFirstWrite(BufferId buffer, absl::Time now);
  void HandleFillProgress(BufferId buffer, FillReport report, absl::Time now);
  void HandleFillComplete(BufferId buffer, Digest root, absl::Time now);
  void HandleFillFailed(BufferId buffer, absl::Status why, absl::Time now);
  void HandleFillStopped(BufferId buffer, absl::Time now);
  void HandleSourceFailed(BufferId buffer, AssignmentId assignment, BufferAddress source,
                          SourceFailure failure, std::string detail, absl::Time now);
  void HandleSourceSuspected(BufferId buffer, AssignmentId assignment, BufferAddress source,
                             std::string detail, absl::Time now);
  void HandleOffloadAllocated(BufferId copy, absl::Status status, absl::Time now);
  void HandleSealed(BufferId buffer, VersionSequence version, BufferGeneration generation,
                    Digest root, absl::Time now);
  void HandleTick(absl::Time now);
  std::optional<SessionOutput> PollOutput();

 private:
  using Event = SessionObserver::Event;
  // A verb that is refused is no step.
  template <typename Call>
  absl::Status Verb(const Event& event, Call call) {
    if (!observer_.has_value()) return call();
    const auto before = observer_->Look(event);
    absl::Status status = call();
    if (status.ok()) observer_->Saw(event, before);
    return status;
  }
  template <typename Call>
  void Watch(const Event& event, Call call) {
    if (!observer_.has_value()) return call();
    const auto before = observer_->Look(event);
    call();
    observer_->Saw(event, before);
  }
  Event EventOf(const ServerMessage& message) const;
  void NoteGeneration(const ServerMessage& message);

  std::optional<SessionObserver> observer_;
  BufferId callers_;
  std::map<TransferId, BufferId> readers_;  // of which buffer; only where it is observed
  // What the caller's update goes to, once the server has said so.
  std::optional<std::pair<OperationKey, VersionSequence>> resolved_;
  GroupGeneration generation_;  // that it was told last
};

}  // namespace th

#endif  // TH_SIMULATOR_OBSERVED_SESSION_H_
