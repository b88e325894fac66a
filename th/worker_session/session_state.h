// All that one worker's side of the protocol remembers, as plain data. The other files of this
// package are the rules about it, one file an entity; worker_session.cc drives them.
//
// Level-triggered: an event changes this state, then Pump (operations.h) takes every step that the
// state now allows. So the order in which the server's word, the drain's end and the fill's end
// arrive makes no difference.
#ifndef TH_WORKER_SESSION_SESSION_STATE_H_
#define TH_WORKER_SESSION_SESSION_STATE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/mutability_contract/mutability_contract.h"
#include "th/protocol/freed_names.h"
#include "th/protocol/messages.h"
#include "th/weights/shard_layout.h"
#include "th/worker_session/error_text.h"
#include "th/worker_session/session_types.h"

namespace th::session {

// ---- named limits

// An operation that nobody ended is ended here this long after its own timeout.
inline constexpr absl::Duration kOperationGrace = absl::Seconds(2);
inline constexpr absl::Duration kMaxOperationTimeout = absl::Hours(24);
// An unpublish waits for a server that is away no longer than this: neither for permission to
// drain, nor for the end once it has drained.
inline constexpr absl::Duration kServerAway = absl::Seconds(1);
// While an unpublish waits for the server: after how long without a word it is asked for one, and
// how long it has for its answer. Both and the drain lie within the 3 s in which a trainer has its
// buffer back.
inline constexpr absl::Duration kAskAfter = absl::Milliseconds(500);
inline constexpr absl::Duration kAnswerTimeout = absl::Seconds(1);
// A stream that has not opened, or a join that was not answered, is given up after this long.
inline constexpr absl::Duration kJoinAnswerTimeout = absl::Seconds(5);
// Leases outside of this range are taken as its nearer end.
inline constexpr absl::Duration kMinLease = absl::Milliseconds(30);
inline constexpr absl::Duration kMaxLease = absl::Hours(1);
inline constexpr absl::Duration kMinProgressInterval = absl::Milliseconds(100);
inline constexpr absl::Duration kMaxProgressInterval = absl::Minutes(1);
// A reader may arrive a moment before the server has told us the version's name.
inline constexpr absl::Duration kHoldAdmission = absl::Seconds(1);
inline constexpr size_t kMaxHeldAdmissions = 256;
// Operations of one buffer that the caller may have begun and not seen the end of.
// Also how many the server is told of and has not ended (it queues no more).
inline constexpr size_t kMaxOperationsAhead = 8;
// Operations of one buffer that ended here while the server was away and that it has to hear of: a
// trainer goes on for so many verbs without one.
inline constexpr size_t kMaxOperationsUnsent = 2560;
// The limit on the attributes of each of these.
inline constexpr size_t kMaxAttributesUnsent = 1024;
// The limit on passes over a buffer's operations in one event. Each operation
// goes through at most ten changes (verdict, end, drain, phases), so eight of them never need more.
inline constexpr int kMaxPumpPasses = 96;
inline constexpr size_t kMaxPendingCommands = 64;
// The longest notice that a worker may give of its leaving.
inline constexpr absl::Duration kMaxNotice = absl::Hours(24);
inline constexpr absl::Duration kCommandTimeout = absl::Seconds(60);
// The limit on steps of one copy in host memory in one event: held, told to who waits, releasing,
// idle, removed.
inline constexpr int kMaxCopySteps = 5;
// The limit on failed sources of one update that are kept for the error, and told again after a
// reconnect.
inline constexpr size_t kMaxFailedSourcesKept = 16;
// Buffers of streaming readers that have ended, by which ranks that come late hear how. A rank that
// is further behind than this waits for its time.
inline constexpr size_t kMaxStreamsKept = 4;
// The bytes that the FillProgress messages of one update may take on the wire, out of the 64 KiB
// that a rank may say in an update. From half of it on the pauses between them grow as what is left
// shrinks.
inline constexpr uint64_t kMaxProgressBytes = uint64_t{32} << 10;
inline constexpr uint64_t kProgressBytesPerSecond = 64;  // about a message a second
// From the first sources of an update to its first progress: long enough for a throughput to mean
// something, short enough to leave a slow source early.
inline constexpr absl::Duration kFirstProgress = absl::Milliseconds(250);
inline constexpr absl::Duration kProgressRetry = absl::Minutes(1);  // where it does not fit now
// Sources of one assignment that are looked at.
inline constexpr size_t kMaxSourcesOfAssignment = 64;

// ---- the stream and the membership

enum class LinkState : uint8_t {
  kIdle,     // before Start
  kOpening,  // OpenStream was asked
  kJoining,  // the join is sent
  kJoined,
  kBackoff,  // until retry_at
  kEnding,   // no stream any more; pending calls are being ended
  kEnded,
};

struct Link {
  LinkState state = LinkState::kIdle;
  bool ever_joined = false;
  absl::Time join_deadline = absl::InfiniteFuture();    // of the first join, retries included
  absl::Time answer_deadline = absl::InfiniteFuture();  // of this attempt
  absl::Time retry_at = absl::InfiniteFuture();
  absl::Time last_sent;
  absl::Time heard_at = absl::InfinitePast();  // the server's last message
  // Its question that has no answer yet; see server_silence.h.
  absl::Time asked_at = absl::InfinitePast();
  absl::Time broken_since = absl::InfiniteFuture();  // while not joined
  uint32_t failed_attempts = 0;
  absl::Status last_failure;
  // The changes since the join was sent, to be reported when it is answered.
  std::vector<BufferId> unregistered_since;  // of the buffers that it announced
  bool notice_since = false;
};

struct Membership {
  Epoch epoch;
  WorkerId worker;  // another one when a server without the old one's state takes it back
  GroupGeneration group_generation;
  Lineage lineage;
  CapabilityKey key;
  ClusterId cluster;
  EpochId epoch_id;
  MembershipSecret secret;
  absl::Duration lease = kMaxLease;
  absl::Duration progress_interval = absl::Seconds(1);
};

// ---- operations

// How an operation ended, before the buffer has come to rest.
struct Verdict {
  absl::Status status;
  std::optional<ErrorCode> code;  // else the status and the kind give it
  UpdateOutcome outcome = UpdateOutcome::kNone;
  NotAvailableReason not_available = NotAvailableReason::kNone;
  VersionInfo version;
  bool server_knows = false;  // else the server has to hear it from us
  bool must_offload = false;  // see FinishedOperation
  bool site_copy = false;     // see FinishedOperation
};

enum class UpdatePhase : uint8_t {
  kAsked,      // the version is not known yet
  kBeginning,  // known; an earlier drain, or a copy whose memory it needs, has to end first
  kDraining,   // this update's own drain
  kFilling,
  kShardDone,  // received, checked; waits for the group
  kHolding,    // had the version before; waits for the group
  kStopping,   // the fill is being stopped
};

// The state of the buffer before an update, for a fill that ends without having written.
struct BeforeUpdate {
  VersionInfo version;
  bool publisher = false;
  bool group_committed = false;
  bool published = false;
  bool undefined = false;
  std::optional<Digest> root;
  SegmentSet held;
};

// The version that has to be copied before an operation takes it away: where a server asks for it,
// or nobody can say who else holds it.
struct CopyFirst {
  std::optional<VersionInfo> wanted;  // until the copy has begun
  BufferId copy;                      // then, until it is held or has failed; 0: none
  absl::Duration timeout;
  uint32_t tries = 0;
  // The caller has cancelled the update. The copy goes on, as the other ranks wait for the whole
  // group's copies and nobody else may hold the version; the update ends CANCELLED with the copy.
  bool cancelled = false;

  bool waits() const { return wanted.has_value() || copy != BufferId(); }
};

struct PublishOperation {
  BufferGeneration published_under;  // what names this publication of the buffer
  // True once another server has taken this worker back since the publish began. That server does
  // not know that this rank holds the version.
  bool outlived_server = false;
};

enum class UnpublishPhase : uint8_t {
  kAsked,    // waits for the server's leave to drain
  kCopying,  // the server wants the version copied first
  // It copies before it drains though no server asked it to: none is there, or one has told an end
  // that this rank had no part in.
  kCopyingAlone,
  kMayDrain,  // the server has given leave
  kDraining,
  kDrained,
};

struct UnpublishOperation {
  UnpublishPhase phase = UnpublishPhase::kAsked;
  absl::Duration drain_timeout;
  CopyFirst copy;
  // The result of the drain, once it has ended.
  VersionInfo took_away;  // what the buffer held
  uint32_t readers_cut = 0;
};

struct UpdateOperation {
  UpdatePhase phase = UpdatePhase::kAsked;
  CopyFirst copy;                      // while it is asked
  std::optional<VersionInfo> applies;  // the staged version that it moves in
  // A streaming reader's: the server hears of its failure alone (see FailStream).
  bool failed_unstarted = false;
  std::optional<VersionInfo> resolved;
  std::optional<Digest> resolved_root;
  absl::Duration drain_timeout;
  std::optional<AssignSources> held_assignment;  // came before the buffer was drained
  AssignmentId assignment;
  std::map<BufferAddress, AssignedSource> sources;  // of the current assignment
  std::string why_no_source;
  std::vector<FailedSource> failed_sources;
  std::vector<SourceFailed> unsent_failures;  // happened without a server
  BeforeUpdate before;
  bool fill_began = false;
  bool wrote = false;
  bool fill_stopped = false;
  uint64_t bytes_held = 0;
  absl::Time next_progress = absl::InfinitePast();
  bool progress_waits = false;
  std::vector<SourceThroughput>
      throughputs;  // as the driver reported them last: since each was opened
  std::vector<SourceThroughput> throughputs_sent;  // the same when progress was told last
  TransportsUsed transports;                       // as the driver reported them last
  TransportsUsed transports_sent;                  // to this server
  uint64_t progress_bytes = 0;                     // that the progress told so far has cost
  absl::Time resolved_at = absl::InfiniteFuture();
  absl::Time sourced_at = absl::InfiniteFuture();
  absl::Time received_at = absl::InfiniteFuture();
  absl::Time done_at = absl::InfiniteFuture();
};

struct Operation {
  OperationKey key;
  CallId call;
  StartOperation start;  // as it was asked
  absl::Time started;
  absl::Time timeout_at;
  std::optional<Verdict> verdict;
  bool detached = false;    // the caller has its result; kept until the server has heard it
  bool orphaned = false;    // of an older numbering: the server knows nothing of it
  bool start_sent = false;  // its start, in this membership
  bool failure_sent = false;
  EventId event;  // the newest that a server gave it
  RankCost cost;  // as RankDone tells it
  std::variant<PublishOperation, UnpublishOperation, UpdateOperation> part;  // by its kind

  OperationKind kind() const { return start.kind; }
  absl::Time local_deadline() const { return timeout_at + kOperationGrace; }
  // The part of an operation that is of this kind.
  PublishOperation& publish() { return std::get<PublishOperation>(part); }
  const PublishOperation& publish() const { return std::get<PublishOperation>(part); }
  UnpublishOperation& unpublish() { return std::get<UnpublishOperation>(part); }
  const UnpublishOperation& unpublish() const { return std::get<UnpublishOperation>(part); }
  UpdateOperation& update() { return std::get<UpdateOperation>(part); }
  const UpdateOperation& update() const { return std::get<UpdateOperation>(part); }
  // The part of any operation; null when it is of another kind.
  const UnpublishOperation* if_unpublish() const { return std::get_if<UnpublishOperation>(&part); }
  const UpdateOperation* if_update() const { return std::get_if<UpdateOperation>(&part); }
};

// ---- buffers

struct Buffer {
  BufferId id;
  std::string name;
  std::string form;
  std::shared_ptr<const ShardLayout> layout;  // shared with the client's data plane; immutable
  BufferRole role = BufferRole::kPrimary;     // see State::host_copies
  std::string staged_for;                     // kStaged: the original's name
  SegmentSet unwanted;                        // kStreaming: what it does not receive
  GroupGeneration received_in;                // kStreaming: whose n-th receive it is of
  GroupGeneration counts_after;               // see AnnouncedBuffer
  MutabilityContract contract;
  bool announced = false;       // told to the server on this stream
  bool registered = false;      // and answered: it may be spoken of
  bool announce_again = false;  // something changed before it was answered
  bool ready_reported = false;  // BufferReady was given out
  absl::Status refused;         // the server's refusal of the buffer

  VersionInfo version;  // what the contract's version stands for; its label alone until named
  bool publisher = false;
  bool group_committed = false;
  std::optional<Digest> root;
  // The server's receipts of the roots of the version that the buffer has and of the one that it
  // moves to.
  std::map<VersionSequence, RootReceipt> receipts;
  SegmentSet held;                  // filling and undefined: what is checked
  bool read_since_publish = false;  // somebody needs this publisher's sums
  absl::Time seal_by;               // how long a drain waits for them
  uint32_t drain_cut = 0;           // readers that the latest drain cut

  // A publication that could not stay, until an unpublish has told it.
  std::optional<absl::Status> lost;

  OperationNumber next_number{1};
  std::list<Operation> operations;  // in order of their numbers; references stay valid
  std::optional<FinishedOperation> last_finished;
  std::optional<ServingChanged> serving_reported;
};

// ---- copies in host memory; host_copy.h has their steps

enum class CopyPhase : uint8_t {
  kIdle,       // holds nothing: waits for its first memory, or for the next Stage
  kFilling,    // its update is under way
  kHeld,       // holds the version, and is a source of it
  kOver,       // its update has ended and left nothing of use
  kReleasing,  // until its readers have detached and its memory is free
};
enum class CopyMemory : uint8_t {
  kNone,
  kAsked,
  kRefused,  // of a kept copy, until its buffer is registered and the other ranks can be told
  kThere,
};

// The part that only a kept copy has: one that is made before an operation takes the version away,
// or to seed the site. It is filled once, then served until it is released.
struct KeptCopy {
  absl::Duration timeout;      // of its update
  GroupGeneration generation;  // that it was begun in
  bool given_up = false;       // before it was held: nobody waits for it any more
  bool made_alone = false;     // without the server, which has promised its memory to none
  absl::Status failed;         // why it came to nothing, or is about to
  absl::Time begins_by;        // kRefused: even if the registration is unanswered
};

// The part that only a staged copy has. It is filled by each Stage, as long as its original is
// registered.
struct StagedCopy {
  BufferId original;  // may be gone
  absl::Status lost;  // why what was staged could not stay, until another Stage
};

struct HostCopy {
  VersionInfo version;  // of a kept copy: what it is made of; of a staged one: what it holds
  CopyPhase phase = CopyPhase::kIdle;
  CopyMemory memory = CopyMemory::kNone;
  // The server (of a kept copy: maybe before this rank knew that it is held) or the caller does not
  // need it any more.
  bool release_wanted = false;
  std::variant<KeptCopy, StagedCopy> part;  // by its buffer's role; never changes its kind

  // Null: it is of the other kind.
  KeptCopy* kept() { return std::get_if<KeptCopy>(&part); }
  const KeptCopy* kept() const { return std::get_if<KeptCopy>(&part); }
  StagedCopy* staged() { return std::get_if<StagedCopy>(&part); }
  const StagedCopy* staged() const { return std::get_if<StagedCopy>(&part); }
};

// The server's word that this rank copies its shard, to seed its site.
struct SiteCopyWanted {
  BufferId original;
  OperationNumber number;  // of the update that was answered so
  VersionInfo version;
  absl::Duration timeout;
};

struct HeldAdmission {
  TransferId transfer;
  BufferId buffer;
  VersionSequence version;
  BufferGeneration generation;
  absl::Time until;
};

struct PendingCommand {
  CallId call;
  RunCommand command;
  absl::Time deadline;
};

struct State {
  SessionOptions options;
  SessionLimits limits;
  Link link;
  Membership membership;
  std::map<BufferId, Buffer> buffers;
  BufferId next_buffer{1};
  // In this generation of the group, of buffers whose operations a server may have numbered.
  FreedNames freed;
  std::map<BufferId, HostCopy> host_copies;  // by the copy; each is one of `buffers` too
  std::vector<SiteCopyWanted>
      site_copies_wanted;  // until PumpHostCopies has seen them, in the same event
  // Streaming readers of this generation of the group, for names that its ranks have in common.
  GroupGeneration streams_of;
  uint64_t streams = 0;
  std::deque<BufferId> streams_kept;  // at most kMaxStreamsKept, which have ended
  std::map<TransferId, BufferId> transfers;
  std::vector<HeldAdmission> held_admissions;
  std::list<PendingCommand> commands;
  absl::Status end_status;
  absl::Time leaves_at = absl::InfiniteFuture();  // with a notice: when it leaves by itself
  absl::Time finish_by = absl::InfinitePast();    // having left: until when readers may finish
  bool readers_had_time = false;                  // that moment has passed
  std::deque<SessionOutput> outbox;               // emptied by the driver after each event

  bool joined() const { return link.state == LinkState::kJoined; }
  bool ending() const {
    return link.state == LinkState::kEnding || link.state == LinkState::kEnded;
  }
  // FAILED_PRECONDITION saying why it ends, and to join again: nothing more may be begun in it.
  absl::Status CheckMembership() const;
  Buffer* FindBuffer(BufferId id);
  const Buffer* FindBuffer(BufferId id) const;
  // Null: that buffer is none of `host_copies`.
  HostCopy* FindHostCopy(BufferId id);
  const HostCopy* FindHostCopy(BufferId id) const;

  void Emit(SessionOutput output) { outbox.push_back(std::move(output)); }
  // To the server if there is one; what it has to know is said again after a join.
  void Send(WorkerMessage message, absl::Time now);
  // Tells the driver when state, version or generation differ from what it was told last.
  void ReportServing(Buffer& buffer);
  // The beginning of every error text of this session.
  ErrorText Error(ErrorCode code) const;
};

// True when a drain that nobody holds up has to wait for the publisher's own sums: without them
// nobody who has read from it could ever be complete.
bool WaitsForSeal(const Buffer& buffer, absl::Time now);
// The operation that the server means. Null: none (ended, of an older numbering, or invented).
Operation* FindOperation(Buffer& buffer, OperationNumber number);
// The update that the caller still waits for. Null: none.
Operation* FindUpdate(Buffer& buffer);
const Operation* FindUpdate(const Buffer& buffer);
// The unpublish that waits for the server's leave to drain. Null: none.
Operation* FindAskedUnpublish(Buffer& buffer);
const Operation* FindAskedUnpublish(const Buffer& buffer);
// The copy that it makes first; null for a publish, which takes nothing away.
CopyFirst* FindCopyFirst(Operation& operation);
// True when it waits for a copy: for one that is to begin, or is being made.
bool WaitsForCopy(const Operation& operation);
// Adds to a text that ends a membership that its owner has to join again, unless it says so.
std::string WithJoinAgain(std::string text);
// True when it is an unpublish that waits for a copy which no server has asked for.
bool IsOffloadingOffline(const Operation& operation);
// True when it is an unpublish that drains, or has drained.
bool HasBegunToDrain(const Operation& operation);
bool HasDrained(const Operation& operation);
// True when the caller waits for anything on this buffer.
bool HasPending(const Buffer& buffer);
// True when the kept copies that there are leave room for one of `buffer`.
bool HasRoomForCopy(const State& state, const Buffer& buffer);
// The buffer that `copy` is staged for. Null: it is no staged copy, or the buffer is gone.
const Buffer* OriginalOf(const State& state, BufferId copy);
// It holds no version any more.
void ForgetVersion(Buffer& buffer);

// The server's word about the root of a version that the buffer has or moves to; see RootReceipt.
void KeepReceipt(Buffer& buffer, VersionSequence version, const RootReceipt& receipt);
// The receipt of the version that the buffer has now.
std::optional<RootReceipt> ReceiptOf(const Buffer& buffer);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_SESSION_STATE_H_
