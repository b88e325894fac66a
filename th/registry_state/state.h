// The registry's state as plain data: who is there, what they hold, what is under way. The rules
// that it must keep stand beside its fields; CheckStateInvariants (invariants.h) checks them.
//
// Ownership is a tree: a model owns its versions and groups, a group its replicas, a worker its
// buffers. A raw pointer leads from a child to its parent, which outlives it, or to a record that
// goes only after all pointers to it were cleared (ClearContent before a buffer or shard goes,
// DetachBuffer before a replica goes). Not thread-safe.
#ifndef TH_REGISTRY_STATE_STATE_H_
#define TH_REGISTRY_STATE_STATE_H_

#include <algorithm>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/capability.h"
#include "th/protocol/freed_names.h"
#include "th/protocol/messages.h"
#include "th/registry_state/registry_types.h"
#include "th/registry_state/transaction.h"
#include "th/scheduler/comparable_throughputs.h"
#include "th/scheduler/link_rate.h"
#include "th/scheduler/slow_source.h"
#include "th/weights/digest.h"
#include "th/weights/segments.h"
#include "th/weights/shard_layout.h"
#include "th/weights/version.h"

namespace th::registry {

// Operations of one replica that may be unfinished at once, the one under way among them.
inline constexpr uint64_t kMaxQueuedOperations = 8;
// Results of ended operations that a replica remembers for ranks that ask later.
inline constexpr size_t kMaxResultsKept = 64;
// The bound of the counter in a group generation that a returning worker claims (the epoch is the
// generation's high half): at or above it the claim is refused. Counting comes nowhere near it, and
// a false claim leaves half of the counter's room to those that count on from it.
inline constexpr uint64_t kGenerationsOfAnEpoch = uint64_t{1} << 31;
// A group counts anew when it begins a generation: its operations are numbered from 1 again, and
// calls under way are dropped. A rank whose call was dropped has to call again within this time. If
// one caller serves all ranks one after another, the rank cannot, and the group counts anew again.
inline constexpr absl::Duration kCallsAgainWithin = absl::Seconds(1);
// The server waits for so long, once it has said that a group is to copy what it holds, until the
// first rank has registered its copy. By then the ranks' default time for it has passed too.
inline constexpr absl::Duration kCopyAwaitedFor = kDefaultOffloadTimeout;
// Failed sources that one fill remembers.
inline constexpr size_t kMaxExclusions = 64;
// Epochs of other states whose workers have come here, by which it is known who comes first.
inline constexpr size_t kMaxForeignEpochs = 64;
// Forms of one model whose readers' throughputs are compared; when one more comes, all are
// forgotten.
inline constexpr size_t kMaxFormsCompared = 64;

struct Buffer;
struct Group;
struct Model;
struct Replica;
struct Shard;
struct Version;
struct Worker;

using ReplicaId = StrongInt<struct ReplicaIdTag>;

// ---------------------------------------------------------------------------------------------
// Buffers and workers

// The order in which sources are offered to the scheduler, which is given a few of them (KeyOf in
// holders.h): members are compared one after another, the least comes first.
struct CandidateKey {
  // Its worker leaves, or IsDeprioritized in scheduler.h: its chain is at the limit, or the policy
  // would not take it. How many readers it has does not count here.
  bool deprioritized = false;
  bool suspected = false;  // IsSuspected below
  // The readers that would not make way for a faster one: ReadersThatKeepTheirPlace in uplinks.h.
  uint32_t readers = 0;
  bool publisher = false;
  BufferAddress buffer;
  bool complete = false;  // comes to no comparison, for no two have one `buffer`
  friend auto operator<=>(const CandidateKey&, const CandidateKey&) = default;
};

// The part of a version that a buffer has. `agreed` says that its own checksums are not in doubt,
// `replica_agreed` that those of no rank of its replica are, `refused` that it is ruled out:
//
//   agreed  replica_agreed  refused
//   yes     yes             no       received (the reader has compared them), first published, or
//                                    found equal in every rank: a source
//   no      no              no       of a further publisher, or of one that is back from before a
//                                    restart: not compared with the version's root yet
//   yes     no              no       its own have agreed since, another rank's are not compared yet
//   any     any             yes      its own differ; or another rank's did before its replica had
//                                    agreed; or its publication is lost: no source ever again
struct Content {
  VersionSequence version;
  bool complete = false;
  bool publisher = false;
  bool committed = false;  // the operation that brought it here ended well for the whole group
  bool agreed = true;
  bool replica_agreed = true;
  bool refused = false;
  // The digest of the sums that the worker took of its own publication, or of a copy of it; none
  // before it reported them.
  std::optional<Digest> checksums;
  // Hops up to a complete holder when its sources were assigned. Too many once a holder above has
  // completed, too few once one above has moved below a longer chain; see SchedulerHolder.
  uint32_t chain = 0;
  SegmentSet segments;        // when not complete
  TransportsUsed transports;  // as the rank told with its progress, and when it was done
};

// A source that failed this reader during this fill.
struct Exclusion {
  BufferAddress source;
  RankName name;
  BufferGeneration generation;  // a source that has moved on to another generation is a new source
  SourceFailure failure = SourceFailure::kClosed;
  bool slow = false;      // it did not fail: the reader left it
  uint32_t tries = 0;     // since the reader's last progress
  uint32_t wrong = 0;     // tries that failed for wrong bytes: progress does not reset these
  uint64_t received = 0;  // segments that the reader had at the last try
  absl::Time retry_at = absl::InfiniteFuture();
  std::string detail;
};

// How fast a fill gets what it lacks, as its reader reported last;
// th/reference_registry/throughput.h uses it.
struct FillThroughput {
  struct OfSource {
    // The last reports together, until they are of kLeastSegmentsMeasured segments.
    SourceThroughput report;
    Throughput throughput;
  };
  absl::Time reported_at = absl::InfinitePast();
  // In bytes a second, from all its sources together.
  double most = 0;                                 // an upper bound of what it receives
  double passing = 0;                              // what its own readers can get of that
  std::vector<OfSource> sources;                   // at most kMaxThroughputsReported
  absl::Time recheck_at = absl::InfiniteFuture();  // its deadline in RegistryState::deadlines
  // The last source that it left for being slow, when, and its own throughput then.
  absl::Time left_at = absl::InfinitePast();
  BufferAddress left;
  double throughput_then = 0;
};

// A rank's part of an update, from ReadyToFill (of a streaming reader: from the resolution) until
// it is done.
struct Fill {
  OperationNumber operation;
  AssignmentId assignment;
  // The reader said at its last join that it pulls from the sources in the shard's edges.
  bool confirmed = false;
  bool sent_empty = false;  // the last AssignSources named nobody
  absl::Time grace_ends =
      absl::InfinitePast();  // until then the lack of any holder does not end it
  std::vector<Exclusion> exclusions;
  absl::Time retry_at = absl::InfiniteFuture();  // its deadline in RegistryState::deadlines
  FillThroughput throughput;
  absl::Time deferred_until = absl::InfinitePast();  // not given a source before: others come first
};

struct Buffer {
  BufferAddress address;
  Worker* worker = nullptr;
  Replica* replica = nullptr;  // replica->buffers[worker's rank] is this
  std::string name;
  std::string form;
  Digest layout;
  uint64_t bytes = 0;
  uint64_t segment_count = 0;
  BufferGeneration generation;
  uint64_t snapshot_bytes = 0;  // of its last publication
  StallByPhase stall{};         // that its rank had, as in the model's totals
  OperationNumber last_started;
  // The last unpublish that is over (it failed here, or ended in an earlier epoch) while this rank
  // had not drained: it does that afterwards, by itself.
  OperationNumber last_drained_alone;
  // Set while the group goes on without this rank: an operation has expired without it, or it has
  // called one that its group does not make. The value is its last_started at that moment.
  // Reset when it comes to an operation in time.
  std::optional<OperationNumber> missed_since;
  // A call of this rank was refused, because the group had counted anew before it came. Until the
  // rank calls again, equal numbers do not mean the same call.
  bool lost_call = false;
  bool registration_owed = false;  // BufferRegistered follows when the layout is here
  std::optional<Content> content;
  // The committed content, not refused, that an update or a drain for one has replaced. The rank
  // may come back to it, if the update ends before the rank has written. Forgotten when other
  // content is committed, with every ClearContent (a reset, an unpublish, a publish that begins, a
  // rank that failed undefined, a buffer that goes), and when a rank without a Fill announces a
  // part of a version, for it has written over it. It stays where the rank announces nothing, for
  // it may be draining, unless an unpublish is under way.
  std::unique_ptr<Content> displaced;
  Shard* shard = nullptr;      // of the content; set exactly when there is content
  std::unique_ptr<Fill> fill;  // apart: most buffers are idle, and there are as many as workers
  // The holders of the shard that it fills from: edges of the graph of fills, which has no cycle.
  std::vector<BufferAddress> sources;
  // True while the worker is known to pull from `sources`. False when they were announced after a
  // restart, until the operation is sent again; when one of them is dropped; and without a fill.
  bool sources_confirmed = false;
  // The worker came back without what it held: its unpublish may still arrive.
  bool drained_while_away = false;
  std::optional<CandidateKey> indexed;  // its place in shard->candidates; none: it is no candidate
  // Which counts of its shard this buffer is in now.
  bool counted_promising = false;  // complete_promising
  bool counted_staying = false;    // complete_staying
  bool counted_publisher = false;  // publishers
  bool counted_whole = false;      // sites: `whole` of its worker's site
  bool counted_lasting = false;    // likewise `lasting`
};

// Below a worker that has the whole shard: the search for the reader that gets the most as the
// first one of the chain. Where none of its readers does better than the first, either the worker's
// uplink or that reader's link is the limit: a trial puts another reader in the first one's place,
// to learn which. TryAnother in th/reference_registry/link_order.h uses it.
struct FirstReader {
  VersionSequence version;               // the last for which something was noted
  absl::Time at = absl::InfinitePast();  // of the last trial's end
  uint32_t trials = 0;                   // one after another, in which the other reader got no more
  double best = 0;  // the most that a reader is known to get there, in bytes a second; 0: unknown
};

struct Worker {
  WorkerId id;
  Group* group = nullptr;
  RankName name;
  Location location;
  std::vector<Endpoint> endpoints;
  bool spot = false;
  uint64_t offload_limit_bytes = 0;
  std::optional<ConnectionId> connection;  // none: the stream has broken, the lease still runs
  absl::Time last_heard;
  absl::Time heard_again_at = absl::InfinitePast();  // its last silence ended
  absl::Time lease_at;                               // its kLease entry in RegistryState::deadlines
  absl::Time suspected_until = absl::InfinitePast();  // a reader reported one of its buffers
  absl::Time slow_until = absl::InfinitePast();       // a reader left it for being slow
  // Until then its own link is blamed: it was as slow with another source.
  absl::Time slow_reader_until = absl::InfinitePast();
  LinkRate link;  // of what it receives
  // The last reader that stepped aside below this worker for a trial: that reader's link may have
  // been the limit, or this worker's uplink.
  BufferAddress doubted_by;
  absl::Time doubted_at = absl::InfinitePast();
  FirstReader first_reader;
  // The end of its notice; infinite: it has none.
  absl::Time leaves_at = absl::InfiniteFuture();
  Lineage lineage;  // the newest that this worker was told of
  // The claim that it resumed with when its record was made: it tells which of two claims to one
  // rank is later.
  std::optional<ResumeClaim> came_with;
  // Its heartbeats since its record was made, or since it was last told late that a buffer is
  // registered. After the second heartbeat it has had the time to ask for what it waits for.
  uint8_t heartbeats = 0;
  std::map<BufferId, Buffer> buffers;

  bool leaving() const { return leaves_at != absl::InfiniteFuture(); }
};

// ---------------------------------------------------------------------------------------------
// Replicas and their operations

//   idle        nothing that others could read (a failed or unfinished content may still be there)
//   publishing  some ranks have asked to publish
//   holding     every rank holds `version`; during recovery, every rank that has come back
//   filling     an update to `version` is under way, also while it drains the buffers
//   draining    an unpublish is under way, or the server has released a host copy
enum class ReplicaPhase : uint8_t {
  kIdle = 1,
  kPublishing = 2,
  kHolding = 3,
  kFilling = 4,
  kDraining = 5,
};

// The server's word that this replica's group copies a version into host memory, to seed its
// site: from the answer until the copy fills. It holds while the group is whole and of that
// generation, for kSiteCopyReservationLasts at most; then it goes, with its mention in `site`'s
// site_seedings.
struct SiteCopyReservation {
  VersionSequence version;
  std::string site;
  GroupGeneration generation;
  absl::Time until;
};

// How an operation ended, for ranks that ask later. Results that name one version share its
// attributes, of which there may be kMaxAttributesBytes.
struct KeptResult {
  FinishedOperation finished;  // without attributes
  std::shared_ptr<const Attributes> attributes;
  EventId event;  // empty: it ended in another epoch
};

struct Replica {
  ReplicaId id;
  Group* group = nullptr;
  std::string buffer_name;
  std::string form;
  BufferRole role = BufferRole::kPrimary;  // host copies are in model->host_copies
  bool unwanted = false;  // kSiteCopy: its group has asked for another version since
  bool released = false;  // its ranks were told that it may go
  std::string fills_in;   // the site in whose site_seedings it is; only while it is filling
  std::optional<SiteCopyReservation>
      reservation;  // its `until` is a deadline in RegistryState::deadlines
  // The copy that its last result asks for has to be registered by then; past: none is awaited.
  absl::Time copy_awaited_until = absl::InfinitePast();
  uint32_t copies_unused = 0;  // how often it was to make a copy since it last moved
  std::string staged_for;      // kStaged: the group's buffer that is to move to what this one holds
  // Why its ranks passed over transports in the last update that moved, and in those since, each
  // reason once. They were reported in events, and are not reported again.
  std::vector<PassedOver> passed_over_reported;
  std::map<Rank, Buffer*> buffers;
  ReplicaPhase phase = ReplicaPhase::kIdle;
  VersionSequence version;  // meaningless when idle
  // The publication that ended because a rank was gone, until the ranks publish again. A rank that
  // comes back with it has not heard of its end.
  VersionSequence publication_lost;
  OperationNumber finished;  // every operation up to it has ended
  bool finished_here =
      false;  // some operation ended in this epoch and this generation of the group
  std::map<OperationNumber, KeptResult> results;  // at most kMaxResultsKept, the newest
  // All above `finished`. The one right after it alone is evaluated; of the others it is noted
  // which ranks have asked or drained, and each may end by its own deadline before its turn.
  std::map<OperationNumber, Transaction> pending;
};

struct Group {
  Model* model = nullptr;
  std::string name;
  uint32_t ranks = 0;  // what all members say
  GroupGeneration generation{1};
  FreedNames freed;        // of buffers whose operations were numbered in this generation
  bool has_ended = false;  // some operation, in this generation
  std::map<Rank, Worker*> members;
  std::set<Rank> seen;   // ranks that were ever members of this group
  bool adopted = false;  // some member lived in an earlier epoch of the server
  // The epoch of another server's state, by which the generation is numbered; 0: by this one's.
  EpochId counts_as_in;
  std::map<std::string, Replica> replicas;  // by buffer name
  // For people alone: the version that its ranks came to last, by a publish or an update, and when
  // it published last in this epoch.
  VersionSequence came_to;
  std::optional<absl::Time> published_at;
};

// ---------------------------------------------------------------------------------------------
// Versions

struct ShardKey {
  std::string form;
  Digest layout;
  friend auto operator<=>(const ShardKey&, const ShardKey&) = default;
};

// The holders of a shard in one site, counted.
struct SiteShare {
  uint32_t whole = 0;  // candidates that hold all of it, and whose workers do not leave
  uint32_t lasting =
      0;  // of those, in replicas that hold the version, of no temporary role, not on spot workers
};

// One distinct shard of a version in one form: its holders, and who fills from whom.
struct Shard {
  Version* version = nullptr;
  ShardKey key;
  // The first publisher's; after a restart what an earlier server had told readers, as
  // TakeRootReport in th/reference_registry finds it. Never changes once set.
  std::optional<Digest> root;
  RootReceipt receipt;  // of the root, once it is set
  // Exactly the buffers whose content is of this shard, complete or not.
  absl::btree_map<BufferAddress, Buffer*> holders;
  // The readers that fill from an address: the mirror of the holders' Buffer::sources. No entry is
  // empty. After a restart an address may belong to a worker that has not come back yet.
  absl::flat_hash_map<BufferAddress, absl::btree_set<BufferAddress>> readers_of;
  // The holders that may be given to new readers, by where they are (PlacesOf in holders.h);
  // kAllCandidates has all, kCompleteCandidates those that are complete.
  absl::flat_hash_map<std::string, absl::btree_map<CandidateKey, const Buffer*>> candidates;
  std::map<std::string, SiteShare> sites;  // by name; no entry is all zero
  // The holders whose workers have a notice.
  absl::btree_set<BufferAddress> leaving;
  // Readers that are ready and have no source.
  absl::btree_set<BufferAddress> waiting;
  // Holders that are complete, and are sources or will be once their stream is up and their
  // checksums agree.
  uint32_t complete_promising = 0;
  // The number that counts for retention: complete candidates (holders.h: the stream is up, the
  // sums agree) in replicas whose phase is holding, no staged copies, neither on spot workers nor
  // on such that leave. A stream that breaks takes its holder out.
  uint32_t complete_staying = 0;
  // Holders that published it here, or have told what they summed: from whom its root may come
  // while it has none.
  uint32_t publishers = 0;
};

// publishing -> published (all ranks) -> withdrawn (a roll-back). A version whose publishing fails
// is removed.
enum class VersionPhase : uint8_t { kPublishing = 1, kPublished = 2, kWithdrawn = 3 };

// A form of a version on its way into one site.
struct SiteSeeding {
  absl::btree_set<ReplicaId> filling;  // replicas of whole groups whose ranks are all in the site
  // The replica that got a SiteCopyReservation last, and still has it; 0: none.
  ReplicaId reserved_by;
};
struct SiteSeedingKey {
  std::string form;
  std::string site;
  friend auto operator<=>(const SiteSeedingKey&, const SiteSeedingKey&) = default;
};

struct Version {
  Model* model = nullptr;
  VersionInfo info;
  std::weak_ptr<const Attributes> kept_attributes;  // info's, where a KeptResult has them
  VersionPhase phase = VersionPhase::kPublishing;
  // False: nobody has announced it in this epoch; it is known as the durable high-water mark alone.
  bool announced = true;
  // Published in an earlier epoch: shards that nobody has announced yet may be missing below.
  bool from_earlier_epoch = false;
  bool counted_as_sealed = false;
  uint32_t displaced_buffers = 0;  // whose Buffer::displaced is of this version
  std::map<ShardKey, Shard> shards;
  std::map<SiteSeedingKey, SiteSeeding>
      site_seedings;  // at most one a form and site; none is empty
};

struct Model {
  ModelKey key;
  // high_water is at or above every published version. After a change of its pins: ExpectExpiry.
  DurableModel durable;
  absl::Time pins_expire_at = absl::InfiniteFuture();  // its entry in RegistryState::pin_expiries
  // In this epoch. A publish that fails has used its number up.
  uint32_t next_version_number = 1;
  std::map<VersionSequence, Version> versions;
  uint64_t attribute_bytes = 0;  // MemoryOf those of all versions
  // How many operations that have begun are about a version: their ends look it up. No entry is 0.
  absl::flat_hash_map<VersionSequence, uint32_t> under_way;
  // Labels of the published versions; a withdrawn version's label is free.
  absl::flat_hash_map<std::string, VersionSequence> labels;
  std::map<std::string, Group> groups;
  // When its last group went, a command changed it, or this epoch began; of no meaning while it has
  // groups.
  absl::Time last_used = absl::InfinitePast();
  // By form: shards of one form are alike. At most kMaxFormsCompared.
  absl::flat_hash_map<std::string, ComparableThroughputs> throughputs;
  absl::btree_set<ReplicaId>
      host_copies;  // exactly its groups' replicas for which IsHostCopy(role)
  // Their first pending operation has not begun: it waits for room for a copy of what is retained,
  // until the group's site copies have gone. Brought up to date when the replica is evaluated.
  absl::btree_set<ReplicaId> waiting_for_room;
  // By idempotency key. A version in it is without attributes: those are the version's own.
  absl::flat_hash_map<std::string, CommandFinished> commands;
  std::deque<std::string> command_order;  // oldest first; the same keys
  ModelTotals totals;                     // see costs.h
  SecondsHistogram update_seconds;        // likewise
  SecondsHistogram stall_seconds;
};

// ---------------------------------------------------------------------------------------------
// The whole

struct LayoutRecord {
  std::optional<ShardLayout> layout;  // none: `asked` was asked for it
  absl::Time asked_at;                // meaningless without `asked`
  // Its encoding, from the first time that a controller asked for it.
  std::shared_ptr<const std::string> encoded;
  WorkerId asked;
  absl::btree_set<BufferAddress> buffers;  // registered with it
  uint32_t shards = 0;                     // of versions
};

enum class DeadlineKind : uint8_t {
  kRecoveryWindow = 1,  // answers wait no longer
  kAdoption = 2,        // whoever has not come back by now is gone
  kLease = 3,           // of buffer.worker
  kRetry = 4,           // of the fill of `buffer`
  kOperation = 5,       // `operation` of `replica`
  kThroughput = 6,      // of the fill of `buffer`
  kReservation = 7,     // of `replica`
  kForgetting = 8,      // RegistryState::forgets_at
};
struct Deadline {
  absl::Time at;
  DeadlineKind kind = DeadlineKind::kLease;
  BufferAddress buffer;
  ReplicaId replica;
  OperationNumber operation;
  friend bool operator==(const Deadline&, const Deadline&) = default;
  friend bool operator<(const Deadline& a, const Deadline& b) {
    return std::tie(a.at, a.kind, a.buffer, a.replica, a.operation) <
           std::tie(b.at, b.kind, b.buffer, b.replica, b.operation);
  }
};

struct RegistryState {
  Epoch epoch;
  StateIdentity identity;
  absl::Time began;                  // this epoch
  std::set<EpochId> foreign_epochs;  // heard of, of other states; at most kMaxForeignEpochs
  CapabilityKey secret;
  RegistryLimits limits;
  bool recovering = false;  // answers that resolve versions wait
  bool adopting = false;    // ranks that lived in an earlier epoch may still come back
  uint32_t next_worker_number = 1;
  // The first version number of a new model's record, above all that forgotten models have given:
  // one that comes back gives no sequence twice.
  uint32_t first_version_number = 1;
  ReplicaId last_replica;
  uint32_t last_event = 0;  // counts what has an EventId of this epoch
  // The highest generation of any group that is gone, and never below this epoch as its high half:
  // new groups count on from it, so that no generation is used twice.
  GroupGeneration last_ended_generation;
  // The highest generation of a group that is gone, was adopted, and in which operations had ended
  // here: their results went with it. Whoever comes back with a generation up to it counts anew.
  GroupGeneration last_forgotten_results;

  DurableState durable;  // what was last asked to be written
  std::map<ModelKey, Model> models;
  absl::flat_hash_map<WorkerId, std::unique_ptr<Worker>> workers;
  absl::flat_hash_map<ConnectionId, Worker*> connections;  // joined ones
  absl::flat_hash_map<ReplicaId, Replica*> replicas;
  absl::flat_hash_map<Digest, LayoutRecord> layouts;  // those with a buffer or a shard
  uint64_t layout_bytes = 0;  // the encoded size of those that are here; at most max_layout_bytes

  // One lease a worker; one entry a pending operation, a reservation of a site copy, a fill with a
  // retry, a fill whose throughput is looked at again; kRecoveryWindow and kAdoption after a
  // restart; and forgets_at.
  absl::btree_set<Deadline> deadlines;
  // When the first pin of each model ends, of those that do.
  std::set<std::pair<absl::Time, ModelKey>> pin_expiries;
  // When models that nobody wants are looked at: not after the first of them has been unused for
  // limits.forget_after. Its entry in `deadlines`; infinite: there is none.
  absl::Time forgets_at = absl::InfiniteFuture();
  absl::btree_set<ReplicaId> waiting_for_recovery;  // their first pending operation waits
  RegistryCounters counters;
};

// The one site of all members of the group that are there; empty: they are in several, or in none.
std::string SiteOf(const Group& group);

// Null when there is none.
Worker* FindWorker(const RegistryState& state, WorkerId worker);
Worker* FindWorker(const RegistryState& state, ConnectionId connection);
Buffer* FindBuffer(const RegistryState& state, const BufferAddress& address);
Replica* FindReplica(const RegistryState& state, ReplicaId replica);
Model* FindModel(RegistryState& state, const ModelKey& key);
const Model* FindModel(const RegistryState& state, const ModelKey& key);
Model& EnsureModel(RegistryState& state, const ModelKey& key);
// Call after a change of the model's pins: notes when the first of them ends.
void ExpectExpiry(RegistryState& state, Model& model);
// Whatever comes back under its key gives higher sequences.
void ForgetModel(RegistryState& state, const Model& model);
Version* FindVersion(Model& model, VersionSequence version);
const Version* FindVersion(const Model& model, VersionSequence version);
const ShardLayout* FindLayoutOf(const RegistryState& state, const Digest& digest);
// Erases the record of a layout that neither a buffer nor a shard has.
void ForgetLayout(RegistryState& state, const Digest& digest);

// True while what readers reported of the worker counts: a source of the same distance that is not
// suspected is preferred. The scheduler's `suspected` means this or IsSilent.
bool IsSuspected(const Worker& worker, absl::Time now);
// Not heard for longer than a worker that runs is silent.
bool IsSilent(const RegistryState& state, const Worker& worker, absl::Time now);
// It has said something.
void NoteHeard(const RegistryState& state, Worker& worker, absl::Time now);

// The pending operation right after `finished`, which alone is evaluated. Null when none is
// pending: ranks start numbers without gaps.
Transaction* HeadOf(Replica& replica);

// An attribute takes this much beside its text: a node of a map.
inline constexpr uint64_t kBytesOfAnAttribute = 64;
// About what the attributes of a version take.
uint64_t MemoryOf(const Attributes& attributes);

// The highest published version, zero when there is none.
VersionSequence LatestOf(const Model& model);
// " form=fp8" for texts; "" where `form` is empty.
std::string FormSuffix(const std::string& form);
// True when a policy or a pin may retain anything of the model.
inline bool MayRetain(const DurableModel& durable) {
  return durable.keep_latest > 0 || !durable.keep_latest_of_form.empty() || !durable.pins.empty();
}
// True when no version of this number and lineage is valid: a roll-back withdrew it, or it is above
// the high-water mark, so that it was never published or was withdrawn by a roll-back that is
// forgotten.
bool WasWithdrawn(const Model& model, VersionSequence version, Lineage lineage);
// True when it is what the latest roll-back went to, or was published since.
bool IsOfPresentLineage(const DurableModel& durable, const VersionInfo& version);
bool IsSealed(const Version& version);

RankName NameOf(const Buffer& buffer);
Rank RankOf(const Buffer& buffer);
// "rollout-3/1, rollout-3/4 and 7 more": these ranks of the group.
std::string NameRanks(const Group& group, const std::vector<Rank>& ranks);

}  // namespace th::registry

#endif  // TH_REGISTRY_STATE_STATE_H_
