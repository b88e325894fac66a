#include "th/scenario_runs/scenario_comparison.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/command_line/text_table.h"
#include "th/scenario_runs/scenario_report.h"

namespace th {
namespace {

using nlohmann::json;

double StallSeconds(const ScenarioResult& result) {
  return absl::ToDoubleSeconds(TotalStall(result));
}

double Over(double value, double by) { return by > 0 ? value / by : 0; }

// A policy's two lines name it once.
void AddRow(const ScenarioResult& result, absl::string_view policy, absl::string_view kind,
            double reference, TextTable* table) {
  std::vector<std::string> row =
      ResultCells(result, absl::StrFormat("%.2f", Over(StallSeconds(result), reference)));
  row.insert(row.begin(), {std::string(policy), std::string(kind)});
  table->AddRow(std::move(row));
}

json ToJson(const ScenarioResult& result, double reference) {
  json object = ScenarioToJson({{{}, result}}, /*ranks=*/true)["runs"][0];
  object.erase("variables");
  object["ratio"] = Over(StallSeconds(result), reference);
  return object;
}

}  // namespace

std::string ComparisonTable(const std::vector<ComparedRun>& runs) {
  std::vector<TextTable::Column> columns = ResultColumns();
  columns.insert(columns.begin(), {{"POLICY"}, {""}});
  TextTable table(std::move(columns));
  for (const ComparedRun& run : runs) {
    AddRow(run.real, ScenarioPolicyName(run.real.policy), "real", StallSeconds(runs.front().real),
           &table);
    AddRow(run.simulated, "", "simulated", StallSeconds(runs.front().simulated), &table);
  }
  return table.ToString();
}

json ComparisonToJson(const std::vector<ComparedRun>& runs) {
  json list = json::array();
  for (const ComparedRun& run : runs) {
    list.push_back({{"policy", ScenarioPolicyName(run.real.policy)},
                    {"real", ToJson(run.real, StallSeconds(runs.front().real))},
                    {"simulated", ToJson(run.simulated, StallSeconds(runs.front().simulated))},
                    {"difference", Over(StallSeconds(run.simulated), StallSeconds(run.real)) - 1}});
  }
  return {{"scenario", runs.empty() ? "" : runs.front().real.scenario}, {"runs", std::move(list)}};
}

}  // namespace th
