#include "th/scenario_runs/scenario_report.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "th/command_line/quantity.h"
#include "th/command_line/text_table.h"
#include "th/topology/location.h"

namespace th {
namespace {

constexpr size_t kSlowestRanksReported = 5;
constexpr size_t kVersionsReported = 12;
constexpr size_t kLinksReported = 8;

double Seconds(absl::Duration time) { return absl::ToDoubleSeconds(time); }
std::string SecondsText(absl::Duration time) { return absl::StrFormat("%.3f s", Seconds(time)); }

// A time of so many updates: of none there is no time.
std::string UpdateTimeText(size_t updates, absl::Duration time) {
  return updates > 0 ? SecondsText(time) : "-";
}
nlohmann::json UpdateTimeJson(size_t updates, absl::Duration time) {
  return updates > 0 ? nlohmann::json(Seconds(time)) : nlohmann::json();
}

std::string SweptText(const ScenarioOverrides& swept) {
  return absl::StrJoin(swept, " ", absl::PairFormatter("="));
}

StallCause CauseAt(size_t place) { return static_cast<StallCause>(place); }

std::string Ratio(absl::Duration time, absl::Duration reference) {
  if (reference <= absl::ZeroDuration()) return "-";
  return absl::StrFormat("%.2f", absl::FDivDuration(time, reference));
}

std::string CausesTable(const ScenarioResult& result) {
  TextTable table({{"WAITS FOR"}, {"TRAINER", Align::kRight}, {"ROLLOUTS", Align::kRight}});
  const StallTimes trainer = result.TrainerStall(), rollout = result.RolloutStall();
  for (size_t i = 0; i < kStallCauses; ++i) {
    const StallCause cause = CauseAt(i);
    if (trainer.of(cause) + rollout.of(cause) <= absl::ZeroDuration()) continue;
    table.AddRow({std::string(StallCauseName(cause)), SecondsText(trainer.of(cause)),
                  SecondsText(rollout.of(cause))});
  }
  table.AddRow({"all", SecondsText(trainer.total()), SecondsText(rollout.total())});
  return table.ToString();
}

std::string SlowestRanksTable(const ScenarioResult& result) {
  std::vector<const RankResult*> ranks;
  for (const RankResult& rank : result.ranks) ranks.push_back(&rank);
  std::stable_sort(ranks.begin(), ranks.end(), [](const RankResult* a, const RankResult* b) {
    return a->stall.total() > b->stall.total();
  });
  ranks.resize(std::min(ranks.size(), kSlowestRanksReported));
  TextTable table({{"RANK"}, {"ROLE"}, {"STALL", Align::kRight}, {"MOSTLY FOR"}, {"HOST"}});
  for (const RankResult* rank : ranks) {
    size_t most = 0;
    for (size_t i = 1; i < kStallCauses; ++i) {
      if (rank->stall.of(CauseAt(i)) > rank->stall.of(CauseAt(most))) most = i;
    }
    table.AddRow({rank->name, std::string(GroupRoleName(rank->role)),
                  SecondsText(rank->stall.total()), std::string(StallCauseName(CauseAt(most))),
                  rank->host});
  }
  return table.ToString();
}

std::string VersionsTable(const ScenarioResult& result) {
  TextTable table({{"VERSION"},
                   {"PUBLISHED AT", Align::kRight},
                   {"GROUPS MOVED", Align::kRight},
                   {"SLOWEST UPDATE", Align::kRight},
                   {"LAST READER AFTER", Align::kRight}});
  const size_t reported = std::min(result.versions.size(), kVersionsReported);
  for (size_t i = result.versions.size() - reported; i < result.versions.size(); ++i) {
    const VersionResult& version = result.versions[i];
    table.AddRow({version.label, SecondsText(version.published), absl::StrCat(version.groups),
                  UpdateTimeText(version.groups, version.slowest_update),
                  UpdateTimeText(version.groups, version.last_reader)});
  }
  return table.ToString();
}

std::string BytesTable(const ScenarioResult& result) {
  TextTable table({{"RECEIVED FROM"}, {"BYTES", Align::kRight}});
  for (size_t i = 0; i < kDistances; ++i) {
    if (result.bytes_over[i] == 0) continue;
    table.AddRow(
        {std::string(DistanceName(static_cast<Distance>(i))), FormatBytes(result.bytes_over[i])});
  }
  return table.ToString();
}

std::string LinksTable(const ScenarioResult& result) {
  TextTable table({{"LINK"},
                   {"BYTES", Align::kRight},
                   {"RATE", Align::kRight},
                   {"TIME AT THAT RATE", Align::kRight}});
  for (size_t i = 0; i < std::min(result.links.size(), kLinksReported); ++i) {
    const LinkResult& link = result.links[i];
    const bool moves = link.rate > 0;
    table.AddRow(
        {link.name, FormatBytes(link.bytes),
         moves ? FormatRate(static_cast<uint64_t>(link.rate)) : "cut",
         moves ? SecondsText(absl::Seconds(static_cast<double>(link.bytes) / link.rate)) : "-"});
  }
  return table.ToString();
}

nlohmann::json ToJson(const StallTimes& stall) {
  nlohmann::json causes = nlohmann::json::object();
  for (size_t i = 0; i < kStallCauses; ++i) {
    const std::string name(StallCauseName(CauseAt(i)));
    causes[name] = Seconds(stall.of(CauseAt(i)));
  }
  return {{"seconds", Seconds(stall.total())}, {"by_cause", std::move(causes)}};
}

nlohmann::json RanksToJson(const ScenarioResult& result) {
  nlohmann::json ranks = nlohmann::json::array();
  for (const RankResult& rank : result.ranks) {
    ranks.push_back({{"rank", rank.name},
                     {"role", GroupRoleName(rank.role)},
                     {"host", rank.host},
                     {"stall", ToJson(rank.stall)},
                     {"bytes_sent", rank.bytes_sent},
                     {"bytes_from", rank.bytes_from}});
  }
  return ranks;
}

nlohmann::json ResultToJson(const ScenarioResult& result) {
  nlohmann::json versions = nlohmann::json::array();
  for (const VersionResult& version : result.versions) {
    versions.push_back(
        {{"label", version.label},
         {"published_seconds", Seconds(version.published)},
         {"groups_moved", version.groups},
         {"slowest_update_seconds", UpdateTimeJson(version.groups, version.slowest_update)},
         {"last_reader_seconds", UpdateTimeJson(version.groups, version.last_reader)}});
  }
  nlohmann::json reads = nlohmann::json::array();
  for (const ReadResult& read : result.reads) {
    reads.push_back({{"group", read.group},
                     {"label", read.label},
                     {"began_seconds", Seconds(read.began)},
                     {"seconds", Seconds(read.ended - read.began)},
                     {"stall_seconds", Seconds(read.stall)}});
  }
  nlohmann::json links = nlohmann::json::array();
  for (const LinkResult& link : result.links) {
    links.push_back({{"link", link.name}, {"bytes", link.bytes}, {"bytes_per_second", link.rate}});
  }
  nlohmann::json distances = nlohmann::json::object();
  for (size_t i = 0; i < kDistances; ++i) {
    distances[std::string(DistanceName(static_cast<Distance>(i)))] = result.bytes_over[i];
  }
  return {{"policy", ScenarioPolicyName(result.policy)},
          {"trainer_stall", ToJson(result.TrainerStall())},
          {"rollout_stall", ToJson(result.RolloutStall())},
          {"total_stall_seconds", Seconds(TotalStall(result))},
          {"slowest_update_seconds", UpdateTimeJson(result.reads.size(), result.SlowestRead())},
          {"last_update_seconds", UpdateTimeJson(result.reads.size(), result.LastRead())},
          {"trainer_copies_sent", result.CopiesSent()},
          {"bytes_by_distance", std::move(distances)},
          {"versions", std::move(versions)},
          {"updates", std::move(reads)},
          {"updates_failed", result.updates_failed},
          {"updates_not_available", result.updates_not_available},
          {"calls_open", result.calls_open},
          {"links", std::move(links)},
          {"virtual_seconds", Seconds(result.ended)},
          {"events", result.events},
          {"violated", result.violations}};
}

}  // namespace

absl::Duration TotalStall(const ScenarioResult& result) {
  return result.TrainerStall().total() + result.RolloutStall().total();
}

std::vector<TextTable::Column> ResultColumns() {
  return {{"TRAINER STALL", Align::kRight},  {"ROLLOUT STALL", Align::kRight},
          {"TOTAL", Align::kRight},          {"RATIO", Align::kRight},
          {"SLOWEST UPDATE", Align::kRight}, {"LAST UPDATE", Align::kRight},
          {"COPIES SENT", Align::kRight},    {"FAILED", Align::kRight}};
}

std::vector<std::string> ResultCells(const ScenarioResult& result, std::string ratio) {
  return {SecondsText(result.TrainerStall().total()),
          SecondsText(result.RolloutStall().total()),
          SecondsText(TotalStall(result)),
          std::move(ratio),
          UpdateTimeText(result.reads.size(), result.SlowestRead()),
          UpdateTimeText(result.reads.size(), result.LastRead()),
          absl::StrFormat("%.2f", result.CopiesSent()),
          absl::StrCat(result.updates_failed + result.calls_open)};
}

std::string ScenarioTable(const std::vector<ScenarioRunReport>& runs) {
  std::vector<TextTable::Column> columns = ResultColumns();
  columns.insert(columns.begin(), {"POLICY"});
  columns.push_back({"VARIABLES"});
  TextTable table(std::move(columns));
  std::map<ScenarioOverrides, absl::Duration> references;
  for (const ScenarioRunReport& run : runs) {
    const ScenarioResult& result = run.result;
    const absl::Duration total = TotalStall(result);
    const absl::Duration reference = references.emplace(run.swept, total).first->second;
    std::vector<std::string> row = ResultCells(result, Ratio(total, reference));
    row.insert(row.begin(), std::string(ScenarioPolicyName(result.policy)));
    row.push_back(SweptText(run.swept));
    table.AddRow(std::move(row));
  }
  return table.ToString();
}

std::string ScenarioDetails(const ScenarioResult& result) {
  return absl::StrCat("policy ", ScenarioPolicyName(result.policy), ", seed ", result.seed, ", ",
                      SecondsText(result.ended), " of virtual time, ", result.ranks.size(),
                      " ranks\n\n", CausesTable(result), "\n", SlowestRanksTable(result), "\n",
                      VersionsTable(result), "\n", BytesTable(result), "\n", LinksTable(result));
}

nlohmann::json ScenarioToJson(const std::vector<ScenarioRunReport>& runs, bool ranks) {
  nlohmann::json list = nlohmann::json::array();
  size_t violations = 0;
  for (const ScenarioRunReport& run : runs) {
    violations += run.result.violations.size();
    nlohmann::json object = ResultToJson(run.result);
    object["variables"] = run.swept;
    if (ranks) object["ranks"] = RanksToJson(run.result);
    list.push_back(std::move(object));
  }
  return {{"scenario", runs.empty() ? "" : runs.front().result.scenario},
          {"seed", runs.empty() ? 0 : runs.front().result.seed},
          {"violations", violations},
          {"runs", std::move(list)}};
}

}  // namespace th
