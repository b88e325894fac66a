// A reference server and rank processes on loopback, for tests of the whole: real binaries, real
// sockets, ports chosen by the system.
//
//   ASSERT_OK_AND_ASSIGN(auto cluster, Cluster::Start());
//   ASSERT_OK_AND_ASSIGN(RankProcess* trainer, cluster->Join({.group = "trainer", .load = true}));
//   ASSERT_OK(cluster->SendToRanks({trainer}, Publish("v1")));
//   reader->Send(Update("latest"));
//   ASSERT_OK(cluster->RunUntil([&] { return cluster->FractionOf(reader) > 0.3; }, "30 %
//   received")); trainer->process().Signal(SIGKILL);
//
// A rank is the program controlled_rank, spoken to in JSON lines
// (th/controlled_rank/controlled_rank.h). Every wait ends after kPatience with an error that says
// what was awaited. Not thread-safe; one a process.
#ifndef TESTING_CLUSTER_CLUSTER_H_
#define TESTING_CLUSTER_CLUSTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/controlled_rank/process_poller.h"
#include "th/controlled_rank/rank_process.h"
#include "th/processes/virtual_hosts.h"

namespace th::testing {

// A test waits at most this long for one thing. Generous: sanitizers and loaded machines are slow.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

struct RankOptions {
  std::string group;
  uint32_t rank = 0;
  uint32_t ranks = 1;
  uint32_t shard = 0;
  uint32_t shards = 1;
  uint64_t model_bytes = uint64_t{16} << 20;
  uint64_t uplink_bytes_per_second = 0;
  // Empty: all that there are; where the uplink is capped, the one that the cap holds back.
  std::vector<std::string> transports;
  bool load = false;  // has content of its own: a publisher
};

// Commands of a rank.
nlohmann::json Publish(const std::string& label);
nlohmann::json Unpublish();
nlohmann::json Change(uint64_t content);
nlohmann::json Update(const std::string& version);
nlohmann::json UpdateWithin(const std::string& version, absl::Duration timeout);
nlohmann::json RollBack(const std::string& to);

class Cluster {
 public:
  // Starts the server. `server_flags` are added to its command line.
  // With `hosts`, which outlive the cluster, the server runs on the first of them and all ranks on
  // the second.
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(std::vector<std::string> server_flags = {},
                                                        const VirtualHosts* hosts = nullptr);
  ~Cluster();

  const std::string& server_address() const { return server_address_; }
  // The server's state directory. A test may change it while the server does not run.
  std::string state_dir() const;
  RankProcess* server() { return server_.get(); }
  // SIGKILL.
  absl::Status KillServer();
  // The same command again, on the same port and state.
  absl::Status StartServer();
  absl::Status RestartServer();  // both

  // A process that has joined and registered its shard.
  absl::StatusOr<RankProcess*> Join(const RankOptions& options);
  // A process that has been told to join; its answer is still awaited.
  absl::StatusOr<RankProcess*> StartJoin(const RankOptions& options);

  absl::Status SendToRanks(const std::vector<RankProcess*>& ranks, const nlohmann::json& command);
  absl::Status Await(const std::vector<RankProcess*>& ranks, absl::string_view what);
  absl::Status RunUntil(absl::FunctionRef<bool()> done, absl::string_view what);
  // Handles output until `rank` has said in a progress event that it holds `fraction`.
  absl::Status AwaitFraction(RankProcess* rank, double fraction);
  // How much of its present update the rank has last said to hold, 0 to 1, and from whom.
  double FractionOf(RankProcess* rank) const;
  std::string SourceOf(RankProcess* rank) const;

  // SHA-256 over all of a rank's tensors.
  absl::StatusOr<std::string> ChecksumOf(RankProcess* rank);

 private:
  struct Progress {
    double fraction = 0;
    std::string source;
  };
  Cluster() = default;
  // As ChildProcess::Options has it.
  int NamespaceOf(size_t host) const;

  std::string folder_;
  std::string server_address_;  // empty until the first start
  std::vector<std::string> server_flags_;
  const VirtualHosts* hosts_ = nullptr;
  std::unique_ptr<ProcessPoller> poller_;
  std::unique_ptr<RankProcess> server_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::map<const RankProcess*, Progress> progress_;
};

}  // namespace th::testing

#endif  // TESTING_CLUSTER_CLUSTER_H_
