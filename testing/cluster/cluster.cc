#include "testing/cluster/cluster.h"

#include <stdlib.h>

#include <csignal>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/controlled_rank/rank_weights.h"
#include "th/processes/runfiles.h"
#include "th/status/status_macros.h"

namespace th::testing {

using nlohmann::json;

json Publish(const std::string& label) { return {{"do", "publish"}, {"label", label}}; }
json Unpublish() { return {{"do", "unpublish"}}; }
json Change(uint64_t content) { return {{"do", "change"}, {"content", content}}; }
json Update(const std::string& version) { return {{"do", "update"}, {"version", version}}; }
json UpdateWithin(const std::string& version, absl::Duration timeout) {
  json command = Update(version);
  command["timeout_seconds"] = absl::ToDoubleSeconds(timeout);
  return command;
}
json RollBack(const std::string& to) { return {{"do", "rollback"}, {"to", to}, {"key", ""}}; }

namespace {

constexpr size_t kServerHost = 0;
constexpr size_t kRanksHost = 1;

}  // namespace

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(std::vector<std::string> server_flags,
                                                        const VirtualHosts* hosts) {
  std::unique_ptr<Cluster> cluster(new Cluster());
  cluster->server_flags_ = std::move(server_flags);
  cluster->hosts_ = hosts;
  const char* base = getenv("TEST_TMPDIR");
  cluster->folder_ = absl::StrCat(base == nullptr ? "/tmp" : base, "/cluster-XXXXXX");
  if (mkdtemp(cluster->folder_.data()) == nullptr) {
    return absl::InternalError("no folder for the cluster could be made");
  }
  TH_ASSIGN_OR_RETURN(cluster->poller_, ProcessPoller::Open());
  TH_RETURN_IF_ERROR(cluster->StartServer());
  return cluster;
}

Cluster::~Cluster() {
  ranks_.clear();
  server_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string Cluster::state_dir() const { return absl::StrCat(folder_, "/state"); }

int Cluster::NamespaceOf(size_t host) const {
  constexpr int kOwn = -1;
  return hosts_ == nullptr ? kOwn : hosts_->NamespaceOf(host);
}

absl::Status Cluster::StartServer() {
  TH_ASSIGN_OR_RETURN(const std::string program, FindProgram("th/server/tensorhub_server"));
  const std::string host = hosts_ == nullptr ? "127.0.0.1" : VirtualHosts::AddressOf(kServerHost);
  const std::string listen = server_address_.empty() ? absl::StrCat(host, ":0") : server_address_;
  std::vector<std::string> arguments = {program, absl::StrCat("--listen=", listen),
                                        absl::StrCat("--state-dir=", state_dir()), "--json"};
  arguments.insert(arguments.end(), server_flags_.begin(), server_flags_.end());
  TH_ASSIGN_OR_RETURN(server_, RankProcess::Start({.name = "server",
                                                   .arguments = std::move(arguments),
                                                   .network_namespace = NamespaceOf(kServerHost)}));
  server_->ExpectAnswer();
  poller_->Add(server_.get());
  TH_RETURN_IF_ERROR(Await({server_.get()}, "the server to listen"));
  server_address_ = (*server_->answer())["address"];
  return absl::OkStatus();
}

absl::Status Cluster::KillServer() {
  server_->process().Signal(SIGKILL);
  TH_RETURN_IF_ERROR(server_->process().AwaitEnd(kPatience));
  poller_->Remove(server_.get());
  server_.reset();
  return absl::OkStatus();
}

absl::Status Cluster::RestartServer() {
  TH_RETURN_IF_ERROR(KillServer());
  return StartServer();
}

absl::StatusOr<RankProcess*> Cluster::StartJoin(const RankOptions& options) {
  TH_ASSIGN_OR_RETURN(const std::string program, FindProgram(kControlledRank));
  const std::string name = absl::StrCat(options.group, "/", options.rank);
  TH_ASSIGN_OR_RETURN(
      auto started,
      RankProcess::Start(
          {.name = name, .arguments = {program}, .network_namespace = NamespaceOf(kRanksHost)}));
  RankProcess* const rank = started.get();
  ranks_.push_back(std::move(started));
  poller_->Add(rank);
  rank->on_event = [this, rank](const json& event) {
    const double total = event.value("total", 0.0);
    progress_[rank] = {.fraction = total > 0 ? event.value("bytes", 0.0) / total : 0,
                       .source = event.value("source", "")};
  };
  const ShardChoice weights{.model = {.synthetic = "llm", .bytes = options.model_bytes},
                            .shard = options.shard,
                            .shards = options.shards};
  const bool only_tcp = options.transports.empty() && options.uplink_bytes_per_second > 0;
  const std::vector<std::string> transports =
      only_tcp ? std::vector<std::string>{"tcp"} : options.transports;
  rank->Send({{"do", "join"},
              {"server", server_address_},
              {"run", "test"},
              {"model", "synthetic"},
              {"group", options.group},
              {"rank", options.rank},
              {"ranks", options.ranks},
              {"rate", options.uplink_bytes_per_second},
              {"transports", transports},
              {"connections", 2},
              {"data_threads", 2},
              {"weights", ToJson(weights)},
              {"load", options.load}});
  return rank;
}

absl::StatusOr<RankProcess*> Cluster::Join(const RankOptions& options) {
  TH_ASSIGN_OR_RETURN(RankProcess * rank, StartJoin(options));
  TH_RETURN_IF_ERROR(Await({rank}, "the join"));
  return rank;
}

absl::Status Cluster::SendToRanks(const std::vector<RankProcess*>& ranks, const json& command) {
  for (RankProcess* rank : ranks) progress_.erase(rank);
  return poller_->SendToRanks(ranks, command, kPatience);
}

absl::Status Cluster::Await(const std::vector<RankProcess*>& ranks, absl::string_view what) {
  return poller_->AwaitAnswers(ranks, kPatience, what);
}

absl::Status Cluster::RunUntil(absl::FunctionRef<bool()> done, absl::string_view what) {
  return poller_->RunUntil(done, kPatience, what);
}

absl::Status Cluster::AwaitFraction(RankProcess* rank, double fraction) {
  return RunUntil([&] { return FractionOf(rank) >= fraction; },
                  absl::StrCat(rank->name(), " to hold ", fraction));
}

double Cluster::FractionOf(RankProcess* rank) const {
  const auto found = progress_.find(rank);
  return found == progress_.end() ? 0 : found->second.fraction;
}

std::string Cluster::SourceOf(RankProcess* rank) const {
  const auto found = progress_.find(rank);
  return found == progress_.end() ? "" : found->second.source;
}

absl::StatusOr<std::string> Cluster::ChecksumOf(RankProcess* rank) {
  TH_RETURN_IF_ERROR(SendToRanks({rank}, {{"do", "sum"}}));
  return (*rank->answer())["sum"].get<std::string>();
}

}  // namespace th::testing
