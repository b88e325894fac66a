// The options of a worker session and its output, as plain values: options, limits, requests of the
// caller, and the outputs that the driver carries out. The input is in session_events.h.
#ifndef TH_WORKER_SESSION_SESSION_TYPES_H_
#define TH_WORKER_SESSION_SESSION_TYPES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/mutability_contract/mutability_contract.h"
#include "th/protocol/messages.h"
#include "th/topology/location.h"
#include "th/weights/digest.h"
#include "th/weights/segments.h"
#include "th/weights/shard_layout.h"
#include "th/weights/version.h"

namespace th {

struct SessionOptions {
  ModelKey key;
  RankName name;
  uint32_t ranks = 1;
  Location location;
  std::vector<Endpoint> endpoints;
  bool spot = false;
  // Host memory for copies of retained versions whose last replica would go, and of versions
  // that seed the rank's site (WhenSeeding::kCopy). 0: none. Such a replica can only be dropped
  // then, and the rank's group seeds by filling its own buffers.
  uint64_t offload_limit_bytes = 0;
  std::string credentials;
  std::string software;
};

struct SessionLimits {
  absl::Duration join_timeout = absl::Seconds(10);  // from Start to Joined, retries included
  absl::Duration reconnect_first = absl::Milliseconds(50);
  absl::Duration reconnect_max = absl::Seconds(1);  // exponential from first to max
  absl::Duration drain_timeout = absl::Seconds(5);  // of an in-place update, unless told otherwise
  // A worker that leaves lets its readers end the segment under way for so long.
  absl::Duration leave_grace = absl::Milliseconds(500);
  uint32_t max_buffers = 64;
  uint32_t max_pending_operations = 1024;  // of one worker
};

// A number for one call of the caller's, from the driver; results come back under it.
using CallId = StrongInt<struct CallIdTag>;

struct PublishRequest {
  VersionLabel label;
  Attributes attributes;
  absl::Duration timeout = absl::Seconds(60);
  std::optional<VersionSequence> derived_from;
  uint64_t snapshot_bytes = 0;  // of host memory that it is served from; 0: in place
};
struct UpdateRequest {
  VersionSelector selector = LatestVersion{};
  VersionSequence floor;
  absl::Duration timeout = absl::Seconds(600);
  absl::Duration drain_timeout = absl::Seconds(5);
  OnRetention on_retention = OnRetention::kDrop;
  absl::Duration offload_timeout = kDefaultOffloadTimeout;  // of a copy, beside `timeout`
  // A copy that kCopy begins has `timeout`, and goes on after the update that began it has ended.
  WhenSeeding when_seeding = WhenSeeding::kWait;
};
struct UnpublishRequest {
  absl::Duration drain_timeout = absl::Seconds(5);
  absl::Duration timeout = absl::Seconds(60);
  OnRetention on_retention = OnRetention::kDrop;
  absl::Duration offload_timeout = kDefaultOffloadTimeout;
};

// How far one fill is; from the driver with each FillProgressed.
struct FillReport {
  SegmentSet held;
  uint64_t bytes_held = 0;
  std::vector<SourceThroughput> throughputs = {};  // of the sources in use, since each was opened
  TransportsUsed transports = {};                  // of all that are in use or have given bytes
};

// ---------------------------------------------------------------------------------------------
// Outputs: what the driver does.

// StreamOpened or StreamClosed follows.
struct OpenStream {
  friend bool operator==(const OpenStream&, const OpenStream&) = default;
};
struct CloseStream {
  friend bool operator==(const CloseStream&, const CloseStream&) = default;
};
struct SendToServer {
  WorkerMessage message;
  friend bool operator==(const SendToServer&, const SendToServer&) = default;
};
struct SessionJoined {
  bool first;
  Epoch epoch;
  friend bool operator==(const SessionJoined&, const SessionJoined&) = default;
};
struct SessionEnded {
  absl::Status status;
  friend bool operator==(const SessionEnded&, const SessionEnded&) = default;
};  // terminal: refused, replaced, left, or no server in time

// The place of one streaming receive among those of its rank, which it takes before anything can
// fail: the ranks of a group have the same number of theirs in common.
struct StreamTicket {
  GroupGeneration generation;  // of the group that counted it
  uint64_t number = 0;         // from 1
  friend bool operator==(const StreamTicket&, const StreamTicket&) = default;
};

// Begin to fill `buffer` with `version`: keep what `resume` says is held already (checked before).
// `root` when known. Bytes go straight into the buffer.
struct StartFill {
  BufferId buffer;
  OperationKey operation;
  VersionInfo version;
  BufferGeneration generation;
  SegmentSet resume;
  std::optional<Digest> root;
  // The buffer was published until this update: it holds the whole of that content still, and
  // nobody may have written it since.
  bool was_published = false;
  friend bool operator==(const StartFill&, const StartFill&) = default;
};
// Pull from exactly these from now on; transfers from sources not listed are closed.
struct SetSources {
  BufferId buffer;
  OperationKey operation;
  AssignmentId assignment;
  std::vector<AssignedSource> sources;
  friend bool operator==(const SetSources&, const SetSources&) = default;
};
struct SetRoot {
  BufferId buffer;
  VersionSequence version;
  Digest root;
  friend bool operator==(const SetRoot&, const SetRoot&) = default;
};
// The fill ends: close its transfers; nothing is written into the buffer once the driver has
// answered with FillStopped.
struct StopFill {
  BufferId buffer;
  OperationKey operation;
  friend bool operator==(const StopFill&, const StopFill&) = default;
};

// Sum the buffer's segments in the background, then Sealed. Asked at each publish.
struct StartSealing {
  BufferId buffer;
  VersionSequence version;
  BufferGeneration generation;
  friend bool operator==(const StartSealing&, const StartSealing&) = default;
};
// Transfers of readers to be closed now; the driver answers each with ReaderReleased.
struct CutReaders {
  BufferId buffer;
  std::vector<TransferId> transfers;
  friend bool operator==(const CutReaders&, const CutReaders&) = default;
};
// Transfers of readers to be ended where the segment under way ends: this worker leaves. Nothing
// more is sent of what they have asked for; the driver answers each with ReaderReleased as it
// ends.
struct FinishReaders {
  std::vector<TransferId> transfers;
  friend bool operator==(const FinishReaders&, const FinishReaders&) = default;
};
// Serving rules of a buffer changed: what the data plane may admit and serve from here on.
struct ServingChanged {
  BufferId buffer;
  BufferState state;
  VersionSequence version;
  BufferGeneration generation;
  friend bool operator==(const ServingChanged&, const ServingChanged&) = default;
};
// The answer to AdmissionAsked.
struct AdmissionDecided {
  TransferId transfer;
  absl::Status status;
  BufferGeneration generation;
  friend bool operator==(const AdmissionDecided&, const AdmissionDecided&) = default;
};

// Make host memory for `copy`, a buffer with this layout that the session has registered itself (an
// offload, or with `staged` a version that the caller has asked to stage), and answer with
// OffloadAllocated. It is a buffer like any other from then on.
struct AllocateOffload {
  BufferId copy;
  std::string name;  // all ranks of the group give it this one
  std::shared_ptr<const ShardLayout> layout;
  bool staged = false;
  friend bool operator==(const AllocateOffload&, const AllocateOffload&) = default;
};
// Free the memory of `copy`: the session unregisters it (see event::UnregisterBuffer), or stages
// nothing in it any more and may ask anew. Not said where no memory could be made.
struct FreeOffload {
  BufferId copy;
  friend bool operator==(const FreeOffload&, const FreeOffload&) = default;
};

struct BufferReady {
  BufferId buffer;
  absl::Status status;
  friend bool operator==(const BufferReady&, const BufferReady&) = default;
};  // registered with the server, or refused

// The end of a publish, unpublish, update. Exactly one a call.
struct OperationDone {
  CallId call;
  BufferId buffer;
  OperationKind kind;
  absl::Status status;
  UpdateOutcome outcome = UpdateOutcome::kNone;
  NotAvailableReason not_available = NotAvailableReason::kNone;
  VersionInfo version;
  bool buffer_undefined = false;
  uint32_t readers_cut = 0;
  EventId event;  // the server's name of the operation; empty: it never answered
  // Phases of this rank.
  absl::Duration resolve;   // until the version was known
  absl::Duration queue;     // until the first source was assigned, drain included
  absl::Duration transfer;  // until all segments were there
  absl::Duration verify;    // until the root agreed
  absl::Duration apply;     // until the group's result
  friend bool operator==(const OperationDone&, const OperationDone&) = default;
};
struct CommandDone {
  CallId call;
  CommandFinished finished;
  friend bool operator==(const CommandDone&, const CommandDone&) = default;
};
// A publication of the past cannot stay (other content, rolled back); told to the caller at the
// next verb.
struct PublicationLost {
  BufferId buffer;
  VersionSequence version;
  absl::Status status;
  friend bool operator==(const PublicationLost&, const PublicationLost&) = default;
};

using SessionOutput =
    std::variant<OpenStream, CloseStream, SendToServer, SessionJoined, SessionEnded, StartFill,
                 SetSources, SetRoot, StopFill, StartSealing, CutReaders, FinishReaders,
                 ServingChanged, AdmissionDecided, AllocateOffload, FreeOffload, BufferReady,
                 OperationDone, CommandDone, PublicationLost>;

}  // namespace th

#endif  // TH_WORKER_SESSION_SESSION_TYPES_H_
