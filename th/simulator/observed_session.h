// A worker session whose steps are noted where a run is observed (SessionObserver); otherwise the
// session and nothing else.
//
// Not thread-safe.
#ifndef TH_SIMULATOR_OBSERVED_SESSION_H_
#define TH_SIMULATOR_OBSERVED_SESSION_H_

#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
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
  SessionAnswer Handle(SessionEvent event, absl::Time now);
  absl::Status CanRebind(BufferId buffer);
  std::optional<SessionOutput> PollOutput();

 private:
  using Step = SessionObserver::Event;
  struct StepOf;     // an event, as the tables name it
  struct MessageOf;  // likewise a message of the server

  std::optional<SessionObserver> observer_;
  BufferId callers_;
  std::map<TransferId, BufferId> readers_;  // of which buffer
  // The version to which the caller's update goes, once the server has said so.
  std::optional<std::pair<OperationKey, VersionSequence>> resolved_;
  GroupGeneration generation_;  // that it was told last
};

}  // namespace th

#endif  // TH_SIMULATOR_OBSERVED_SESSION_H_
