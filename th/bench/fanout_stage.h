// Holders and readers of one version on virtual hosts, each rank in a process and on a host of its
// own, the reference server on another: what the rounds of `th bench fanout` are played on.
//
//   TH_ASSIGN_OR_RETURN(auto stage, FanoutStage::Open({.cluster = ..., .readers = 4},
//   hosts.get())); TH_RETURN_IF_ERROR(stage->PublishNext()); TH_ASSIGN_OR_RETURN(const FanoutRound
//   round, stage->Update()); TH_RETURN_IF_ERROR(stage->Verify());
//
// Host 0 is the server's, then come the holders' and the readers'. Not thread-safe; one a process
// (see ProcessPoller).
#ifndef TH_BENCH_FANOUT_STAGE_H_
#define TH_BENCH_FANOUT_STAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/bench/fanout_figures.h"
#include "th/controlled_rank/local_cluster.h"
#include "th/processes/virtual_hosts.h"

namespace th {

// One step of a round may take this long: large versions over slow links do.
inline constexpr absl::Duration kFanoutStepTimeout = absl::Minutes(10);

struct FanoutStageOptions {
  LocalClusterOptions cluster;  // its placement is the stage's choice
  uint32_t holders = 1;
  uint32_t readers = 1;
};

class FanoutStage {
 public:
  // How many hosts it takes.
  static size_t HostsFor(uint32_t holders, uint32_t readers) { return 1 + holders + readers; }

  // Everybody has joined. `hosts` outlives it and has as many as HostsFor says, or more: the
  // holders take the first of `most_holders`.
  static absl::StatusOr<std::unique_ptr<FanoutStage>> Open(FanoutStageOptions options,
                                                           VirtualHosts* hosts,
                                                           uint32_t most_holders);

  uint64_t bytes() const { return bytes_; }
  // All holders publish other bytes than before, under one label.
  absl::Status PublishNext();
  // All readers update at once, to the end.
  absl::StatusOr<FanoutRound> Update();
  // DATA_LOSS naming the reader whose bytes have other SHA-256 sums than the first holder's.
  absl::Status Verify(const std::vector<RankProcess*>& readers);
  // Seconds of one plain TCP flow of the version's bytes from the first holder to the reader at
  // place `reader` of Readers(), whose buffer holds no version afterwards.
  absl::StatusOr<double> MeasureFlow(size_t reader);
  const std::string& congestion_control() const { return congestion_control_; }  // of the flow

  // The parts of an update, for those who interfere with it.
  LocalCluster& cluster() { return *cluster_; }
  VirtualHosts& hosts() { return *hosts_; }
  std::vector<RankProcess*> Readers() const { return cluster_->RanksOf(readers_); }
  const std::vector<std::string>& reader_groups() const { return readers_; }
  size_t HostOf(const std::string& group) const;
  // A group whose process has ended comes back on its host, without a version.
  absl::Status Rejoin(const std::string& group);
  // From the first start to each one's end. INTERNAL when one has not moved.
  static absl::StatusOr<FanoutRound> RoundOf(const std::vector<RankProcess*>& readers);

 private:
  FanoutStage(FanoutStageOptions options, VirtualHosts* hosts) : options_(options), hosts_(hosts) {}
  absl::Status Start(uint32_t most_holders);
  GroupChoice GroupOn(const std::string& group) const;
  absl::Status SendToRanks(const std::vector<RankProcess*>& ranks, const nlohmann::json& command);
  absl::StatusOr<uint64_t> HolderBytesSent();

  const FanoutStageOptions options_;
  VirtualHosts* const hosts_;
  std::unique_ptr<LocalCluster> cluster_;
  std::vector<std::string> holders_, readers_;  // the groups
  std::vector<std::pair<std::string, size_t>> host_of_;
  uint64_t bytes_ = 0;
  uint64_t content_ = 0;  // of the version published last
  std::string congestion_control_;
};

}  // namespace th

#endif  // TH_BENCH_FANOUT_STAGE_H_
