// A cluster for tests: every rank on a host of its own, a segment a link in 20 ms, messages in 1
// ms, and words for what tests do with whole groups. What must hold is expected when it ends.
//
//   ClusterHarness cluster;
//   std::vector<SimulatedWorker*> trainer = cluster.JoinGroup("trainer", 2);
//   std::vector<SimulatedWorker*> rollout = cluster.JoinGroup("rollout-1", 2);
//   cluster.PublishAll(trainer, "step-1");
//   cluster.UpdateAll(rollout);                     // runs until every rank has its result
//   EXPECT_TRUE(rollout[0]->buffer().Is("step-1"));
//
// Rank r of a group holds shard r, unless told otherwise; the content of a version is named as its
// label.
#ifndef TH_SIMULATOR_CLUSTER_HARNESS_H_
#define TH_SIMULATOR_CLUSTER_HARNESS_H_

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "th/simulator/catalog_watch.h"
#include "th/simulator/cluster.h"
#include "th/simulator/server_faults.h"

namespace th {

inline constexpr uint64_t kHarnessSegments = 16;
inline constexpr absl::Duration kHarnessLatency = absl::Milliseconds(1);
inline constexpr absl::Duration kHarnessSegmentTime = absl::Milliseconds(20);

// For the failure messages of tests: GoogleTest finds it by its name.
void PrintTo(const OperationDone& done, std::ostream* os);

class ClusterHarness {
 public:
  // `stopping_time`: as in ClusterSpec.
  explicit ClusterHarness(absl::Duration stopping_time = absl::ZeroDuration());
  ~ClusterHarness();  // expects that nothing was violated, but what was taken
  Cluster& cluster() { return cluster_; }
  std::vector<std::string> TakeViolations() { return cluster_.checker().TakeViolations(); }

  // Returns when the server has agreed, or the rank has ended.
  SimulatedWorker* JoinRank(const RankName& name, uint32_t ranks);
  SimulatedWorker* JoinRank(const RankName& name, uint32_t ranks, int shard);
  // Returns at once.
  SimulatedWorker* StartRank(const RankName& name, uint32_t ranks) {
    return StartRank(name, ranks, static_cast<int>(name.rank.value));
  }
  std::vector<SimulatedWorker*> JoinGroup(const std::string& group, uint32_t ranks);

  CallId Publish(SimulatedWorker* rank, const std::string& label);
  // All ranks at once, until each has its result.
  std::vector<OperationDone> PublishAll(const std::vector<SimulatedWorker*>& ranks,
                                        const std::string& label);
  std::vector<OperationDone> UpdateAll(const std::vector<SimulatedWorker*>& ranks,
                                       const VersionSelector& selector = LatestVersion{});
  std::vector<OperationDone> UnpublishAll(const std::vector<SimulatedWorker*>& ranks);
  // The same for calls that were begun one by one.
  std::vector<OperationDone> Await(const std::vector<SimulatedWorker*>& ranks,
                                   const std::vector<CallId>& calls);
  CommandFinished RunCommandOf(SimulatedWorker* rank, const RunCommand& command);

  void KillServer() { cluster_.server().Kill(); }
  void StartServer() { cluster_.server().Start(); }
  // Its host neither answers nor closes anything.
  void SilenceServer() { cluster_.CutHost(cluster_.server().location().host); }
  ServerFaults& server_faults() { return server_faults_; }
  // From time to time.
  void LookAtCatalog() { catalog_watch_.Look(); }
  void EndSilence() { cluster_.HealHost(cluster_.server().location().host); }
  absl::Time now() const { return cluster_.now(); }
  void Run(absl::Duration duration) { cluster_.Run(duration); }
  bool RunUntil(const std::function<bool()>& condition) {
    return cluster_.RunUntil(condition, absl::Seconds(120));
  }

 private:
  SimulatedWorker* StartRank(const RankName& name, uint32_t ranks, int shard);

  Cluster cluster_;
  ServerFaults server_faults_{&cluster_};
  CatalogWatch catalog_watch_{&cluster_};
};

}  // namespace th

#endif  // TH_SIMULATOR_CLUSTER_HARNESS_H_
