#include "th/controlled_rank/local_cluster.h"

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

constexpr absl::Duration kServerStartTimeout = absl::Seconds(30);
// Loading a large checkpoint takes its time.
constexpr absl::Duration kJoinTimeout = absl::Minutes(10);
constexpr absl::Duration kEndTimeout = absl::Seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Open(LocalClusterOptions options) {
  TH_ASSIGN_OR_RETURN(auto poller, ProcessPoller::Open());
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(std::move(options), std::move(poller)));
  TH_RETURN_IF_ERROR(cluster->StartServer());
  return cluster;
}

absl::Status LocalCluster::StartServer() {
  const Placement& placement = options_.server_placement;
  std::vector<std::string> arguments = {
      options_.server_program, absl::StrCat("--listen=", placement.address, ":0"), "--json",
      absl::StrCat("--state-dir=", options_.folder, "/state")};
  arguments.insert(arguments.end(), options_.server_flags.begin(), options_.server_flags.end());
  TH_ASSIGN_OR_RETURN(
      server_,
      RankProcess::Start({.name = "tensorhub_server",
                          .arguments = std::move(arguments),
                          .log_path = absl::StrCat(options_.folder, "/tensorhub_server.log"),
                          .network_namespace = placement.network_namespace}));
  server_->ExpectAnswer();
  poller_->Add(server_.get());
  TH_RETURN_IF_ERROR(
      poller_->AwaitAnswers({server_.get()}, kServerStartTimeout, "starting the server"));
  const nlohmann::json& said = *server_->answer();
  if (!said.contains("address") || !said["address"].is_string()) {
    return absl::InternalError(absl::StrCat("the server did not say its address: ", said.dump()));
  }
  server_address_ = said["address"];
  return absl::OkStatus();
}

LocalCluster::~LocalCluster() {
  // Their stdin ends, and so do they.
  for (auto& [name, ranks] : groups_) {
    for (auto& rank : ranks) rank->process().CloseInput();
  }
  for (auto& [name, ranks] : groups_) {
    for (auto& rank : ranks) (void)rank->process().AwaitEnd(kEndTimeout);
  }
  groups_.clear();
  if (server_ == nullptr) return;
  server_->process().Signal(SIGTERM);
  (void)server_->process().AwaitEnd(kEndTimeout);
}

absl::Status LocalCluster::Start(const std::vector<GroupChoice>& groups) {
  std::vector<std::string> names;
  for (const GroupChoice& group : groups) {
    names.push_back(group.name);
    for (uint32_t rank = 0; rank < group.ranks; ++rank)
      TH_RETURN_IF_ERROR(StartProcess(group, rank));
  }
  return poller_->AwaitAnswers(RanksOf(names), kJoinTimeout, "joining");
}

absl::Status LocalCluster::StartProcess(const GroupChoice& group, uint32_t rank) {
  const std::string name = absl::StrCat(group.name, "/", rank);
  TH_ASSIGN_OR_RETURN(
      auto process,
      RankProcess::Start(
          {.name = name,
           .arguments = {options_.rank_program},
           .log_path = absl::StrCat(options_.folder, "/", group.name, "-", rank, ".log"),
           .network_namespace = group.PlacementOf(rank).network_namespace}));
  poller_->Add(process.get());
  process->Send(JoinCommand(group, rank));
  groups_[group.name].push_back(std::move(process));
  return absl::OkStatus();
}

nlohmann::json LocalCluster::JoinCommand(const GroupChoice& group, uint32_t rank) const {
  nlohmann::json command = {{"do", "join"},
                            {"server", server_address_},
                            {"run", "demo"},
                            {"model", options_.model_name},
                            {"group", group.name},
                            {"rank", rank},
                            {"ranks", group.ranks},
                            {"host", group.PlacementOf(rank).host},
                            {"rack", group.PlacementOf(rank).rack},
                            {"site", group.PlacementOf(rank).site},
                            {"rate", options_.uplink_bytes_per_second},
                            {"transports", options_.transports},
                            {"checksums", options_.checksums},
                            {"connections", options_.connections},
                            {"data_threads", options_.data_threads},
                            {"load", group.load},
                            {"copies", group.copies},
                            {"stages", group.stages},
                            {"weights", ToJson(ShardChoice{.model = options_.model,
                                                           .shard = ShardOf(rank),
                                                           .shards = options_.shards})}};
  if (group.gpu.has_value()) command["gpu"] = *group.gpu;
  return command;
}

void LocalCluster::Kill(const std::string& group) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  for (auto& rank : found->second) rank->process().Signal(SIGKILL);
  for (auto& rank : found->second) poller_->Remove(rank.get());
  groups_.erase(found);
}

std::vector<RankProcess*> LocalCluster::RanksOf(const std::string& group) const {
  std::vector<RankProcess*> ranks;
  const auto found = groups_.find(group);
  if (found == groups_.end()) return ranks;
  for (const auto& rank : found->second) ranks.push_back(rank.get());
  return ranks;
}

std::vector<RankProcess*> LocalCluster::RanksOf(const std::vector<std::string>& groups) const {
  std::vector<RankProcess*> all;
  for (const std::string& group : groups) {
    for (RankProcess* rank : RanksOf(group)) all.push_back(rank);
  }
  return all;
}

std::vector<RankProcess*> LocalCluster::AllRanks() const {
  std::vector<RankProcess*> all;
  for (const auto& [name, ranks] : groups_) {
    for (const auto& rank : ranks) all.push_back(rank.get());
  }
  return all;
}

}  // namespace th
