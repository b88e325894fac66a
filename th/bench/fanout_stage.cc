#include "th/bench/fanout_stage.h"

#include <algorithm>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

using nlohmann::json;

constexpr size_t kServerHost = 0;
constexpr char kHolderPrefix[] = "trainer-";
constexpr char kReaderPrefix[] = "reader-";

}  // namespace

absl::StatusOr<std::unique_ptr<FanoutStage>> FanoutStage::Open(FanoutStageOptions options,
                                                               VirtualHosts* hosts,
                                                               uint32_t most_holders) {
  options.cluster.server_placement = {.address = VirtualHosts::AddressOf(kServerHost),
                                      .network_namespace = hosts->NamespaceOf(kServerHost)};
  std::unique_ptr<FanoutStage> stage(new FanoutStage(std::move(options), hosts));
  TH_RETURN_IF_ERROR(stage->Start(most_holders));
  return stage;
}

absl::Status FanoutStage::Start(uint32_t most_holders) {
  std::vector<GroupChoice> groups;
  groups.reserve(options_.holders + options_.readers);
  for (uint32_t i = 1; i <= options_.holders; ++i) {
    holders_.push_back(absl::StrCat(kHolderPrefix, i));
    host_of_.emplace_back(holders_.back(), kServerHost + i);
    groups.push_back(GroupOn(holders_.back()));
  }
  for (uint32_t i = 1; i <= options_.readers; ++i) {
    readers_.push_back(absl::StrCat(kReaderPrefix, i));
    host_of_.emplace_back(readers_.back(), kServerHost + most_holders + i);
    groups.push_back(GroupOn(readers_.back()));
  }
  TH_ASSIGN_OR_RETURN(cluster_, LocalCluster::Open(options_.cluster));
  TH_RETURN_IF_ERROR(cluster_->Start(groups));
  bytes_ = cluster_->RanksOf(holders_).front()->answer()->value("bytes", uint64_t{0});
  return absl::OkStatus();
}

size_t FanoutStage::HostOf(const std::string& group) const {
  const auto found = std::find_if(host_of_.begin(), host_of_.end(),
                                  [&](const auto& entry) { return entry.first == group; });
  return found->second;
}

GroupChoice FanoutStage::GroupOn(const std::string& group) const {
  const size_t host = HostOf(group);
  return {.name = group,
          .load = absl::StartsWith(group, kHolderPrefix),
          .placement = {.address = VirtualHosts::AddressOf(host),
                        .host = absl::StrCat("virtual-", host),
                        .network_namespace = hosts_->NamespaceOf(host)}};
}

absl::Status FanoutStage::Rejoin(const std::string& group) {
  return cluster_->Start({GroupOn(group)});
}

absl::Status FanoutStage::SendToRanks(const std::vector<RankProcess*>& ranks, const json& command) {
  return cluster_->poller().SendToRanks(ranks, command, kFanoutStepTimeout);
}

absl::Status FanoutStage::PublishNext() {
  const std::vector<RankProcess*> holders = cluster_->RanksOf(holders_);
  if (content_ > 0) TH_RETURN_IF_ERROR(SendToRanks(holders, {{"do", "unpublish"}}));
  // Other bytes every time: what an earlier round left would not pass for this one's.
  TH_RETURN_IF_ERROR(SendToRanks(holders, {{"do", "change"}, {"content", ++content_}}));
  for (RankProcess* holder : holders) {
    TH_RETURN_IF_ERROR(
        SendToRanks({holder}, {{"do", "publish"}, {"label", absl::StrCat(content_)}}));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> FanoutStage::HolderBytesSent() {
  const std::vector<RankProcess*> holders = cluster_->RanksOf(holders_);
  TH_RETURN_IF_ERROR(SendToRanks(holders, {{"do", "stats"}}));
  uint64_t bytes = 0;
  for (RankProcess* holder : holders) bytes += holder->answer()->value("bytes_sent", uint64_t{0});
  return bytes;
}

absl::StatusOr<FanoutRound> FanoutStage::Update() {
  TH_ASSIGN_OR_RETURN(const uint64_t before, HolderBytesSent());
  TH_RETURN_IF_ERROR(SendToRanks(Readers(), {{"do", "update"}, {"version", "latest"}}));
  TH_ASSIGN_OR_RETURN(FanoutRound round, RoundOf(Readers()));
  TH_ASSIGN_OR_RETURN(const uint64_t after, HolderBytesSent());
  round.holder_bytes_sent = after - before;
  return round;
}

absl::StatusOr<FanoutRound> FanoutStage::RoundOf(const std::vector<RankProcess*>& readers) {
  double first = std::numeric_limits<double>::infinity();
  for (RankProcess* reader : readers) {
    if (reader->answer()->value("outcome", "") != "moved") {
      return absl::InternalError(
          absl::StrCat(reader->name(), " did not move: ", reader->answer()->dump()));
    }
    first = std::min(first, reader->answer()->value("started_s", 0.0));
  }
  FanoutRound round;
  round.readers.reserve(readers.size());
  for (RankProcess* reader : readers) {
    const json& answer = *reader->answer();
    FanoutReader& entry = round.readers.emplace_back();
    entry.name = reader->name();
    entry.seconds = answer.value("ended_s", 0.0) - first;
    entry.reread_bytes = answer.value("reread_bytes", uint64_t{0});
    for (const json& source : answer.value("sources", json::array())) {
      entry.sources.emplace_back(source.value("name", ""), source.value("bytes", uint64_t{0}));
    }
  }
  return round;
}

absl::Status FanoutStage::Verify(const std::vector<RankProcess*>& readers) {
  std::vector<RankProcess*> ranks = readers;
  RankProcess* const holder = cluster_->RanksOf(holders_).front();
  ranks.push_back(holder);
  TH_RETURN_IF_ERROR(SendToRanks(ranks, {{"do", "sum"}}));
  for (RankProcess* reader : readers) {
    if (reader->answer()->value("sum", "?") == holder->answer()->value("sum", "")) continue;
    return absl::DataLossError(absl::StrCat(reader->name(), " holds other bytes than the holder"));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> FanoutStage::MeasureFlow(size_t reader) {
  RankProcess* const holder = cluster_->RanksOf(holders_).front();
  RankProcess* const to = Readers()[reader];
  const std::string address = VirtualHosts::AddressOf(HostOf(holders_.front()));
  // The flow writes into the reader's buffer: it must not be offered to others meanwhile.
  TH_RETURN_IF_ERROR(SendToRanks({to}, {{"do", "unpublish"}}));
  TH_RETURN_IF_ERROR(SendToRanks(
      {holder}, {{"do", "probe-send"}, {"readers", 1}, {"connections", 1}, {"host", address}}));
  const uint32_t port = holder->answer()->value("port", 0u);
  TH_RETURN_IF_ERROR(SendToRanks(
      {to}, {{"do", "probe-read"}, {"port", port}, {"connections", 1}, {"host", address}}));
  const json& answer = *to->answer();
  const double seconds = answer.value("ended_s", 0.0) - answer.value("started_s", 0.0);
  congestion_control_ = answer.value("congestion_control", "");
  TH_RETURN_IF_ERROR(SendToRanks({holder}, {{"do", "probe-end"}}));
  return seconds;
}

}  // namespace th
