// The processes of a scenario that runs for real: a reference server and every rank on its virtual
// host, one call of a group at a time, and what of a scenario's events can be done to them.
//
//   TH_ASSIGN_OR_RETURN(auto cluster, ScenarioCluster::Open(scenario, policy, options));
//   TH_RETURN_IF_ERROR(cluster->Start({group}));
//   cluster->Call(group, {{"do", "unpublish"}}, [](const RealOutcome&) { ... });
//   TH_RETURN_IF_ERROR(cluster->RunUntil(moment));   // hands out the answers that come
//
// Not thread-safe; one a process (see ProcessPoller).
#ifndef TH_SCENARIO_RUNS_SCENARIO_CLUSTER_H_
#define TH_SCENARIO_RUNS_SCENARIO_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/controlled_rank/local_cluster.h"
#include "th/controlled_rank/process_poller.h"
#include "th/processes/virtual_hosts.h"
#include "th/scenario_runs/real_run.h"
#include "th/scenario_runs/real_scenario.h"
#include "th/simulator/scenarios/scenarios.h"

namespace th {

// How a call ended for a group, and each rank's answer (null: it has none).
struct RealOutcome {
  bool well = false;  // for every rank
  std::string error;  // of the first rank that has one
  std::vector<nlohmann::json> answers;
};

struct RealGroup {
  const ScenarioFamily* family = nullptr;
  size_t number = 0;  // in the family
  std::string name;
  std::vector<RankResult> ranks;  // the account, by rank
  bool joined = false;
  bool gone = false;  // killed or left; does not come back
  std::function<void(const RealOutcome&)> done;

  bool calling() const { return done != nullptr; }
  bool CanCall() const { return joined && !gone && !calling(); }
};

class ScenarioCluster {
 public:
  // The hosts, and the server under the policy's flag. Errors as RunScenarioForReal.
  static absl::StatusOr<std::unique_ptr<ScenarioCluster>> Open(const Scenario& scenario,
                                                               ScenarioPolicy policy,
                                                               const RealRunOptions& options);
  ScenarioCluster(const ScenarioCluster&) = delete;
  ScenarioCluster& operator=(const ScenarioCluster&) = delete;

  // Every group of the scenario, the trainer's too; none has joined. Stays as long as this.
  const std::vector<std::unique_ptr<RealGroup>>& groups() const { return groups_; }

  // Until all ranks of the groups have joined.
  absl::Status Start(const std::vector<RealGroup*>& groups);
  // `command` to every rank; `done` from RunUntil, once each has answered or is dead. CanCall must
  // hold.
  void Call(RealGroup* group, const nlohmann::json& command,
            std::function<void(const RealOutcome&)> done);
  // Hands out answers until `moment`, or returns earlier once some were handed out.
  absl::Status RunUntil(absl::Time moment);

  // ---- one command to the end, while no call goes on
  absl::Status SendToRanks(const RealGroup& group, const nlohmann::json& command);
  std::vector<RankProcess*> RanksOf(const RealGroup& group) const {
    return cluster_->RanksOf(group.name);
  }
  // Seconds of a plain TCP flow of the sender's shard, into a buffer that holds no version.
  absl::StatusOr<double> MeasureFlow(const RealGroup& from, const RealGroup& to);

  // ---- events; nullopt: all ranks
  void Signal(const RealGroup& group, std::optional<uint32_t> rank, int signal);
  absl::Status Cut(const std::string& host);
  absl::Status Restore(const std::string& host);
  absl::Status Slow(const std::string& host, double factor);

 private:
  ScenarioCluster(const Scenario& scenario, ScenarioPolicy policy, RealPlan plan);
  absl::Status OpenHosts(const std::string& folder);
  absl::Status OpenServer(const RealRunOptions& run);
  Placement PlacementOf(const Location& place) const;
  bool Answered(const RealGroup& group) const;
  void HandOut();

  const Scenario& scenario_;
  const ScenarioPolicy policy_;
  const RealPlan plan_;
  std::unique_ptr<VirtualHosts> hosts_;
  std::unique_ptr<LocalCluster> cluster_;  // ends before its hosts
  std::vector<std::unique_ptr<RealGroup>> groups_;
};

}  // namespace th

#endif  // TH_SCENARIO_RUNS_SCENARIO_CLUSTER_H_
