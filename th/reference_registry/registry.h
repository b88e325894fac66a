// The reference server's whole state and every rule about it, pure: events in, effects out.
//
//   Registry registry({.epoch = opened.epoch, .durable = opened.durable,
//                      .recovering = opened.started_before, .now = Now(), .key_seed = random},
//                     RegistryLimits{});
//   for (;;) {                                   // the driver's loop; one thread
//     RegistryEffects effects = registry.HandleMessage(connection, message, Now());
//     if (effects.durable) store.Write(*effects.durable);   // before anything of `effects` is sent
//     if (effects.outdone_by) begin again above that epoch, with registry.durable()
//     for (auto& out : effects.messages) Send(out.connection, out.message);
//     for (ConnectionId ended : effects.close) Close(ended);
//     Sleep until an event comes or registry.NextDeadline(); after a sleep that was far too long
//     registry.HandlePause(how long, Now()); then registry.HandleTick(Now()), as HandleMessage.
//   }
//
// A stream is named by the ConnectionId that the driver gave it; the registry knows whose it is
// once it has joined. Inside, the state is plain data (state.h) changed by updates with CanApply
// and Apply (the README lists the files, one a subject); this class is their driver. Not
// thread-safe. Never aborts on what a worker sent: a bad message is refused, named and counted.
#ifndef TH_REFERENCE_REGISTRY_REGISTRY_H_
#define TH_REFERENCE_REGISTRY_REGISTRY_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/protocol/catalog.h"
#include "th/protocol/messages.h"
#include "th/registry_state/registry_types.h"

namespace th {

class Registry {
 public:
  Registry(RegistryStart start, RegistryLimits limits);
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // A message of a stream. The first must be a JoinRequest.
  RegistryEffects HandleMessage(ConnectionId connection, const WorkerMessage& message,
                                absl::Time now);
  // The stream ended. The worker keeps its lease: it may come back, or be replaced at once.
  RegistryEffects HandleDisconnect(ConnectionId connection, absl::Time now);
  // The driver was stopped and has heard nobody for `pause`, until now: leases and deadlines move
  // by as much. Call before the tick that comes too late.
  void HandlePause(absl::Duration pause, absl::Time now);
  // Deadlines, leases, the recovery window. Call at NextDeadline() or later.
  RegistryEffects HandleTick(absl::Time now);
  absl::Time NextDeadline() const;

  // Mutating calls of a controller without a rank. The result is in the status/value; effects may
  // go to workers. `asked_by` is for people: "controller at 10.0.0.5".
  struct CommandResult {
    CommandFinished finished;
    RegistryEffects effects;
  };
  CommandResult HandleCommand(const ModelKey& key, const RunCommand& command,
                              const std::string& asked_by, absl::Time now);

  // Everything of a run ("" for all) and model ("" for all).
  Catalog List(const std::string& run, const std::string& model, absl::Time now) const;
  // The version that `selector` names right now. NOT_FOUND when none, UNAVAILABLE while recovering.
  absl::StatusOr<VersionInfo> Resolve(const ModelKey& key, const VersionSelector& selector) const;
  // Errors of registry::FindShard (shard_lookup.h). Its work does not grow with the model.
  absl::StatusOr<FoundShard> FindShard(const ShardQuery& query) const;
  // Errors of registry::FindForm.
  absl::StatusOr<FoundForm> FindForm(const FormQuery& query) const;
  // True while the group has a rank in the model.
  bool HasGroup(const ModelKey& key, const std::string& group) const;
  // The layout with this digest in its canonical encoding, which is made once and shared.
  // NOT_FOUND.
  absl::StatusOr<std::shared_ptr<const std::string>> EncodedLayout(const Digest& digest) const;

  // Every model, by key. Looks at each rank once and copies nothing of it: for scrapes.
  std::vector<ModelFigures> Figures() const;

  // "idle", "publishing", "holding", "filling" or "draining" (docs/protocol/registry.md); empty: no
  // such replica. Cheap, for those who watch a fleet's every step.
  absl::string_view ReplicaPhaseName(const ModelKey& key, const std::string& group,
                                     const std::string& buffer_name) const;

  // The state that was last asked to be made durable.
  const DurableState& durable() const;

  const RegistryCounters& counters() const;
  size_t worker_count() const;

  // INTERNAL naming the first rule that the state breaks. O(everything): for tests and simulations.
  absl::Status CheckInvariants() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace th

#endif  // TH_REFERENCE_REGISTRY_REGISTRY_H_
