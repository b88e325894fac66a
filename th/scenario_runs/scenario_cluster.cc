#include "th/scenario_runs/scenario_cluster.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

using nlohmann::json;

// One step outside of the scenario's time may take this long.
constexpr absl::Duration kStepTimeout = absl::Minutes(2);

// The value of policy_server --policy; nullptr for the shipped server's own policy.
const char* ServerPolicyOf(ScenarioPolicy policy) {
  switch (policy) {
    case ScenarioPolicy::kNearest:
      return nullptr;
    case ScenarioPolicy::kDirect:
      return "direct";
    case ScenarioPolicy::kRandom:
      return "random";
    case ScenarioPolicy::kChain:
    case ScenarioPolicy::kBroadcast:
    case ScenarioPolicy::kSnapshotBroadcast:
      return "chain";
  }
  return nullptr;
}

}  // namespace

ScenarioCluster::ScenarioCluster(const Scenario& scenario, ScenarioPolicy policy, RealPlan plan)
    : scenario_(scenario), policy_(policy), plan_(std::move(plan)) {
  for (const ScenarioFamily& family : scenario.families) {
    for (size_t number = 0; number < family.groups.size(); ++number) {
      auto group = std::make_unique<RealGroup>();
      group->family = &family;
      group->number = number;
      group->name = family.groups[number];
      for (uint32_t rank = 0; rank < family.ranks; ++rank) {
        RankResult& result = group->ranks.emplace_back();
        result.name = absl::StrCat(group->name, "/", rank);
        result.group = group->name;
        result.role = family.role;
        result.host = family.places[number][rank].host;
      }
      groups_.push_back(std::move(group));
    }
  }
}

absl::StatusOr<std::unique_ptr<ScenarioCluster>> ScenarioCluster::Open(
    const Scenario& scenario, ScenarioPolicy policy, const RealRunOptions& options) {
  TH_ASSIGN_OR_RETURN(RealPlan plan, PlanRealScenario(scenario));
  std::unique_ptr<ScenarioCluster> cluster(new ScenarioCluster(scenario, policy, std::move(plan)));
  TH_RETURN_IF_ERROR(cluster->OpenHosts(options.cluster.folder));
  TH_RETURN_IF_ERROR(cluster->OpenServer(options));
  return cluster;
}

absl::Status ScenarioCluster::OpenHosts(const std::string& folder) {
  TH_ASSIGN_OR_RETURN(
      hosts_, VirtualHosts::Create(
                  {.rates = plan_.rates, .folder = folder, .second_site = plan_.second_site}));
  return absl::OkStatus();
}

absl::Status ScenarioCluster::OpenServer(const RealRunOptions& run) {
  LocalClusterOptions options = run.cluster;
  options.model = {.synthetic = "llm", .bytes = scenario_.shard_bytes * scenario_.shards};
  options.shards = scenario_.shards;
  options.server_placement = {.address = VirtualHosts::AddressOf(plan_.server_host),
                              .network_namespace = hosts_->NamespaceOf(plan_.server_host)};
  const char* const flag = ServerPolicyOf(policy_);
  if (flag != nullptr) {
    options.server_program = run.policy_server;
    options.server_flags.push_back(absl::StrCat("--policy=", flag));
  }
  TH_ASSIGN_OR_RETURN(cluster_, LocalCluster::Open(std::move(options)));
  return absl::OkStatus();
}

Placement ScenarioCluster::PlacementOf(const Location& place) const {
  const size_t host = plan_.host_of.at(place.host);
  return {.address = VirtualHosts::AddressOf(host),
          .host = place.host,
          .site = place.site,
          .rack = place.rack,
          .network_namespace = hosts_->NamespaceOf(host)};
}

absl::Status ScenarioCluster::Start(const std::vector<RealGroup*>& groups) {
  std::vector<GroupChoice> choices;
  choices.reserve(groups.size());
  for (RealGroup* group : groups) {
    GroupChoice& choice = choices.emplace_back();
    choice.name = group->name;
    choice.ranks = group->family->ranks;
    choice.load = group->family->role == GroupRole::kTrainer;
    choice.copies = group->family->copies;
    // Update stages too where there is room for it, which models of others do not.
    choice.stages = group->family->stages && policy_ == ScenarioPolicy::kNearest;
    choice.placements.reserve(choice.ranks);
    for (const Location& place : group->family->places[group->number]) {
      choice.placements.push_back(PlacementOf(place));
    }
  }
  TH_RETURN_IF_ERROR(cluster_->Start(choices));
  for (RealGroup* group : groups) group->joined = true;
  return absl::OkStatus();
}

// ---- calls

void ScenarioCluster::Call(RealGroup* group, const json& command,
                           std::function<void(const RealOutcome&)> done) {
  group->done = std::move(done);
  for (RankProcess* rank : RanksOf(*group)) rank->Send(command);
}

bool ScenarioCluster::Answered(const RealGroup& group) const {
  const std::vector<RankProcess*> ranks = RanksOf(group);
  return std::all_of(ranks.begin(), ranks.end(), [](RankProcess* r) { return r->answered(); });
}

void ScenarioCluster::HandOut() {
  for (const auto& group : groups_) {
    if (!group->calling() || !Answered(*group)) continue;
    RealOutcome outcome{.well = true};
    for (RankProcess* rank : RanksOf(*group)) {
      const absl::StatusOr<json>& answer = rank->answer();
      outcome.answers.push_back(answer.ok() ? *answer : json());
      if (answer.ok() || !outcome.well) continue;
      outcome.well = false;
      outcome.error = answer.status().ToString(absl::StatusToStringMode::kWithNoExtraData);
    }
    std::exchange(group->done, nullptr)(outcome);
  }
}

absl::Status ScenarioCluster::RunUntil(absl::Time moment) {
  const auto any_answered = [this] {
    return std::any_of(groups_.begin(), groups_.end(),
                       [this](const auto& group) { return group->calling() && Answered(*group); });
  };
  const absl::Status ran =
      cluster_->poller().RunUntil(any_answered, moment - MonotonicNow(), "the scenario");
  if (!ran.ok() && !absl::IsDeadlineExceeded(ran)) return ran;
  HandOut();
  return absl::OkStatus();
}

absl::Status ScenarioCluster::SendToRanks(const RealGroup& group, const json& command) {
  return cluster_->poller().SendToRanks(RanksOf(group), command, kStepTimeout);
}

absl::StatusOr<double> ScenarioCluster::MeasureFlow(const RealGroup& from, const RealGroup& to) {
  RankProcess* const sender = RanksOf(from).front();
  RankProcess* const reader = RanksOf(to).front();
  const std::string address =
      VirtualHosts::AddressOf(plan_.host_of.at(from.family->places[from.number][0].host));
  ProcessPoller& poller = cluster_->poller();
  TH_RETURN_IF_ERROR(poller.SendToRanks(
      {sender}, {{"do", "probe-send"}, {"readers", 1}, {"connections", 1}, {"host", address}},
      kStepTimeout));
  const uint32_t port = sender->answer()->value("port", 0u);
  TH_RETURN_IF_ERROR(poller.SendToRanks(
      {reader}, {{"do", "probe-read"}, {"port", port}, {"connections", 1}, {"host", address}},
      kStepTimeout));
  const double seconds =
      reader->answer()->value("ended_s", 0.0) - reader->answer()->value("started_s", 0.0);
  TH_RETURN_IF_ERROR(poller.SendToRanks({sender}, {{"do", "probe-end"}}, kStepTimeout));
  return seconds;
}

// ---- events

void ScenarioCluster::Signal(const RealGroup& group, std::optional<uint32_t> rank, int signal) {
  const std::vector<RankProcess*> ranks = RanksOf(group);
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!rank.has_value() || *rank == i) ranks[i]->process().Signal(signal);
  }
}

absl::Status ScenarioCluster::Cut(const std::string& host) {
  return hosts_->Cut(plan_.host_of.at(host));
}

absl::Status ScenarioCluster::Restore(const std::string& host) {
  return hosts_->Restore(plan_.host_of.at(host));
}

absl::Status ScenarioCluster::Slow(const std::string& host, double factor) {
  const auto rate = static_cast<uint64_t>(static_cast<double>(plan_.rate_of.at(host)) * factor);
  return hosts_->SetRate(plan_.host_of.at(host), rate);
}

}  // namespace th
