// A whole TensorHub in one thread on a virtual clock: a reference server, workers and the network
// between them. The cores (registry, scheduler, worker session, pipeline replicator, contract) are
// the ones of the binaries; only what is around them is simulated.
//
//   Cluster cluster({.seed = 7});
//   SimulatedWorker* trainer = cluster.Start({.name = {"trainer", Rank(0)}});
//   cluster.RunUntil([&] { return trainer->ready(); }, absl::Seconds(10));
//   trainer->Publish("step-1", "content-1");
//   ...
//   EXPECT_THAT(cluster.checker().violations(), IsEmpty());
//
// Messages take the fabric's latency and up to `jitter` more; what one connection carries stays in
// order, connections overtake each other. Segments take their share of the links. Equal specs and
// equal calls give equal runs. Not thread-safe.
#ifndef TH_SIMULATOR_CLUSTER_H_
#define TH_SIMULATOR_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "th/pipeline_replicator/pipeline_replicator.h"
#include "th/reference_registry/registry.h"
#include "th/simulator/event_queue.h"
#include "th/simulator/fabric.h"
#include "th/simulator/flow_network.h"
#include "th/simulator/invariant_checker.h"
#include "th/simulator/seeded_random.h"
#include "th/simulator/simulated_server.h"
#include "th/simulator/simulated_worker.h"
#include "th/simulator/slots.h"
#include "th/simulator/transition_coverage.h"
#include "th/worker_session/session_types.h"

namespace th {

struct ClusterSpec {
  uint64_t seed = 1;  // of the jitter
  FabricSpec fabric;
  absl::Duration jitter;
  std::string server_site;  // empty: one of its own
  RegistryLimits registry;
  SessionLimits session;
  ReplicatorLimits replicator;
  // The size of every shard.
  uint64_t segment_count = 16;
  uint64_t segment_bytes = kMinSegmentBytes;
  // The bytes that a segment weighs on the links; 0: segment_bytes. So a few segments stand for a
  // large shard.
  uint64_t wire_bytes_per_segment = 0;
  absl::Duration sealing_time = absl::Milliseconds(20);
  // How long what is on its way may go on landing after a fill was told to stop, at most: drawn for
  // each, as a rule less.
  absl::Duration stopping_time;
  // Every rank whose number is a multiple of it is of a release that does not list its sums; 0:
  // none.
  uint32_t lists_no_checksums_every = 0;
  // The endpoints of every worker, at least one: readers try one after the other.
  int endpoints = 1;
  // Registry::CheckInvariants runs after every so many of its events and at the end of every epoch.
  // Each check looks at the whole fleet.
  uint32_t check_registry_every = 1;
  // If set, hears what happens, in words: for people who look for the cause of a violation.
  std::function<void(const std::string&)> trace;
  // If set, notes which steps of the drawn transition tables are taken; it outlives the cluster.
  TransitionCoverage* coverage = nullptr;
};

class Cluster {
 public:
  explicit Cluster(ClusterSpec spec);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // A process that joins and registers one buffer, in due course. Valid as long as the cluster,
  // also when it is dead; a rank that starts again is a new worker.
  SimulatedWorker* Start(WorkerSpec spec);
  SimulatedServer& server() { return *server_; }
  const std::vector<std::unique_ptr<SimulatedWorker>>& workers() const { return workers_; }

  // ---- the network's faults
  void SlowHost(const std::string& host, double factor, LinkSide side = LinkSide::kBoth) {
    fabric_.Slow(host, factor, now(), side);
  }
  void SlowSiteLink(const std::string& from, const std::string& to, double factor) {
    fabric_.SlowSiteLink(from, to, factor, now());
  }
  void CutHost(const std::string& host) { fabric_.Cut(host, now()); }
  void HealHost(const std::string& host);
  bool Connected(const SimulatedProcess& a, const SimulatedProcess& b) const {
    return fabric_.Connected(a.location(), b.location());
  }

  // ---- time
  absl::Time now() const { return queue_.now(); }
  void Run(absl::Duration duration);
  // Until `condition`, which is asked before every event. False when it did not become true within
  // `limit`, or when the cluster spins without time passing, which is a violation.
  bool RunUntil(const std::function<bool()>& condition, absl::Duration limit);
  void Post(absl::Duration delay, SimulatedEvent event) { queue_.Post(delay, std::move(event)); }
  // Messages and segments that were delivered.
  uint64_t deliveries() const { return deliveries_; }

  InvariantChecker& checker() { return checker_; }
  const ClusterSpec& spec() const { return spec_; }
  uint64_t wire_bytes_per_segment() const {
    return spec_.wire_bytes_per_segment > 0 ? spec_.wire_bytes_per_segment : spec_.segment_bytes;
  }

  // ---- for its processes
  // Of something that happened; `what` is only called when somebody listens.
  void Trace(absl::FunctionRef<std::string()> what);
  EventQueue* queue() { return &queue_; }
  FlowNetwork& network() { return network_; }
  // A message. `event` runs at `to` when it arrives, in the order of the wire, if `to` lives then
  // (it may be stopped, `from` may be dead). While one of the two hosts is cut off it waits for
  // HealHost. `wire` is one direction of one connection and is not kept.
  void Carry(const SimulatedProcess& from, SimulatedProcess* to, Wire* wire, SimulatedEvent event);
  // The connection over which `source` sends segments; its deliveries are told to the source.
  FlowId OpenFlow(SimulatedWorker* source, const SimulatedWorker& reader, TransferId transfer);
  void CloseFlow(FlowId flow);
  SimulatedWorker* FindWorker(const std::string& address) const;
  std::shared_ptr<const ShardLayout> LayoutOf(int shard);
  TransferId NextTransfer() { return TransferId(++transfers_); }
  // The time that one fill takes to stop, see ClusterSpec::stopping_time. Zero for every other one.
  absl::Duration DrawStoppingTime();

 private:
  struct Message {
    const SimulatedProcess* from;
    SimulatedProcess* to;
    SimulatedEvent event;
  };
  struct FlowOwner {
    SimulatedWorker* source;
    TransferId transfer;
  };

  // The next thing that happens; `delivery` is when the network delivers next.
  void Step(absl::Time delivery);
  void Arrive(Message message);

  const ClusterSpec spec_;
  EventQueue queue_{absl::UnixEpoch()};
  FlowNetwork network_;
  Fabric fabric_;
  InvariantChecker checker_{&queue_, spec_.segment_count};
  SeededRandom jitter_;
  SeededRandom stopping_;
  uint64_t transfers_ = 0;
  uint64_t deliveries_ = 0;
  std::unique_ptr<SimulatedServer> server_;
  std::vector<std::unique_ptr<SimulatedWorker>> workers_;
  std::map<int, std::shared_ptr<const ShardLayout>> layouts_;
  std::map<FlowId, FlowOwner> flows_;
  Slots<Message> on_their_way_;
  std::vector<Message> undelivered_;  // to or from a host that is cut off
};

}  // namespace th

#endif  // TH_SIMULATOR_CLUSTER_H_
