// The input of a worker session: everything that happens to it, as plain values. The twin of
// SessionOutput. A list of events with their times is a trace: fed to a fresh session with the same
// options it brings the same answers and outputs.
//
//   const SessionAnswer answer =
//       session.Handle(event::Publish{call, buffer, {.label = label}}, now);
//   session.Handle(event::FirstWrite{buffer}, now);
#ifndef TH_WORKER_SESSION_SESSION_EVENTS_H_
#define TH_WORKER_SESSION_SESSION_EVENTS_H_

#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/messages.h"
#include "th/weights/digest.h"
#include "th/weights/segments.h"
#include "th/weights/shard_layout.h"
#include "th/worker_session/session_types.h"

namespace th {

namespace event {

// ---- the membership

struct Start {};
// Ends cleanly: pending calls end CANCELLED, the server is told, readers end the segment under way
// (for `grace` and SessionLimits::leave_grace at most), SessionEnded(OK) comes once.
struct Leave {
  absl::Duration grace = absl::InfiniteDuration();
};
// A notice: the server is told, gives this worker no reader who could have another source, and
// moves those that it has; in `notice` the worker leaves as by Leave. Of several the earliest
// counts. INVALID_ARGUMENT: not above zero, or beyond a day. FAILED_PRECONDITION: over.
struct Preempt {
  absl::Duration notice;
};

// ---- the caller's verbs. Errors: FAILED_PRECONDITION (verb in the wrong state, ended session),
// INVALID_ARGUMENT, RESOURCE_EXHAUSTED (a named limit). A verb that is refused changes nothing.

// Answered with the buffer.
struct RegisterBuffer {
  std::string name;
  std::string form;
  std::shared_ptr<const ShardLayout> layout;
};
// In every state; pending calls end CANCELLED, that of a fill that goes on after its StopFill.
// The driver closes the buffer's readers by itself: no CutReaders come, and what it still reports
// of the buffer is ignored.
struct UnregisterBuffer {
  BufferId buffer;
};
// The buffer is frozen and readable when this is answered; OperationDone tells how it went for the
// group.
struct Publish {
  CallId call;
  BufferId buffer;
  PublishRequest request;
};
struct Unpublish {
  CallId call;
  BufferId buffer;
  UnpublishRequest request;
};
struct Update {
  CallId call;
  BufferId buffer;
  UpdateRequest request;
};
// Receives a version beside what `buffer` holds, into memory that the driver makes
// (AllocateOffload). Answered with the buffer of the copy, under which OperationDone comes.
struct Stage {
  CallId call;
  BufferId buffer;
  UpdateRequest request;
};
// Updates the buffer to the version that is staged for it; the request's selector is not looked
// at. OperationDone says "not available" never: what is gone by then is an error.
struct Apply {
  CallId call;
  BufferId buffer;
  UpdateRequest request;
};
// Never refused.
struct DiscardStaged {
  BufferId buffer;
};
// The Update, Stage or Apply of the buffer that is under way ends CANCELLED, as one that has failed
// here: for the other ranks too. What was staged before stays. Never refused.
struct CancelUpdate {
  BufferId buffer;
};
struct Reset {
  BufferId buffer;
};
struct Command {
  CallId call;
  RunCommand command;
};

// ---- streaming receives. Each takes its ticket first, and then either registers a buffer, begins
// an Update of it and ends it, or fails: the n-th receive of every rank of a group is one
// operation, whatever it came to at each of them.

// Answered with the ticket; never refused.
struct BeginStream {};
// A buffer that keeps nothing, for one Update that the driver streams to somebody: it is never
// published and never a source, and is writable again when the update has ended. Of the shard it
// receives the segments in `wanted`. Answered with the buffer. ABORTED: the group counts anew since
// the ticket was taken.
struct RegisterStreamBuffer {
  StreamTicket ticket;
  std::string form;
  std::shared_ptr<const ShardLayout> layout;
  SegmentSet wanted;
};
// There will be no buffer, and why: the receives of the other ranks end with it, at once. `why`
// is an error. Never refused.
struct FailStream {
  StreamTicket ticket;
  std::string form;
  absl::Status why;
};
// The driver closes the fill by itself: no StopFill comes. An Update that is under way ends
// with `why` (an error), for the other ranks too. Never refused.
struct EndStream {
  BufferId buffer;
  absl::Status why;
};

// ---- the control stream

struct StreamOpened {};  // the first thing sent is the join
struct StreamClosed {
  absl::Status why;
};
struct ServerSaid {
  ServerMessage message;
};

// ---- the data plane: readers of our buffers

// A reader asks to open a transfer. AdmissionDecided follows, now or later.
struct AdmissionAsked {
  TransferId transfer;
  BufferId buffer;
  Capability capability;
  BufferGeneration generation;
};
struct ReaderBytesMoved {
  TransferId transfer;
};
struct ReaderReleased {
  TransferId transfer;
};

// ---- the data plane: our fills

struct FirstWrite {
  BufferId buffer;
};
struct FillProgressed {
  BufferId buffer;
  FillReport report;
};
// All segments are received; the root may be missing still.
struct AllReceived {
  BufferId buffer;
};
struct FillCompleted {
  BufferId buffer;
  Digest root;
  FillCost cost = {};  // of the whole fill, for the server's books
};
struct FillFailed {
  BufferId buffer;
  absl::Status why;
};
struct FillStopped {
  BufferId buffer;
};
struct SourceFailed {
  BufferId buffer;
  AssignmentId assignment;
  BufferAddress source;
  SourceFailure failure;
  std::string detail;
  Endpoint endpoint = {.address = "", .transport = ""};  // where it was read; empty: nowhere
};
// It sent a corrupt segment and stays in use. The server answers with a newer SetSources.
struct SourceSuspected {
  BufferId buffer;
  AssignmentId assignment;
  BufferAddress source;
  std::string detail;
};

// ---- memory, sums, time

// The end of AllocateOffload. OK: `copy` has its memory and can be filled and read.
struct OffloadAllocated {
  BufferId copy;
  absl::Status status;
};
// The end of StartSealing.
struct Sealed {
  BufferId buffer;
  VersionSequence version;
  BufferGeneration generation;
  Digest root;
};
struct Tick {};  // at NextDeadline, or whenever

}  // namespace event

using SessionEvent = std::variant<
    event::Start, event::Leave, event::Preempt, event::RegisterBuffer, event::UnregisterBuffer,
    event::Publish, event::Unpublish, event::Update, event::Stage, event::Apply,
    event::DiscardStaged, event::CancelUpdate, event::Reset, event::Command, event::BeginStream,
    event::RegisterStreamBuffer, event::FailStream, event::EndStream, event::StreamOpened,
    event::StreamClosed, event::ServerSaid, event::AdmissionAsked, event::ReaderBytesMoved,
    event::ReaderReleased, event::FirstWrite, event::FillProgressed, event::AllReceived,
    event::FillCompleted, event::FillFailed, event::FillStopped, event::SourceFailed,
    event::SourceSuspected, event::OffloadAllocated, event::Sealed, event::Tick>;

// The immediate answer to an event. The end of a call comes later, as an output.
struct SessionAnswer {
  absl::Status status;  // OK, or why a verb is refused
  BufferId buffer;      // the new one: of RegisterBuffer, RegisterStreamBuffer, Stage
  StreamTicket ticket;  // of BeginStream
  friend bool operator==(const SessionAnswer&, const SessionAnswer&) = default;
};

}  // namespace th

#endif  // TH_WORKER_SESSION_SESSION_EVENTS_H_
