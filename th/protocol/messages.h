// The messages between workers and the reference server, as plain values. th/wire converts them
// to and from protobuf in one place; the pure cores speak only these.
//
// One ordered stream a worker. The worker opens it with JoinRequest and hears Joined or Refused;
// then both send at will. Requests that name an operation are idempotent: after a reconnect the
// worker sends every unfinished one again and hears the first one's result. Durations cross the
// wire, times never do.
#ifndef TH_PROTOCOL_MESSAGES_H_
#define TH_PROTOCOL_MESSAGES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/buffer_role.h"
#include "th/protocol/capability.h"
#include "th/protocol/cost.h"
#include "th/protocol/event.h"
#include "th/protocol/membership_secret.h"
#include "th/protocol/root_receipt.h"
#include "th/topology/location.h"
#include "th/weights/digest.h"
#include "th/weights/segments.h"
#include "th/weights/shard_layout.h"
#include "th/weights/version.h"

namespace th {

// ---------------------------------------------------------------------------------------------
// Both ways

// First on every connection, control and data. A peer speaks the highest version that both know.
struct ProtocolHello {
  uint32_t min_version = 0;
  uint32_t max_version = 0;
  uint64_t features = 0;  // bits; unknown ones are ignored
  std::string software;   // for logs only
  friend bool operator==(const ProtocolHello&, const ProtocolHello&) = default;
};
inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr uint32_t kMinProtocolVersion = 1;
// The version to speak with `peer`. FAILED_PRECONDITION naming both ranges when none is shared.
absl::StatusOr<uint32_t> AgreeOnVersion(const ProtocolHello& own, const ProtocolHello& peer);

// An address at which a worker's buffers can be read. A host has several.
struct Endpoint {
  std::string address;            // "10.0.0.7:4711"
  std::string transport = "tcp";  // the fabric
  std::string site;               // reachable from there; empty: from everywhere
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// An operation of one replica's rank.
struct OperationKey {
  BufferId buffer;
  OperationNumber number;
  friend auto operator<=>(const OperationKey&, const OperationKey&) = default;
};

enum class OperationKind : uint8_t { kPublish = 1, kUnpublish = 2, kUpdate = 3 };
// "publish", "unpublish", "update", for people; "unknown" for a value that is none of them, as a
// peer may send it. Pure, thread-safe.
absl::string_view OperationKindName(OperationKind kind);

// How an operation went, the same for all ranks of the group.
enum class UpdateOutcome : uint8_t {
  kNone = 0,          // not an update
  kMoved = 1,         // every rank of the group holds the version now
  kAlreadyThere = 2,  // every rank held it before
  kNotAvailable = 3,  // buffers untouched; `not_available` says why
};
enum class NotAvailableReason : uint8_t {
  kNone = 0,
  kNotPublished = 1,  // no such version (yet)
  kGone = 2,          // known, but nobody holds it any more
  kLost = 3,          // known from before a restart of the server, and nobody announced it
  kWithdrawn = 4,     // a roll-back withdrew it
  kSeeding = 5,       // on its way into the caller's site; only where the caller asked to skip
  kBehindFloor = 6,   // what is there is older than the caller's floor
};

// The known sums of one shard of a version.
struct SealedShard {
  Digest layout;
  Digest root;
  friend bool operator==(const SealedShard&, const SealedShard&) = default;
};

// ---------------------------------------------------------------------------------------------
// Worker to server

// A worker's part of a version, reported after a (re)join so that a server without memory knows.
struct HeldVersion {
  VersionInfo version;
  bool complete = false;   // every segment received and checked (or published by this worker)
  bool publisher = false;  // published here, not received
  bool group_committed =
      false;                   // the operation that brought it here ended well for the whole group
  std::optional<Digest> root;  // when sealed (publisher) or agreed (receiver)
  SegmentSet segments;         // when not complete: what is checked
  // Where it is being filled from right now: edges that a new server adopts before it assigns.
  std::vector<BufferAddress> sources;
  // A server's word about the shard's root; a publisher may have summed something else. None:
  // it has said nothing, or does not give receipts.
  std::optional<RootReceipt> receipt = {};
  friend bool operator==(const HeldVersion&, const HeldVersion&) = default;
};

// The last operation that ended for a buffer, so that a new server can tell the other ranks.
struct FinishedOperation {
  OperationNumber number;
  OperationKind kind = OperationKind::kPublish;
  absl::Status status;
  UpdateOutcome outcome = UpdateOutcome::kNone;
  NotAvailableReason not_available = NotAvailableReason::kNone;
  VersionInfo version;
  // Unpublish, update with keep_retained: nothing of it has begun, and each rank still serves what
  // it served.
  //  - OK: the buffers are the last replica of `version`, which is retained. Each rank copies its
  //    shard into an offload buffer, then the group asks again under the next number.
  //  - An error of an unpublish: the buffers stay published and may be unpublished again, in either
  //    way. Some rank has no room for its copy or failed to make it, or the operation ended while
  //    it waited for room or for all ranks to ask, or its time was over while it waited for its
  //    turn. After an error without this flag the ranks drain all the same.
  //  - An error of an update: its status says all.
  bool must_offload = false;
  // Update, not available (kSeeding): each rank copies its shard of `version` into host memory in
  // the background, as the seed of its site, and its buffer stays as it is meanwhile.
  bool site_copy = false;
  friend bool operator==(const FinishedOperation&, const FinishedOperation&) = default;
};

struct AnnouncedBuffer {
  BufferId buffer;
  std::string buffer_name;
  std::string form;
  Digest layout;
  uint64_t bytes = 0;
  uint64_t segment_count = 0;
  BufferGeneration generation;
  std::optional<HeldVersion> held;  // readable by others right now
  std::optional<FinishedOperation> last_finished;
  BufferRole role = BufferRole::kPrimary;
  // kStaged: the name of the worker's buffer that is to move to what this one holds. Else empty.
  std::string staged_for;
  // This worker freed a buffer of the same name in this generation of its group, whose numbers it
  // may have used: the operations of this one are numbered in a later generation. It never changes
  // while the buffer is registered. 0: there was none.
  GroupGeneration counts_after;
  friend bool operator==(const AnnouncedBuffer&, const AnnouncedBuffer&) = default;
};

// An earlier membership of this rank that the worker still lives in: what the last Joined said of
// it.
struct ResumeClaim {
  WorkerId worker;
  Epoch epoch;
  GroupGeneration group_generation;
  Lineage lineage;
  ClusterId cluster;  // 0: of a server that did not say
  EpochId epoch_id;
  MembershipSecret secret;
  friend bool operator==(const ResumeClaim&, const ResumeClaim&) = default;
};

struct JoinRequest {
  ProtocolHello hello;
  ModelKey key;
  RankName name;
  uint32_t ranks = 0;  // of the group; every rank says the same
  Location location;
  std::vector<Endpoint> endpoints;
  bool spot = false;
  uint64_t offload_limit_bytes = 0;  // of host memory, for copies of retained versions
  std::string credentials;           // opaque; unused until authentication exists
  std::optional<ResumeClaim> resume;
  std::vector<AnnouncedBuffer> buffers;  // with resume: everything registered
  // It has a notice and leaves in so long (see Preempt). Infinite: it stays.
  absl::Duration leaves_in = absl::InfiniteDuration();
  friend bool operator==(const JoinRequest&, const JoinRequest&) = default;
};

// Answered by BufferRegistered, preceded by LayoutWanted when the server lacks the layout.
struct RegisterBuffer {
  AnnouncedBuffer buffer;
  friend bool operator==(const RegisterBuffer&, const RegisterBuffer&) = default;
};
struct LayoutUpload {
  ShardLayout layout;
  friend bool operator==(const LayoutUpload& a, const LayoutUpload& b) {
    return a.layout.digest() == b.layout.digest();
  }
};

// The effect of an unpublish or update when the buffer is of the last replica of a retained
// version.
enum class OnRetention : uint8_t {
  kDrop = 1,  // takes it away: the version is lost
  // Copies it to host memory first; without room it fails, and nothing was touched (an unpublish
  // without a server goes on).
  kOffload = 2,
};
inline constexpr absl::Duration kDefaultOffloadTimeout = absl::Seconds(60);
// The effect of an update while its version is on its way into the group's site, which nobody there
// holds whole. A group is in a site when all its ranks are; one that is in none waits.
//   kWait: it is filled as the bytes come.
//   kSkip: it ends as not available (kSeeding). With nobody to bring the version it does so itself.
//   kCopy: likewise, but brings it into host memory while the buffers are served as they are.
enum class WhenSeeding : uint8_t { kWait = 1, kSkip = 2, kCopy = 3 };
// "wait", "skip", "copy"; "unknown" for a value that is none of them. Pure, thread-safe, as is the
// next one.
absl::string_view WhenSeedingName(WhenSeeding when_seeding);
// INVALID_ARGUMENT naming the words that there are.
absl::StatusOr<WhenSeeding> ParseWhenSeeding(absl::string_view word);
// An operation is put off by so many copies at most: each time whoever else held the version has
// left it meanwhile.
inline constexpr uint32_t kMaxOffloadsOfOperation = 3;

// The start of this rank's part of a group operation; answered by OperationFinished in the end.
struct StartOperation {
  OperationKey key;
  OperationKind kind = OperationKind::kPublish;
  absl::Duration timeout;  // from the server's receipt to the end for all ranks
  // The worker's at the time of the call; 0: any. The server ignores a start of an older generation
  // (sent just before its GroupChanged was heard; the worker has ended it for itself).
  GroupGeneration group_generation;
  // publish
  // This rank's buffer's generation from here on, which readers check. Zero: as last told.
  BufferGeneration generation;
  VersionLabel label;
  Attributes attributes;
  // The version this is a derived form of (a holder publishes another form of what it received).
  std::optional<VersionSequence> derived_from;
  // Host memory that the publication is served from, a copy of what the caller may write meanwhile;
  // 0: it is served in place.
  uint64_t snapshot_bytes = 0;
  // unpublish, update: end with must_offload rather than take away the last replica of a retained
  // version. An unpublish then begins with OperationResolved.
  bool keep_retained = false;
  // update
  VersionSelector selector = LatestVersion{};
  VersionSequence floor;  // answer with nothing older than this
  WhenSeeding when_seeding = WhenSeeding::kWait;
  // update, sent again after a server restart: what the old server had resolved for this operation
  std::optional<VersionInfo> resolved;
  friend bool operator==(const StartOperation&, const StartOperation&) = default;
};

// update: this rank has drained its buffer and can take bytes (or needs none, being there already).
struct ReadyToFill {
  OperationKey key;
  BufferGeneration generation;
  friend bool operator==(const ReadyToFill&, const ReadyToFill&) = default;
};

// publish: the sums are done. Sent again after a re-join as HeldVersion::root.
struct ShardSealed {
  BufferId buffer;
  VersionSequence version;
  Digest root;
  friend bool operator==(const ShardSealed&, const ShardSealed&) = default;
};

// The bytes that one source gave a reader since the last report, and how long the reader had
// something asked of it meanwhile. A source that waits for its own counts as one that gives
// nothing: the server knows what that one receives.
struct SourceThroughput {
  BufferAddress source;
  uint64_t bytes = 0;  // of segments received and checked
  absl::Duration waited;
  friend bool operator==(const SourceThroughput&, const SourceThroughput&) = default;
};
inline constexpr size_t kMaxThroughputsReported = 4;  // of one FillProgress

// At most one a second and buffer, and at each end; the first once its throughputs say something.
struct FillProgress {
  OperationKey key;
  VersionSequence version;
  SegmentSet segments;  // received and checked
  std::vector<SourceThroughput> throughputs =
      {};  // of sources in use; at most kMaxThroughputsReported
  // The transports over which its sources are read so far, those that have given nothing yet
  // included. For people
  // alone: no decision hangs on it. Absent: as it was told last.
  std::optional<TransportsUsed> transports = std::nullopt;
  friend bool operator==(const FillProgress&, const FillProgress&) = default;
};

// update: this rank's shard is received, checked and agrees with the root. unpublish: this rank's
// buffer is drained (`readers_cut`: readers that did not let go by the deadline).
// publish: sent by nobody. `cost` is for people alone: no decision hangs on it.
struct RankDone {
  OperationKey key;
  uint32_t readers_cut = 0;
  RankCost cost;
  friend bool operator==(const RankDone&, const RankDone&) = default;
};

// This rank's part ended badly; ends the operation for the whole group, naming this rank.
struct RankFailed {
  OperationKey key;
  absl::Status status;
  bool buffer_undefined = false;
  friend bool operator==(const RankFailed&, const RankFailed&) = default;
};

// A source was lost, stalled, refused the reader or sent wrong bytes. The server excludes it for
// this fill and assigns another. The reader keeps what it has checked.
enum class SourceFailure : uint8_t {
  kConnect = 1,
  kClosed = 2,
  kStalled = 3,
  kRefused = 4,
  kCorrupt = 5,
  kGenerationChanged = 6,
};
struct SourceFailed {
  OperationKey key;
  AssignmentId assignment;
  BufferAddress source;
  SourceFailure failure = SourceFailure::kClosed;
  std::string detail;
  friend bool operator==(const SourceFailed&, const SourceFailed&) = default;
};

// A source sent wrong bytes and is kept for now: the segment is to be fetched again, from another
// source if there is one. Sent once a source and fill. Answered by AssignSources: others instead of
// it, or, when nobody else can serve, the same again; other readers get it only after all others
// for a while.
struct SourceSuspected {
  OperationKey key;
  AssignmentId assignment;
  BufferAddress source;
  std::string detail;
  friend bool operator==(const SourceSuspected&, const SourceSuspected&) = default;
};

// Reset or Rebind ended what the buffer held without an operation.
struct BufferReset {
  BufferId buffer;
  friend bool operator==(const BufferReset&, const BufferReset&) = default;
};
struct UnregisterBuffer {
  BufferId buffer;
  friend bool operator==(const UnregisterBuffer&, const UnregisterBuffer&) = default;
};

// Every other version after `to` is withdrawn. Answered by CommandFinished.
struct RollBack {
  VersionSelector to;
  friend bool operator==(const RollBack&, const RollBack&) = default;
};
// Keep the `keep_latest` newest complete versions (0: no policy) in a form; an empty form means
// every form without a policy of its own. Last writer wins. Durable.
struct SetRetention {
  uint32_t keep_latest = 0;
  std::string form = {};
  friend bool operator==(const SetRetention&, const SetRetention&) = default;
};
// An empty form: every form of the version. An owner may have a pin on each.
struct PinVersion {
  VersionSelector version;
  std::string owner;
  absl::Duration expires_after = absl::InfiniteDuration();
  std::string form = {};
  friend bool operator==(const PinVersion&, const PinVersion&) = default;
};
struct ReleasePin {  // the pin with exactly this form
  VersionSelector version;
  std::string owner;
  std::string form = {};
  friend bool operator==(const ReleasePin&, const ReleasePin&) = default;
};
// The server's record of the model goes: its versions, pins, policies and roll-backs. A version
// that is published under its name afterwards gets a higher sequence. Refused while the model has
// groups.
struct Forget {
  friend bool operator==(const Forget&, const Forget&) = default;
};
using Command = std::variant<RollBack, SetRetention, PinVersion, ReleasePin, Forget>;
// A mutating call that is no group operation. `idempotency_key`: 1 to 128 bytes, the caller's; a
// repeat within the model has the first one's result.
struct RunCommand {
  std::string idempotency_key;
  Command command;
  friend bool operator==(const RunCommand&, const RunCommand&) = default;
};

// Keeps the lease when there is nothing else to say.
struct Heartbeat {
  bool ask = false;  // the server answers with Alive at once
  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};
// A clean end: what this worker holds is gone for others.
struct Leave {
  friend bool operator==(const Leave&, const Leave&) = default;
};
// A notice: this worker leaves in `deadline`, as a spot machine does that is taken back. It gets no
// new reader and keeps only those who have nobody else.
struct Preempt {
  absl::Duration deadline;  // above zero; from the receipt on
  friend bool operator==(const Preempt&, const Preempt&) = default;
};

using WorkerMessage =
    std::variant<JoinRequest, RegisterBuffer, LayoutUpload, StartOperation, ReadyToFill,
                 ShardSealed, FillProgress, RankDone, RankFailed, SourceFailed, BufferReset,
                 UnregisterBuffer, RunCommand, Heartbeat, Leave, SourceSuspected, Preempt>;

// ---------------------------------------------------------------------------------------------
// Server to worker

struct Joined {
  ProtocolHello hello;
  Epoch epoch;
  WorkerId worker;
  GroupGeneration group_generation;
  Lineage lineage;
  CapabilityKey key;
  // The worker is dropped after this long without a message; see HeartbeatInterval in lease.h.
  absl::Duration lease;
  absl::Duration progress_interval;
  // The worker resumes with these (ResumeClaim).
  ClusterId cluster;
  EpochId epoch_id;
  MembershipSecret secret;
};

// The end of the stream, with the reason: a refused join, or a worker that was replaced (ABORTED),
// lost its lease or broke the protocol. Terminal unless `retry_after` is finite, or `epoch` is
// older than the one that the worker has lived in: such a server knows less than the worker.
struct Refused {
  absl::Status status;
  absl::Duration retry_after = absl::InfiniteDuration();
  Epoch epoch;           // the server's; 0: it did not say
  std::string redirect;  // "host:port" of the server to ask instead; empty: none
};

struct LayoutWanted {
  Digest layout;
};
struct BufferRegistered {
  BufferId buffer;
  absl::Status status;
};

// update: the version that the whole group moves to. The rank drains its buffer, says ReadyToFill
// and waits for AssignSources. Not sent when the outcome is known at once.
// unpublish with keep_retained: the leave to drain the buffer, without a version.
struct OperationResolved {
  OperationKey key;
  VersionInfo version;
  std::optional<Digest> root;               // of this rank's shard, when sealed
  EventId event;                            // names the operation in what is logged and told
  std::optional<RootReceipt> receipt = {};  // of `root`
};

struct AssignedSource {
  BufferAddress buffer;
  RankName name;
  std::vector<Endpoint> endpoints;
  BufferGeneration generation;
  Distance distance = Distance::kSameSite;
  bool partial = false;  // is itself still filling
  bool publisher = false;
  Capability capability;
  friend bool operator==(const AssignedSource&, const AssignedSource&) = default;
};

// Pull from these and from no other; replaces the assignment before it. `sources` empty: none is
// left right now, wait (the server assigns when one appears; the operation's deadline bounds it).
struct AssignSources {
  OperationKey key;
  AssignmentId assignment;
  VersionSequence version;
  std::vector<AssignedSource> sources;
  std::string why_empty;
  EventId event;
};

// The root of a shard became known (the publisher sealed it). Those who publish the shard hear it
// too, for the receipt.
struct RootKnown {
  VersionSequence version;
  SealedShard shard;
  std::optional<RootReceipt> receipt = {};  // of its root
};

// The result of an operation, the same for all ranks. After an error of an update each rank knows
// for itself whether its buffer is undefined.
struct OperationFinished {
  OperationKey key;
  OperationKind kind = OperationKind::kPublish;
  absl::Status status;
  UpdateOutcome outcome = UpdateOutcome::kNone;
  NotAvailableReason not_available = NotAvailableReason::kNone;
  VersionInfo version;
  Lineage lineage;            // publish and update: what the group knows from here on
  bool must_offload = false;  // see FinishedOperation
  bool site_copy = false;     // likewise
  EventId event;
};

// The version that this buffer published or staged cannot stay: its content differs from what the
// version is known to hold, a roll-back withdrew the version, or another rank of the group lost its
// part for good (UNAVAILABLE: it can be published again). The rank stops serving it and tells its
// caller.
struct PublicationRefused {
  BufferId buffer;
  VersionSequence version;
  absl::Status status;
};

// A rank of the group was replaced, has registered a buffer again, or lags: unfinished operations
// of the generation before have ended (each with its own OperationFinished, ABORTED) and numbering
// restarts from 1.
struct GroupChanged {
  GroupGeneration group_generation;
  RankName rank;
};

struct CommandFinished {
  std::string idempotency_key;
  absl::Status status;
  VersionInfo version;  // what a roll-back went to, what a pin holds
  Lineage lineage;
  friend bool operator==(const CommandFinished&, const CommandFinished&) = default;
};

// Nothing needs this offload buffer any more: others hold its version, it is not retained now, or
// the site that it seeds has it otherwise.
// The rank lets its readers go (within its drain time), unregisters it and frees its memory.
struct OffloadReleased {
  BufferId buffer;
};

// The answer to a heartbeat that asks: nothing but that the server is there.
struct Alive {};

using ServerMessage =
    std::variant<Joined, Refused, LayoutWanted, BufferRegistered, OperationResolved, AssignSources,
                 RootKnown, OperationFinished, PublicationRefused, GroupChanged, CommandFinished,
                 OffloadReleased, Alive>;

}  // namespace th

#endif  // TH_PROTOCOL_MESSAGES_H_
