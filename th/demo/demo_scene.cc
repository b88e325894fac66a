#include "th/demo/demo_scene.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "th/command_line/quantity.h"
#include "th/processes/resident_memory.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

using nlohmann::json;

constexpr char kTrainer[] = "trainer";
#ifdef TH_UNDER_SANITIZER
constexpr bool kResidentIsOurs = false;  // most of it is the sanitizer's
#else
constexpr bool kResidentIsOurs = true;
#endif
// The content of the weights in each version; 0 is the model as it came (rank_weights.h).
constexpr uint64_t kFirstContent = 0, kSecondContent = 1, kThirdContent = 2, kOtherThirdContent = 3;

std::string RolloutName(uint32_t number) { return absl::StrCat("rollout-", number); }

}  // namespace

absl::Status DemoScene::Play() {
  TH_RETURN_IF_ERROR(SetUp());
  TH_RETURN_IF_ERROR(PlayFirstVersion());
  TH_RETURN_IF_ERROR(PlayKill());
  TH_RETURN_IF_ERROR(PlayLateJoiner());
  TH_RETURN_IF_ERROR(PlayThirdVersion());
  return PlayRollBack();
}

absl::Status DemoScene::SetUp() {
  report_->trainer_group = kTrainer;
  report_->kill_wanted = options_.rollouts > 1;
  TH_ASSIGN_OR_RETURN(cluster_, LocalCluster::Open(options_.cluster));
  screen_->ShowLine(absl::StrCat("tensorhub_server listens on ", cluster_->server_address()));
  std::vector<GroupChoice> groups = {
      {.name = kTrainer, .ranks = options_.trainer_ranks, .load = true}};
  for (uint32_t i = 1; i <= options_.rollouts; ++i) {
    rollouts_.push_back(RolloutName(i));
    groups.push_back({.name = RolloutName(i), .ranks = options_.rollout_ranks});
  }
  TH_RETURN_IF_ERROR(cluster_->Start(groups));
  screen_->ShowLine(absl::StrFormat(
      "trainer: %d ranks hold %d distinct shards, %s together; %d rollout groups of %d ranks",
      options_.trainer_ranks, options_.cluster.shards, FormatBytes(options_.distinct_bytes),
      options_.rollouts, options_.rollout_ranks));
  return MeasureMemory(/*baseline=*/true);
}

absl::Status DemoScene::PlayFirstVersion() {
  TH_RETURN_IF_ERROR(Publish("1", kFirstContent));
  TH_RETURN_IF_ERROR(Deliver(rollouts_, /*kill=*/false));
  if (options_.sabotage.empty()) return absl::OkStatus();
  RankProcess* const spoilt = cluster_->RanksOf(rollouts_.front()).front();
  TH_RETURN_IF_ERROR(
      cluster_->poller().SendToRanks({spoilt}, {{"do", options_.sabotage}}, options_.step_timeout));
  return Verify(rollouts_);
}

absl::Status DemoScene::PlayKill() {
  TH_RETURN_IF_ERROR(SendToTrainer({{"do", "unpublish"}}));
  TH_RETURN_IF_ERROR(Publish("2", kSecondContent));
  TH_RETURN_IF_ERROR(Deliver(rollouts_, /*kill=*/options_.rollouts > 1));
  if (report_->killed_group.empty()) return absl::OkStatus();
  report_->survivors_complete = report_->differences.empty();
  const std::string& back = report_->killed_group;
  screen_->ShowLine(absl::StrCat(back, " rejoins"));
  TH_RETURN_IF_ERROR(cluster_->Start({{.name = back, .ranks = options_.rollout_ranks}}));
  TH_RETURN_IF_ERROR(MeasureMemory(/*baseline=*/false));
  TH_RETURN_IF_ERROR(Update({back}, /*kill=*/false));
  TH_RETURN_IF_ERROR(Verify({back}));
  report_->rejoined = report_->differences.empty();
  return absl::OkStatus();
}

absl::Status DemoScene::PlayLateJoiner() {
  TH_RETURN_IF_ERROR(SendToTrainer({{"do", "unpublish"}}));
  const std::string late = RolloutName(options_.rollouts + 1);
  screen_->ShowLine(absl::StrCat("the trainer has unpublished; ", late, " joins late"));
  rollouts_.push_back(late);
  TH_RETURN_IF_ERROR(cluster_->Start({{.name = late, .ranks = options_.rollout_ranks}}));
  TH_RETURN_IF_ERROR(MeasureMemory(/*baseline=*/false));
  const size_t before = report_->transfers.size();
  TH_RETURN_IF_ERROR(Update({late}, /*kill=*/false));
  std::set<std::string> sources;
  for (size_t i = before; i < report_->transfers.size(); ++i)
    sources.insert(report_->transfers[i].source);
  report_->late_joiner_sources.assign(sources.begin(), sources.end());
  return Verify({late});
}

absl::Status DemoScene::PlayThirdVersion() {
  TH_RETURN_IF_ERROR(Publish("3", kThirdContent));
  return Deliver(rollouts_, /*kill=*/false);
}

absl::Status DemoScene::PlayRollBack() {
  screen_->ShowLine("the trainer resumes from a checkpoint: it rolls back to version 2");
  // One key: the first rank's call rolls back, the others hear its result.
  TH_RETURN_IF_ERROR(SendToTrainer({{"do", "rollback"}, {"to", "2"}, {"key", "resume-from-2"}}));
  TH_RETURN_IF_ERROR(SendToTrainer({{"do", "unpublish"}}));
  TH_RETURN_IF_ERROR(Publish("2", kSecondContent));
  TH_RETURN_IF_ERROR(Deliver(rollouts_, /*kill=*/false));
  TH_RETURN_IF_ERROR(SendToTrainer({{"do", "unpublish"}}));
  TH_RETURN_IF_ERROR(Publish("3", kOtherThirdContent));
  return Deliver(rollouts_, /*kill=*/false);
}

absl::Status DemoScene::SendToTrainer(const json& command) {
  return cluster_->poller().SendToRanks(cluster_->RanksOf(kTrainer), command,
                                        options_.step_timeout);
}

absl::Status DemoScene::Publish(const std::string& label, uint64_t content) {
  TH_RETURN_IF_ERROR(SendToTrainer({{"do", "change"}, {"content", content}}));
  TH_ASSIGN_OR_RETURN(const std::vector<ShardChecksum> checksums, ChecksumsOf({kTrainer}));
  TH_RETURN_IF_ERROR(SendToTrainer({{"do", "publish"}, {"label", label}}));
  version_ = cluster_->RanksOf(kTrainer).front()->answer()->value("version", label);
  const std::vector<std::string> differences = expected_.Set(version_, checksums);
  report_->differences.insert(report_->differences.end(), differences.begin(), differences.end());
  screen_->ShowLine(absl::StrCat("version ", version_, " is published"));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> DemoScene::TrainerBytesSent() {
  TH_RETURN_IF_ERROR(SendToTrainer({{"do", "stats"}}));
  uint64_t bytes = 0;
  for (RankProcess* rank : cluster_->RanksOf(kTrainer))
    bytes += rank->answer()->value("bytes_sent", uint64_t{0});
  return bytes;
}

absl::Status DemoScene::Deliver(const std::vector<std::string>& groups, bool kill) {
  TH_ASSIGN_OR_RETURN(const uint64_t before, TrainerBytesSent());
  TH_RETURN_IF_ERROR(Update(groups, kill));
  TH_ASSIGN_OR_RETURN(const uint64_t after, TrainerBytesSent());
  report_->deliveries.push_back({.version = version_,
                                 .shard_bytes = options_.distinct_bytes,
                                 .trainer_bytes_sent = after - before,
                                 .with_kill = kill && !report_->killed_group.empty()});
  return Verify(groups);
}

absl::Status DemoScene::Update(const std::vector<std::string>& groups, bool kill) {
  fills_.clear();
  shown_.clear();
  screen_->Clear();
  std::vector<RankProcess*> waited = cluster_->RanksOf(groups);
  for (const std::string& group : groups) {
    const std::vector<RankProcess*> ranks = cluster_->RanksOf(group);
    for (uint32_t rank = 0; rank < ranks.size(); ++rank) Watch(group, rank, ranks[rank]);
  }
  for (RankProcess* rank : waited) rank->Send({{"do", "update"}, {"version", "latest"}});
  const auto over = [&] {
    if (kill && report_->killed_group.empty()) KillIfSeen();
    waited = cluster_->RanksOf(groups);  // without those that were killed
    ShowEnds(waited);
    return std::all_of(waited.begin(), waited.end(),
                       [](RankProcess* rank) { return rank->answered(); });
  };
  TH_RETURN_IF_ERROR(cluster_->poller().RunUntil(over, options_.step_timeout,
                                                 absl::StrCat("the update to version ", version_)));
  for (RankProcess* rank : waited) TH_RETURN_IF_ERROR(rank->answer().status());
  for (RankProcess* rank : waited) Record(rank);
  screen_->Clear();
  return absl::OkStatus();
}

void DemoScene::Watch(const std::string& group, uint32_t rank, RankProcess* process) {
  fills_[process->name()] = {.group = group, .rank = rank};
  process->on_event = [this, name = process->name()](const json& event) {
    ObservedFill& fill = fills_[name];
    fill.bytes = event.value("bytes", uint64_t{0});
    fill.total = event.value("total", uint64_t{0});
    fill.sources = SplitSources(event.value("source", ""));
    ReaderProgress& shown = shown_[name];
    shown = {.name = name,
             .bytes = fill.bytes,
             .total = fill.total,
             .source = absl::StrJoin(fill.sources, ", ")};
    screen_->Show(shown, MonotonicNow());
  };
}

void DemoScene::KillIfSeen() {
  std::vector<ObservedFill> fills;
  for (const auto& [name, fill] : fills_) fills.push_back(fill);
  const std::optional<Victim> victim = FindVictim(fills);
  if (!victim) return;
  for (RankProcess* rank : cluster_->RanksOf(victim->group)) {
    ReaderProgress& shown = shown_[rank->name()];
    shown.outcome = "killed";
    screen_->Show(shown, MonotonicNow());
    fills_.erase(rank->name());
  }
  cluster_->Kill(victim->group);
  report_->killed_group = victim->group;
  report_->killed_at_fraction = victim->fraction;
  screen_->ShowLine(absl::StrFormat("%s is killed (SIGKILL) at %.0f %%, while others read from it",
                                    victim->group, victim->fraction * 100));
}

void DemoScene::ShowEnds(const std::vector<RankProcess*>& ranks) {
  for (RankProcess* rank : ranks) {
    if (!rank->answered()) continue;
    ReaderProgress& shown = shown_[rank->name()];
    if (!shown.outcome.empty()) continue;
    shown.name = rank->name();
    shown.outcome = rank->answer().ok() ? "done" : "failed";
    if (rank->answer().ok()) shown.bytes = std::max(shown.bytes, shown.total);
    screen_->Show(shown, MonotonicNow());
  }
}

void DemoScene::Record(RankProcess* reader) {
  const json& answer = *reader->answer();
  if (answer.value("outcome", "") != "moved") {
    report_->differences.push_back(absl::StrCat(reader->name(), " did not move to version ",
                                                version_, ": ", answer.value("outcome", "")));
  } else if (answer.value("version", "") != version_) {
    report_->differences.push_back(absl::StrCat(reader->name(), " moved to version ",
                                                answer.value("version", ""), " instead of ",
                                                version_));
  }
  if (std::find(report_->readers.begin(), report_->readers.end(), reader->name()) ==
      report_->readers.end()) {
    report_->readers.push_back(reader->name());
  }
  const uint32_t reroutes = answer.value("reroutes", 0u);
  report_->stall += absl::Seconds(answer.value("stall_seconds", 0.0));
  report_->rerouted_bytes += answer.value("rerouted_bytes", uint64_t{0});
  memory_.AddPeakExtra(reader->name(), answer.value("peak_extra_bytes", uint64_t{0}));
  for (const json& source : answer.value("sources", json::array())) {
    report_->transfers.push_back({.version = version_,
                                  .reader = reader->name(),
                                  .source = source.value("name", ""),
                                  .transport = source.value("transport", ""),
                                  .bytes = source.value("bytes", uint64_t{0}),
                                  .active = absl::Seconds(source.value("seconds", 0.0)),
                                  .reroutes = reroutes});
  }
}

absl::StatusOr<std::vector<ShardChecksum>> DemoScene::ChecksumsOf(
    const std::vector<std::string>& groups) {
  TH_RETURN_IF_ERROR(cluster_->poller().SendToRanks(cluster_->RanksOf(groups), {{"do", "sum"}},
                                                    options_.step_timeout));
  std::vector<ShardChecksum> checksums;
  for (const std::string& group : groups) {
    uint32_t rank = 0;
    for (RankProcess* process : cluster_->RanksOf(group)) {
      checksums.push_back({.rank = process->name(),
                           .shard = cluster_->ShardOf(rank++),
                           .checksum = process->answer()->value("sum", ""),
                           .tensors = process->answer()->value("tensors", uint64_t{0})});
    }
  }
  return checksums;
}

absl::Status DemoScene::Verify(const std::vector<std::string>& groups) {
  TH_ASSIGN_OR_RETURN(const std::vector<ShardChecksum> checksums, ChecksumsOf(groups));
  const std::vector<std::string> differences = expected_.Compare(version_, checksums);
  report_->differences.insert(report_->differences.end(), differences.begin(), differences.end());
  report_->shards_compared = expected_.shards_compared();
  report_->tensors_compared = expected_.tensors_compared();
  screen_->ShowLine(differences.empty()
                        ? absl::StrCat("version ", version_, ": all ", checksums.size(),
                                       " readers' tensors have the trainer's SHA-256 sums")
                        : absl::StrCat("DIFFERENT: ", absl::StrJoin(differences, "; ")));
  return MeasureMemory(/*baseline=*/false);
}

absl::Status DemoScene::MeasureMemory(bool baseline) {
  const std::vector<RankProcess*> ranks = cluster_->AllRanks();
  TH_RETURN_IF_ERROR(
      cluster_->poller().SendToRanks(ranks, {{"do", "stats"}}, options_.step_timeout));
  const auto note = [&](const std::string& process, uint64_t bytes) {
    const bool begins = baseline || !kResidentIsOurs;
    begins ? memory_.SetBaseline(process, bytes) : memory_.Measure(process, bytes);
  };
  for (RankProcess* rank : ranks)
    note(rank->name(), rank->answer()->value("resident_bytes", uint64_t{0}));
  const absl::StatusOr<uint64_t> server = ResidentBytes(cluster_->server().process().pid());
  if (!server.ok()) return absl::UnavailableError("the server has gone");
  note("server", *server);
  report_->bytes_held_beyond_live = memory_.held_beyond_live();
  return absl::OkStatus();
}

}  // namespace th
