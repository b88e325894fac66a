// The reference server's process in a simulation: the registry, its durable state, the streams of
// its workers. Drives the registry as //th/server does.
#ifndef TH_SIMULATOR_SIMULATED_SERVER_H_
#define TH_SIMULATOR_SIMULATED_SERVER_H_

#include <cstdint>
#include <map>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/messages.h"
#include "th/reference_registry/registry.h"
#include "th/simulator/replica_observer.h"
#include "th/simulator/server_watch.h"
#include "th/simulator/simulated_process.h"

namespace th {

class Cluster;
class SimulatedWorker;

// The state that a server finds on its disk when it starts.
struct ServerDisk {
  Epoch epoch;  // the last one that has begun
  StateIdentity identity;
  DurableState durable;
};
// The disk of a server that has never run.
ServerDisk EmptyDisk(ClusterId cluster);

class SimulatedServer : public SimulatedProcess {
 public:
  explicit SimulatedServer(Cluster* cluster);  // starts

  // The process dies; its machine tells the workers. What was durable stays.
  void Kill();
  void Start();  // after Kill
  const ServerDisk& disk() const { return disk_; }
  // Before Start: its disk is another one, or as it was at some time before. The epoch that it
  // begins is above `passed`.
  void ReplaceDisk(ServerDisk disk, Epoch passed);
  // Disks are counted; an epoch belongs to the one on which it has begun.
  uint64_t DiskOf(EpochId epoch_id) const { return disk_of_epoch_.at(epoch_id); }
  void Stop();  // as by SIGSTOP, until Continue
  void Continue();
  // A turn of its loop that takes long: all waits as after Stop, but nobody notices a pause.
  void BeginLongTurn();
  void EndLongTurn();  // if one has begun
  // A controller's. UNAVAILABLE while it does not run.
  CommandFinished Command(const ModelKey& key, const RunCommand& command);

  Catalog List() const;  // empty while it is dead
  // Tells the checker which of the registry's invariants does not hold. The server does it itself
  // after every ClusterSpec::check_registry_every-th event and at the end of an epoch.
  void CheckRegistry();
  // Both run, and what they say to each other arrives.
  bool Hears(const SimulatedWorker& worker) const;

  // ---- for the workers
  // A stream for `worker`: it hears HandleStreamOpen or HandleStreamClosed under the number.
  ConnectionId Connect(SimulatedWorker* worker);
  // The worker's end is gone: the server hears of it.
  void Disconnect(const SimulatedWorker& worker, ConnectionId connection);
  void Send(SimulatedWorker* worker, ConnectionId connection, WorkerMessage message);
  // Its membership is over, by no wish of its own.
  void JudgeEnd(const SimulatedWorker& worker) const { watch_.JudgeEnd(worker); }
  // It has heard that another process has its rank.
  void JudgeReplaced(const SimulatedWorker& worker) const { watch_.JudgeReplaced(worker); }

 private:
  void RunRegistry(absl::FunctionRef<RegistryEffects(Registry&)> event);
  // The effects of `message` on the registry, watched.
  RegistryEffects Hear(Registry& registry, const SimulatedWorker& from,
                       const WorkerMessage& message, ConnectionId connection);
  void CarryOut(RegistryEffects effects);
  void HandleWake() override;

  Cluster* const cluster_;  // outlives it
  // The process that runs begins an epoch above `epoch`.
  void BeginEpoch(Epoch above);
  // A worker has lived in that epoch, of which the state knows nothing.
  void BeginAbove(Epoch heard);

  ServerDisk disk_ = EmptyDisk(ClusterId(1));
  uint64_t epochs_begun_ = 0;  // over all disks, in place of random numbers
  uint64_t disks_ = 1;
  std::map<EpochId, uint64_t> disk_of_epoch_;
  std::unique_ptr<Registry> registry_;
  ReplicaObserver observer_;
  ServerWatch watch_;
  absl::Time stopped_at_;
  bool in_long_turn_ = false;
  uint64_t registry_events_ = 0;
  uint64_t connections_ = 0;
  struct Stream {
    SimulatedWorker* worker;
    Wire up, down;
  };
  std::map<ConnectionId, Stream> streams_;
};

}  // namespace th

#endif  // TH_SIMULATOR_SIMULATED_SERVER_H_
