// A reference server and groups of ranks, each in a process of its own on this machine: what a demo
// or a benchmark is made of.
//
//   TH_ASSIGN_OR_RETURN(auto cluster, LocalCluster::Open(options));       // the server is up
//   TH_RETURN_IF_ERROR(cluster->Start({{.name = "trainer", .ranks = 4, .load = true}}));
//   TH_RETURN_IF_ERROR(cluster->poller().Tell(cluster->RanksOf("trainer"), {{"do", "publish"},
//   ...},
//                                               timeout));
//
// Rank r of every group holds shard r modulo the number of shards. All processes listen on ports
// that the system chooses, and end with this one. They run in this machine's network, or each group
// on a virtual host of its own (virtual_hosts.h). Not thread-safe; one a process (see
// ProcessPoller).
#ifndef TH_CONTROLLED_RANK_LOCAL_CLUSTER_H_
#define TH_CONTROLLED_RANK_LOCAL_CLUSTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/controlled_rank/process_poller.h"
#include "th/controlled_rank/rank_process.h"
#include "th/controlled_rank/rank_weights.h"

namespace th {

// Where a process runs.
struct Placement {
  std::string address = "127.0.0.1";  // of its host
  std::string host;                   // what it says of its location; empty: this machine
  std::string site, rack;             // likewise; empty: unknown
  int network_namespace = -1;         // a descriptor that outlives the cluster; -1: this process's
};

struct LocalClusterOptions {
  std::string rank_program;    // controlled_rank
  std::string server_program;  // tensorhub_server
  std::string folder;          // for state and logs; exists
  std::string model_name = "model";
  ModelChoice model;
  uint32_t shards = 1;
  uint64_t uplink_bytes_per_second = 0;  // of every process; 0: no cap
  // Processes stand for hosts: what moves between them crosses links, or a capped uplink.
  std::vector<std::string> transports = {"tcp"};
  bool checksums = true;
  uint32_t connections = 2;
  uint32_t data_threads = 2;
  Placement server_placement;
  std::vector<std::string> server_flags;  // besides those that every cluster gives
};

struct GroupChoice {
  std::string name;
  uint32_t ranks = 1;
  bool load = false;  // with the model's content; else zeros, to be received
  Placement placement;
  std::vector<Placement> placements;  // of each rank, where they differ; empty: `placement`
  uint32_t copies = 0;          // of its shard, that TensorHub may hold in each rank's host memory
  bool stages = false;          // likewise one in which a version is staged
  std::optional<uint32_t> gpu;  // the index of the one that has the weights; none: host memory

  const Placement& PlacementOf(uint32_t rank) const {
    return placements.empty() ? placement : placements[rank];
  }
};

class LocalCluster {
 public:
  // Errors of starting the server: INTERNAL with what it said.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Open(LocalClusterOptions options);
  // Ends all processes: politely, then not.
  ~LocalCluster();
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  ProcessPoller& poller() { return *poller_; }
  RankProcess& server() { return *server_; }
  const std::string& server_address() const { return server_address_; }

  // Starts the groups' processes and waits until all have joined. A name that ended may come again.
  absl::Status Start(const std::vector<GroupChoice>& groups);
  // SIGKILL, without a word to anybody.
  void Kill(const std::string& group);

  bool IsThere(const std::string& group) const { return groups_.count(group) > 0; }
  // In the order of their ranks.
  std::vector<RankProcess*> RanksOf(const std::string& group) const;
  std::vector<RankProcess*> RanksOf(const std::vector<std::string>& groups) const;
  std::vector<RankProcess*> AllRanks() const;
  uint32_t ShardOf(uint32_t rank) const { return rank % options_.shards; }

 private:
  LocalCluster(LocalClusterOptions options, std::unique_ptr<ProcessPoller> poller)
      : options_(std::move(options)), poller_(std::move(poller)) {}
  absl::Status StartServer();
  absl::Status StartProcess(const GroupChoice& group, uint32_t rank);
  nlohmann::json JoinCommand(const GroupChoice& group, uint32_t rank) const;

  const LocalClusterOptions options_;
  std::unique_ptr<ProcessPoller> poller_;
  std::unique_ptr<RankProcess> server_;
  std::string server_address_;
  std::map<std::string, std::vector<std::unique_ptr<RankProcess>>> groups_;
};

}  // namespace th

#endif  // TH_CONTROLLED_RANK_LOCAL_CLUSTER_H_
