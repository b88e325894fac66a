// One event's turn: the state that it changes, the effects that it has, and the work that its
// changes leave over for the end of the turn (FinishTurn in operations.h).
#ifndef TH_REGISTRY_STATE_TURN_H_
#define TH_REGISTRY_STATE_TURN_H_

#include <compare>
#include <string>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/time/time.h"
#include "th/registry_state/registry_types.h"
#include "th/registry_state/state.h"

namespace th::registry {

// A form of a version, some shard of which has lost its last holder. A copy may come in the same
// turn: it is looked at when that ends (ReportLosses in retention.h).
struct FormLeft {
  ModelKey model;
  VersionSequence version;
  std::string form;
  friend auto operator<=>(const FormLeft&, const FormLeft&) = default;
};
// The operation with which the last holder of a form was lost.
struct LastHolder {
  EventId operation;   // empty: with none
  std::string who;     // a rank or a group
  std::string how;     // "is gone"
  bool meant = false;  // the group let it go itself
};

// LastHolder::how of an unpublish that this server did not see.
inline constexpr char kUnpublishedWhileAway[] = "was unpublished while the server was away";

// Lives for one event; the references outlive it.
struct Turn {
  RegistryState& state;
  RegistryEffects& effects;
  absl::Time now;
  // Replicas whose first pending operation may begin or end.
  absl::btree_set<ReplicaId> to_evaluate;
  // Readers that are ready and have lost their sources or may get some.
  absl::btree_set<BufferAddress> to_assign;
  absl::btree_set<BufferAddress> to_move;  // readers that should have better sources, if there are
  // Versions of which a publisher has gone before the root of its shard was known.
  absl::btree_set<std::pair<ModelKey, VersionSequence>> roots_to_settle;
  // Models in which replicas that stay, retention, or the room for copies have changed.
  absl::btree_set<ModelKey> to_review;
  absl::btree_map<FormLeft, LastHolder> forms_left;
  bool worker_leaves = false;  // its leave, as it asked, is under way
  bool durable_changed = false;
};

// To the worker's present stream; dropped when it has none (it asks again when it is back).
void Send(Turn& turn, const Worker& worker, ServerMessage message);
void SendToConnection(Turn& turn, ConnectionId connection, ServerMessage message);
void Log(Turn& turn, std::string text);
// Something that people want to find again: logged, and remembered by the driver.
struct NotedEvent {
  EventKind kind = EventKind::kNone;
  EventId id;       // of the operation that it belongs to; empty: it gets one of its own
  std::string who;  // "trainer", "rollout-3/1", "controller at 10.0.0.5"; may be empty
};
void Note(Turn& turn, const ModelKey& key, NotedEvent event, std::string text);
// The next id of this epoch.
EventId MintEvent(RegistryState& state);
// Asks the driver to make the model's durable part durable before any message of this turn leaves.
void Persist(Turn& turn, const Model& model);

}  // namespace th::registry

#endif  // TH_REGISTRY_STATE_TURN_H_
