// Looks at one worker session from outside and notes which steps of the session's and of the
// contract's table it takes: what it says of a buffer before an event and after it, and what it
// puts out then.
//
// Not thread-safe.
#ifndef TH_SIMULATOR_SESSION_OBSERVER_H_
#define TH_SIMULATOR_SESSION_OBSERVER_H_

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/messages.h"
#include "th/simulator/transition_coverage.h"
#include "th/worker_session/worker_session.h"

namespace th {

class SessionObserver {
 public:
  // Both outlive it.
  SessionObserver(const WorkerSession* session, TransitionCoverage* coverage)
      : session_(session), coverage_(coverage) {}

  // The session's description of what it does with a buffer.
  struct Moment {
    PhaseNames operations;  // "update filling", in the order of their numbers
    BufferState state = BufferState::kWritable;
    bool read = false;     // somebody reads
    bool written = false;  // the fill has
  };
  // An event: its name in the session's table, the buffer, the operation that it is about. An empty
  // name: it is not in the table, but may move the contract.
  struct Event {
    absl::string_view name;
    BufferId buffer;
    std::optional<OperationKind> kind = std::nullopt;
  };

  // The caller's, instead of the one before it; copies are seen by themselves.
  void Registered(BufferId buffer);
  void FirstWrite(BufferId buffer) { written_[buffer] = true; }
  // Around every event.
  struct Before {
    Moment of_buffer;
    Moment of_callers;
  };
  Before Look(const Event& event);
  void Saw(const Event& event, const Before& before);
  // Takes an output of the session after the event; nullptr: there are no more.
  void Said(const SessionOutput* output);

 private:
  struct Seen {
    BufferState state = BufferState::kWritable;
    BufferGeneration generation;
    bool read = false;
  };
  void See(BufferId buffer);
  Moment MomentOf(BufferId buffer) const;
  void SawSession(const Event& event, const Moment& before);
  void SawCopyEnd(const Moment& before);
  void SawContract(const Event& event);
  void TakeContract(BufferState from, BufferEvent event, BufferCondition condition);
  // The steps that lead from what was seen last to what is there now.
  void FollowContract(const Event& event, BufferId buffer, const Seen& from, const Seen& to);
  void FollowEndOfFill(BufferId buffer, const Seen& from, const Seen& to);
  void FollowUndefined(const Event& event, const Seen& from, const Seen& to);

  const WorkerSession* const session_;
  TransitionCoverage* const coverage_;
  BufferId callers_;
  std::map<BufferId, Seen> seen_;
  std::map<BufferId, bool> written_;  // since the fill began
  // Steps that change nothing but are to put out something.
  std::vector<std::string> waiting_;  // names
};

}  // namespace th

#endif  // TH_SIMULATOR_SESSION_OBSERVER_H_
