// One worker's side of the protocol, pure: join, announce, retry, tokens, epoch changes, group
// commit, progress. The client drives it with real sockets, tests with a virtual clock.
//
//   WorkerSession session(options, limits);
//   session.Start(now);
//   for (;;) {                              // the driver; calls are serialised by its owner
//     <call Handle…(event, now) for whatever happened, or session.HandleTick(now)>
//     while (auto output = session.PollOutput()) std::visit(<do it>, *output);
//     <wait for the next event or session.NextDeadline()>
//   }
//
// The session owns each buffer's MutabilityContract. It does not own the fills: it says from whom
// (StartFill, SetSources, StopFill) and hears how it goes (HandleFill…).
//
// Not thread-safe. Every verb answers at once: a misuse is a status, the result comes as
// OperationDone.
#ifndef TH_WORKER_SESSION_WORKER_SESSION_H_
#define TH_WORKER_SESSION_WORKER_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/mutability_contract/mutability_contract.h"
#include "th/protocol/messages.h"
#include "th/weights/identifiers.h"
#include "th/weights/shard_layout.h"
#include "th/weights/version.h"
#include "th/worker_session/phase_names.h"
#include "th/worker_session/session_types.h"

namespace th {

class WorkerSession {
 public:
  WorkerSession(SessionOptions options, SessionLimits limits);
  ~WorkerSession();
  WorkerSession(const WorkerSession&) = delete;
  WorkerSession& operator=(const WorkerSession&) = delete;

  void Start(absl::Time now);
  // Ends cleanly: pending calls end CANCELLED, the server is told, readers end the segment under
  // way (for `grace` and SessionLimits::leave_grace at most), SessionEnded(OK) comes once.
  void Leave(absl::Time now, absl::Duration grace = absl::InfiniteDuration());
  // A notice: the server is told, gives this worker no reader who could have another source, and
  // moves those that it has; in `notice` the worker leaves as by Leave. Of several the earliest
  // counts. INVALID_ARGUMENT: not above zero, or beyond a day. FAILED_PRECONDITION: over.
  absl::Status Preempt(absl::Duration notice, absl::Time now);

  // ---- the caller's verbs. Errors: FAILED_PRECONDITION (verb in the wrong state, ended session),
  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED (a named limit).
  absl::StatusOr<BufferId> RegisterBuffer(std::string buffer_name, std::string form,
                                          std::shared_ptr<const ShardLayout> layout,
                                          absl::Time now);
  // ---- streaming receives. Each takes its ticket first, and then either registers a buffer,
  // begins an Update of it and ends it, or fails: the n-th receive of every rank of a group is one
  // operation, whatever it came to at each of them.
  StreamTicket BeginStream(absl::Time now);
  // A buffer that keeps nothing, for one Update that the driver streams to somebody: it is never
  // published and never a source, and is writable again when the update has ended. Of the shard it
  // receives the segments in `wanted`. ABORTED: the group counts anew since the ticket was taken.
  absl::StatusOr<BufferId> RegisterStreamBuffer(const StreamTicket& ticket, std::string form,
                                                std::shared_ptr<const ShardLayout> layout,
                                                const SegmentSet& wanted, absl::Time now);
  // There will be no buffer, and why: the receives of the other ranks end with it, at once. `why`
  // is an error.
  void FailStream(const StreamTicket& ticket, std::string form, const absl::Status& why,
                  absl::Time now);
  // The driver closes the fill by itself: no StopFill comes. An Update that is under way ends
  // with `why` (an error), for the other ranks too.
  void EndStream(BufferId buffer, const absl::Status& why, absl::Time now);
  // In every state; pending calls end CANCELLED, that of a fill that goes on after its StopFill.
  // The driver closes the buffer's readers by itself: no CutReaders come, and what it still reports
  // of the buffer is ignored.
  absl::Status UnregisterBuffer(BufferId buffer, absl::Time now);
  // The buffer is frozen and readable when this returns; OperationDone tells how it went for the
  // group.
  absl::Status Publish(CallId call, BufferId buffer, PublishRequest request, absl::Time now);
  absl::Status Unpublish(CallId call, BufferId buffer, UnpublishRequest request, absl::Time now);
  absl::Status Update(CallId call, BufferId buffer, UpdateRequest request, absl::Time now);
  // Receives a version beside what the buffer holds, into memory that the driver makes
  // (AllocateOffload). Returns the buffer of the copy, under which OperationDone comes.
  absl::StatusOr<BufferId> Stage(CallId call, BufferId buffer, UpdateRequest request,
                                 absl::Time now);
  // Updates the buffer to the version that is staged for it; the request's selector is not looked
  // at. OperationDone says "not available" never: what is gone by then is an error.
  absl::Status Apply(CallId call, BufferId buffer, UpdateRequest request, absl::Time now);
  void DiscardStaged(BufferId buffer, absl::Time now);
  // An empty sequence: none.
  VersionInfo staged_version(BufferId buffer) const;
  absl::Status Reset(BufferId buffer, absl::Time now);
  absl::Status CanRebind(BufferId buffer) const;
  absl::Status Command(CallId call, RunCommand command, absl::Time now);

  // ---- the control stream
  void HandleStreamOpen(absl::Time now);  // the first thing sent is the join
  void HandleStreamClosed(absl::Status why, absl::Time now);
  void HandleServerMessage(const ServerMessage& message, absl::Time now);

  // ---- the data plane: readers of our buffers
  // A reader asks to open a transfer; answered by AdmissionDecided.
  void HandleAdmission(TransferId transfer, BufferId buffer, const Capability& capability,
                       BufferGeneration generation, absl::Time now);
  void HandleReaderBytes(TransferId transfer, absl::Time now);
  void HandleReaderReleased(TransferId transfer, absl::Time now);

  // ---- the data plane: our fills
  void HandleFirstWrite(BufferId buffer, absl::Time now);
  void HandleFillProgress(BufferId buffer, FillReport report, absl::Time now);
  // All segments are received; the root may be missing still.
  void HandleAllReceived(BufferId buffer, absl::Time now);
  // What the fill has cost so far; to be called just before HandleFillComplete, for the server's
  // books.
  void HandleFillCost(BufferId buffer, FillCost cost);
  void HandleFillComplete(BufferId buffer, Digest root, absl::Time now);
  void HandleFillFailed(BufferId buffer, absl::Status why, absl::Time now);
  void HandleFillStopped(BufferId buffer, absl::Time now);
  void HandleSourceFailed(BufferId buffer, AssignmentId assignment, BufferAddress source,
                          SourceFailure failure, std::string detail, absl::Time now);
  // It sent a corrupt segment and stays in use. The server answers with a newer SetSources.
  void HandleSourceSuspected(BufferId buffer, AssignmentId assignment, BufferAddress source,
                             std::string detail, absl::Time now);

  // The answer to AllocateOffload: OK when `copy` has its memory and can be filled and read.
  void HandleOffloadAllocated(BufferId copy, absl::Status status, absl::Time now);

  void HandleSealed(BufferId buffer, VersionSequence version, BufferGeneration generation,
                    Digest root, absl::Time now);

  void HandleTick(absl::Time now);
  absl::Time NextDeadline() const;
  std::optional<SessionOutput> PollOutput();

  // ---- what is known
  bool joined() const;
  bool ended() const;
  absl::Status end_status() const;
  Epoch epoch() const;
  WorkerId worker() const;
  BufferState buffer_state(BufferId buffer) const;
  const VersionInfo& buffer_version(BufferId buffer) const;  // until the next event
  BufferGeneration buffer_generation(BufferId buffer) const;
  // What the worker is doing with a buffer, for errors: "update step-57: 12 of 40 segments, ...".
  std::string Describe(BufferId buffer) const;
  // The same for those who watch every step of a session, without making a text: see PhaseNames,
  // and whether somebody reads the buffer. Nothing of a buffer that does not exist.
  bool has_buffer(BufferId buffer) const;
  PhaseNames phases(BufferId buffer) const;
  bool is_read(BufferId buffer) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace th

#endif  // TH_WORKER_SESSION_WORKER_SESSION_H_
