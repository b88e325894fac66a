#include "th/cli/scenario_comparison.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "th/cli/scenario_report.h"
#include "th/cli/text_table.h"

namespace th {
namespace {

using nlohmann::json;

double TotalStall(const ScenarioResult& result) {
  return absl::ToDoubleSeconds(result.TrainerStall().total() + result.RolloutStall().total());
}

double Over(double value, double by) { return by > 0 ? value / by : 0; }

std::string Text(double seconds) { return absl::StrFormat("%.3f s", seconds); }
std::string Text(absl::Duration time) { return Text(absl::ToDoubleSeconds(time)); }

void AddRow(const ScenarioResult& result, const char* kind, double reference, TextTable* table) {
  const bool first = kind == std::string("real");
  const double total = TotalStall(result);
  table->AddRow({first ? std::string(ScenarioPolicyName(result.policy)) : "", kind,
                 Text(result.TrainerStall().total()), Text(result.RolloutStall().total()),
                 Text(total), absl::StrFormat("%.2f", Over(total, reference)),
                 Text(result.SlowestRead()), Text(result.LastRead()),
                 absl::StrFormat("%.2f", result.CopiesSent()),
                 absl::StrCat(result.updates_failed + result.calls_open)});
}

json ToJson(const ScenarioResult& result, double reference) {
  json object = ScenarioToJson({{{}, result}}, /*ranks=*/true)["runs"][0];
  object.erase("variables");
  object["ratio"] = Over(TotalStall(result), reference);
  return object;
}

}  // namespace

std::string ComparisonTable(const std::vector<ComparedRun>& runs) {
  TextTable table({{"POLICY"},
                   {""},
                   {"TRAINER STALL", Align::kRight},
                   {"ROLLOUT STALL", Align::kRight},
                   {"TOTAL", Align::kRight},
                   {"RATIO", Align::kRight},
                   {"SLOWEST UPDATE", Align::kRight},
                   {"LAST UPDATE", Align::kRight},
                   {"COPIES SENT", Align::kRight},
                   {"FAILED", Align::kRight}});
  for (const ComparedRun& run : runs) {
    AddRow(run.real, "real", TotalStall(runs.front().real), &table);
    AddRow(run.simulated, "simulated", TotalStall(runs.front().simulated), &table);
  }
  return table.ToString();
}

json ComparisonToJson(const std::vector<ComparedRun>& runs) {
  json list = json::array();
  for (const ComparedRun& run : runs) {
    list.push_back({{"policy", ScenarioPolicyName(run.real.policy)},
                    {"real", ToJson(run.real, TotalStall(runs.front().real))},
                    {"simulated", ToJson(run.simulated, TotalStall(runs.front().simulated))},
                    {"difference", Over(TotalStall(run.simulated), TotalStall(run.real)) - 1}});
  }
  return {{"scenario", runs.empty() ? "" : runs.front().real.scenario}, {"runs", std::move(list)}};
}

}  // namespace th
