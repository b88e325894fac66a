// One worker's side of the protocol, pure: join, announce, retry, tokens, epoch changes, group
// commit, progress. The client drives it with real sockets, tests with a virtual clock.
//
//   WorkerSession session(options, limits);
//   session.Handle(event::Start{}, now);
//   for (;;) {                              // the driver; calls are serialised by its owner
//     session.Handle(<whatever happened, or event::Tick{}>, now);
//     while (auto output = session.PollOutput()) std::visit(<do it>, *output);
//     <wait for the next event or session.NextDeadline()>
//   }
//
// The session owns each buffer's MutabilityContract. It does not own the fills: it says from whom
// (StartFill, SetSources, StopFill) and hears how it goes (event::FillCompleted and the like).
//
// Not thread-safe. Every event is answered at once: a verb's misuse is a status, its result comes
// as OperationDone. The session reads no clock and draws nothing at random: the same events bring
// the same answers and outputs.
#ifndef TH_WORKER_SESSION_WORKER_SESSION_H_
#define TH_WORKER_SESSION_WORKER_SESSION_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/mutability_contract/mutability_contract.h"
#include "th/weights/version.h"
#include "th/worker_session/phase_names.h"
#include "th/worker_session/session_events.h"
#include "th/worker_session/session_types.h"

namespace th {

class WorkerSession {
 public:
  WorkerSession(SessionOptions options, SessionLimits limits);
  ~WorkerSession();
  WorkerSession(const WorkerSession&) = delete;
  WorkerSession& operator=(const WorkerSession&) = delete;

  // Takes one event, and every step that it makes possible. What happened, not asked for by the
  // caller, is never refused: what is out of date or unknown is ignored.
  SessionAnswer Handle(SessionEvent event, absl::Time now);
  // When Tick is due.
  absl::Time NextDeadline() const;
  std::optional<SessionOutput> PollOutput();

  // ---- what is known
  bool joined() const;
  bool ended() const;
  // It has ended, or does so when its last readers have let go: nothing can be begun in it.
  bool ending() const;
  absl::Status end_status() const;
  Epoch epoch() const;
  WorkerId worker() const;
  BufferState buffer_state(BufferId buffer) const;
  const VersionInfo& buffer_version(BufferId buffer) const;  // until the next event
  BufferGeneration buffer_generation(BufferId buffer) const;
  // True when what the buffer serves was published from it, and so is summed here.
  bool publishes_own(BufferId buffer) const;
  // Why what the buffer published could not stay. OK: nothing was lost, or the next publish has
  // begun, or an unpublish has said it.
  absl::Status lost_publication(BufferId buffer) const;
  // True when the root of what the buffer holds is known here.
  bool has_root(BufferId buffer) const;
  // The version that is staged for a buffer. An empty sequence: none.
  VersionInfo staged_version(BufferId buffer) const;
  // OK when the buffer's memory may be exchanged for another now. FAILED_PRECONDITION, and why not.
  absl::Status CanRebind(BufferId buffer) const;
  // The work on a buffer in words, for errors: "update step-57: 12 of 40 segments, ...".
  std::string Describe(BufferId buffer) const;
  // The same for those who watch every step of a session, without making a text: see PhaseNames,
  // and whether somebody reads the buffer. Nothing of a buffer that does not exist.
  bool has_buffer(BufferId buffer) const;
  PhaseNames phases(BufferId buffer) const;
  bool is_read(BufferId buffer) const;

 private:
  struct Impl;
  struct EventHandler;  // one function an event
  std::unique_ptr<Impl> impl_;
};

}  // namespace th

#endif  // TH_WORKER_SESSION_WORKER_SESSION_H_
