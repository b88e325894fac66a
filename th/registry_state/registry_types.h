// The values that the registry's driver hands in and gets out.
#ifndef TH_REGISTRY_STATE_REGISTRY_TYPES_H_
#define TH_REGISTRY_STATE_REGISTRY_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/lease.h"
#include "th/protocol/messages.h"
#include "th/protocol/seconds_histogram.h"
#include "th/scheduler/scheduler.h"

namespace th {

// One stream, numbered by the driver, never reused.
using ConnectionId = StrongInt<struct ConnectionIdTag>;

// The state that must survive the server, and nothing else.
struct DurablePin {
  VersionSequence version;
  std::string owner;
  absl::Time expires_at = absl::InfiniteFuture();
  std::string form;  // empty: every form
  friend bool operator==(const DurablePin&, const DurablePin&) = default;
};
// The most roll-back points of one model that are kept.
inline constexpr size_t kMaxRollBacksKept = 64;

// Says which versions of earlier lineages survived: those up to `to`.
struct DurableRollBack {
  Lineage lineage;  // the one that this roll-back began
  VersionSequence to;
  // The group of the rank that asked; empty when a controller did. The group goes on in the new
  // lineage, also when the server restarts before every rank has heard of it.
  std::string group;
  GroupGeneration group_generation;  // of that group then
  friend bool operator==(const DurableRollBack&, const DurableRollBack&) = default;
};
// The results of roll-backs of one model that are kept for a caller that asks again.
inline constexpr size_t kMaxRollBackResultsKept = 64;
struct DurableRollBackResult {
  std::string idempotency_key;
  VersionSequence to;
  std::string label;  // of `to`
  Lineage lineage;    // that it began
  friend bool operator==(const DurableRollBackResult&, const DurableRollBackResult&) = default;
};

struct DurableModel {
  VersionSequence high_water;  // the highest version that was ever answered; a roll-back lowers it
  std::string high_water_label;
  Lineage lineage;
  uint32_t keep_latest = 0;                             // of forms without an entry below
  std::map<std::string, uint32_t> keep_latest_of_form;  // none is 0
  std::vector<DurablePin> pins;
  // Oldest first, rising in both fields; at most kMaxRollBacksKept, the oldest are merged.
  std::vector<DurableRollBack> roll_backs;
  // Oldest first; at most kMaxRollBackResultsKept.
  std::vector<DurableRollBackResult> roll_back_results;
  friend bool operator==(const DurableModel&, const DurableModel&) = default;
};
struct DurableState {
  std::map<ModelKey, DurableModel> models;
  friend bool operator==(const DurableState&, const DurableState&) = default;
};

struct RegistryLimits {
  absl::Duration lease = kDefaultLease;  // silence after which a worker is dropped
  // Silence after which a source is a last resort. None: it follows from the lease (SuspectAfter).
  std::optional<absl::Duration> suspect_after;
  absl::Duration progress_interval = absl::Seconds(1);
  // After a start with durable models: how long answers wait for workers to announce what they
  // hold. Longer than a worker's longest pause between two tries (SessionLimits::reconnect_max), or
  // answers come before those who know better.
  absl::Duration recovery_window = absl::Seconds(1.5);
  absl::Duration max_operation_timeout = absl::Hours(24);
  // How long a worker has to send a layout that it was asked for. It is looked at once a lease.
  absl::Duration layout_timeout = absl::Seconds(30);
  uint32_t max_workers = 200'000;
  uint32_t max_ranks = 65'536;  // of one group
  uint32_t max_buffers_per_worker = 64;
  uint32_t max_models = 10'000;
  // How long a model without groups, pins and retention policies stays known; infinite: until it
  // has to make room for another. After a restart of the server it counts anew.
  absl::Duration forget_after = absl::Hours(7 * 24);
  uint32_t max_versions_per_model = 1'000;  // older ones without holder and pin are forgotten
  // Keys and values of the attributes of those versions together.
  uint64_t max_attribute_bytes_per_model = uint64_t{64} << 20;
  uint32_t max_commands_remembered = 1'000;  // idempotency keys a model
  uint32_t max_layouts = 50'000;             // distinct ones, of all models
  // The encoded size of all layouts together. In memory a layout takes about four times as much.
  uint64_t max_layout_bytes = uint64_t{1} << 30;
  uint32_t max_pins_per_model = 1'000;
  SchedulerLimits scheduler;
};

// The highest epoch that a worker's claim is believed to have lived in. It leaves half of all
// epochs to the restarts that follow, so that a false claim cannot use them up.
inline constexpr Epoch kLastEpoch{uint32_t{1} << 31};
// The most roll-backs that a claim may say to have heard of, for the same reason.
inline constexpr Lineage kLastLineage{uint64_t{1} << 48};

// The openings of one durable state that it remembers. A membership that none of them confirmed is
// one of another state.
inline constexpr size_t kMaxEpochsKept = 256;

// Which durable state this is. As durable as the epoch.
struct StateIdentity {
  ClusterId cluster;
  ClusterKey key;
  // Oldest first, at most kMaxEpochsKept; the last one is that of the present epoch.
  std::vector<EpochId> epoch_ids;
  // So many of them, the last ones, were begun by the process that runs. Not durable.
  size_t of_this_process = 0;
  EpochId epoch_id() const { return epoch_ids.empty() ? EpochId() : epoch_ids.back(); }
  friend bool operator==(const StateIdentity&, const StateIdentity&) = default;
};

struct RegistryStart {
  Epoch epoch;                  // already durable, higher than every one before
  StateIdentity identity = {};  // likewise
  DurableState durable;
  bool recovering =
      false;  // a server with this state ran before: wait recovery_window for announcements
  absl::Time now;
  uint64_t key_seed[4] =
      {};  // 256 bits of the driver's randomness; workers' keys are derived from it
};

// When workers may come back to a server that begins again above a higher epoch.
inline constexpr absl::Duration kRetryBegunAgain = absl::Milliseconds(50);

struct OutgoingMessage {
  ConnectionId connection;
  ServerMessage message;
};

struct RegistryEvent {  // for logs and people; never for logic
  std::string text;
  // A line that is to be remembered as an event has its kind, and says about whom it is.
  EventKind kind = EventKind::kNone;
  EventId id;
  ModelKey key;
  std::string who;  // whom it is about, or who gave the command

  // "run=r1 model=m rollout-3/1: source failed: trainer/0 fell silent event=7-12".
  std::string LogLine() const;
};

struct RegistryEffects {
  // A worker has lived in this epoch, and this server's state knows nothing of it: it was lost, or
  // is older. The driver makes a higher epoch durable and begins again with a new registry that
  // recovers; every stream that has joined is closed and comes back.
  std::optional<Epoch> outdone_by;
  std::optional<DurableState> durable;  // write it (fsync) before any message below leaves
  std::vector<OutgoingMessage> messages;
  std::vector<ConnectionId> close;  // after the messages
  std::vector<RegistryEvent> events;
};

// A group's, of those that `ModelFigures` has.
struct GroupFigures {
  std::string group;
  // The published versions that are newer than the one that it came to last, all of them where it
  // has come to none.
  uint64_t versions_behind = 0;
  std::optional<absl::Time> published_at;  // last, in this epoch of the server
  friend bool operator==(const GroupFigures&, const GroupFigures&) = default;
};
// The groups with figures of their own: of one model, by name, and of all models together.
inline constexpr size_t kMaxGroupFiguresOfModel = 256;
inline constexpr size_t kMaxGroupFigures = 4'096;

// A version that a group has asked for in some form, and whether anybody offers it so.
struct FoundForm {
  VersionInfo version;
  bool offered = false;
};

// A model in figures, for /metrics: what does not grow with its ranks.
struct ModelFigures {
  ModelKey key;
  uint64_t versions = 0;                     // withdrawn ones left out
  uint64_t retained_lost = 0;                // retained ones that nobody has, each form of them
  uint64_t latest_lost = 0;                  // forms of the latest one that nobody has
  std::map<std::string, uint64_t> replicas;  // by CatalogReplica::state, "idle" among them
  ModelTotals totals;
  SecondsHistogram update_seconds;  // of group updates that moved, from the first rank's call
  SecondsHistogram stall_seconds;   // of one rank in one update or unpublish
  std::vector<GroupFigures> groups;
  uint64_t groups_left_out = 0;       // beyond the limits
  uint64_t most_versions_behind = 0;  // of any group, those that are left out too
};

// Counters since the start, for /metrics.
struct RegistryCounters {
  uint64_t joins = 0, joins_refused = 0, leases_expired = 0, workers_replaced = 0;
  uint64_t versions_published = 0, versions_sealed = 0, versions_withdrawn = 0;
  uint64_t updates_moved = 0, updates_not_available = 0, operations_failed = 0;
  uint64_t offloads = 0, offloads_released = 0;
  uint64_t notices = 0, retained_lost = 0;
  uint64_t assignments = 0, sources_failed = 0, sources_suspected = 0, sources_left = 0,
           messages_refused = 0;
};

}  // namespace th

#endif  // TH_REGISTRY_STATE_REGISTRY_TYPES_H_
