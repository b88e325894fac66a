#include "th/cli/live/top_page.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "th/cli/catalog_view.h"
#include "th/command_line/quantity.h"
#include "th/command_line/text_table.h"
#include "th/protocol/messages.h"

namespace th {
namespace {

using nlohmann::json;

// The number of sources that are named of one replica, so that a line stays a line.
constexpr size_t kSourcesNamed = 3;

struct Row {
  const CatalogVersion* version = nullptr;  // null: it holds nothing
  const CatalogReplica* replica = nullptr;
};

// Replicas that move come first, then those that hold the newest version.
std::vector<Row> RowsOf(const CatalogModel& model) {
  std::vector<Row> rows;
  for (const CatalogVersion& version : model.versions) {
    for (const CatalogReplica& replica : version.replicas) rows.push_back({&version, &replica});
  }
  for (const CatalogReplica& replica : model.idle) rows.push_back({nullptr, &replica});
  std::stable_partition(rows.begin(), rows.end(),
                        [](const Row& row) { return row.replica->state == "filling"; });
  return rows;
}

uint64_t Readers(const CatalogReplica& replica) {
  uint64_t readers = 0;
  for (const CatalogRank& rank : replica.ranks) readers += rank.readers;
  return readers;
}

std::vector<std::string> Sources(const CatalogReplica& replica) {
  std::set<std::string> names;
  for (const CatalogRank& rank : replica.ranks) {
    for (const RankName& source : rank.sources) names.insert(source.ToString());
  }
  return {names.begin(), names.end()};
}

std::string SourcesText(const CatalogReplica& replica) {
  std::vector<std::string> names = Sources(replica);
  if (names.empty()) return "-";
  if (names.size() <= kSourcesNamed) return absl::StrJoin(names, ", ");
  const size_t more = names.size() - kSourcesNamed;
  names.resize(kSourcesNamed);
  return absl::StrCat(absl::StrJoin(names, ", "), " and ", more, " more");
}

std::string HeldText(const CatalogReplica& replica) {
  const uint64_t all = AllBytes(replica);
  if (all == 0) return "-";
  // Rounded down: 100 only when nothing is missing.
  const double part = static_cast<double>(HeldBytes(replica)) / static_cast<double>(all);
  return absl::StrFormat("%d %%", static_cast<int>(part * 100));
}

std::string RateText(double bytes_per_second) {
  return bytes_per_second < 1 ? "-" : FormatRate(static_cast<uint64_t>(bytes_per_second));
}

std::string Seconds(absl::Duration duration) {
  return absl::StrFormat("%.1f s", absl::ToDoubleSeconds(duration));
}

std::string OperationText(const CatalogReplica& replica) {
  if (replica.event.empty()) return "-";
  return absl::StrCat(OperationKindName(replica.operation), " ", Seconds(replica.operation_since));
}

void AddRow(const CatalogModel& model, const FillRates& rates, const Row& row, TextTable* table) {
  const CatalogReplica& replica = *row.replica;
  const bool holds = row.version != nullptr;
  table->AddRow({holds ? row.version->info.ToString() : "-", replica.group, replica.state,
                 absl::StrCat(replica.ranks.size()), holds ? HeldText(replica) : "-",
                 RateText(rates.BytesPerSecond(model.key, replica)), SourcesText(replica),
                 absl::StrCat(Readers(replica)), OperationText(replica),
                 replica.event.empty() ? "-" : replica.event.ToString()});
}

// Without what is zero: "stall 12.3 s (queue 1.0 s, transfer 11.3 s)".
std::string StallText(const ModelTotals& totals) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < kStallPhases; ++i) {
    const auto phase = static_cast<StallPhase>(i);
    if (totals.stall_of(phase) < absl::Milliseconds(50)) continue;
    parts.push_back(
        absl::StrCat(std::string(StallPhaseName(phase)), " ", Seconds(totals.stall_of(phase))));
  }
  std::string text = absl::StrCat("stall ", Seconds(SumOf(totals.stall)));
  if (!parts.empty()) absl::StrAppend(&text, " (", absl::StrJoin(parts, ", "), ")");
  return text;
}

std::string TotalsText(const ModelTotals& totals) {
  return absl::StrCat(StallText(totals), "; received ", FormatBytes(totals.bytes_received()),
                      ", unchanged ", FormatBytes(totals.fill.unchanged_bytes),
                      absl::StrFormat(", copies %.2f from publishers and %.2f from relays",
                                      totals.copies_published, totals.copies_relayed),
                      "; ", totals.fill.reroutes, " re-routes, ", totals.readers_cut,
                      " readers cut");
}

std::string LatestOf(const CatalogModel& model) {
  for (const CatalogVersion& version : model.versions) {
    if (version.published && !version.withdrawn) return version.info.ToString();
  }
  return "";
}

json RowToJson(const CatalogModel& model, const FillRates& rates, const Row& row) {
  const CatalogReplica& replica = *row.replica;
  json out = {{"version", row.version == nullptr ? "" : row.version->info.ToString()},
              {"group", replica.group},
              {"state", replica.state},
              {"ranks", replica.ranks.size()},
              {"bytes", AllBytes(replica)},
              {"bytes_held", HeldBytes(replica)},
              {"bytes_per_second", rates.BytesPerSecond(model.key, replica)},
              {"from", Sources(replica)},
              {"readers", Readers(replica)}};
  out.update(OperationToJson(replica));
  return out;
}

}  // namespace

std::vector<std::string> TopLines(const Catalog& catalog, const FillRates& rates) {
  std::vector<std::string> lines = {
      absl::StrCat("TensorHub, epoch ", catalog.epoch.value, ", ", catalog.models.size(),
                   catalog.models.size() == 1 ? " model" : " models")};
  for (const CatalogModel& model : catalog.models) {
    const std::string latest = LatestOf(model);
    lines.push_back("");
    lines.push_back(absl::StrCat(model.key.ToString(), ": ",
                                 latest.empty() ? "nothing published" : "latest " + latest));
    lines.push_back(TotalsText(model.totals));
    TextTable table({{"VERSION"},
                     {"GROUP"},
                     {"STATE"},
                     {"RANKS", Align::kRight},
                     {"HELD", Align::kRight},
                     {"RATE", Align::kRight},
                     {"FROM"},
                     {"READERS", Align::kRight},
                     {"OPERATION"},
                     {"EVENT"}});
    for (const Row& row : RowsOf(model)) AddRow(model, rates, row, &table);
    if (table.empty()) continue;
    const std::string text = table.ToString();
    for (absl::string_view line : absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
      lines.emplace_back(line);
    }
  }
  return lines;
}

std::vector<std::string> AwayLines(const std::vector<std::string>& last, absl::Time since,
                                   absl::Time now, absl::string_view why) {
  std::vector<std::string> lines = {
      absl::StrCat("the server does not answer since ",
                   absl::FormatTime("%H:%M:%S", since, absl::LocalTimeZone()), ", for ",
                   absl::FormatDuration(absl::Trunc(now - since, absl::Seconds(1))), ": ", why),
      "its last picture:", ""};
  lines.insert(lines.end(), last.begin(), last.end());
  return lines;
}

std::vector<std::string> FitPage(std::vector<std::string> lines, PageSize size) {
  if (size.rows > 0 && lines.size() > size.rows) {
    const size_t shown = size.rows - 1;
    const size_t more = lines.size() - shown;
    lines.resize(shown);
    lines.push_back(absl::StrCat("... and ", more, " more lines; th list has them all"));
  }
  if (size.columns == 0) return lines;
  for (std::string& line : lines) line = FitWidth(line, size.columns);
  return lines;
}

json TopToJson(const Catalog& catalog, const FillRates& rates) {
  json models = json::array();
  for (const CatalogModel& model : catalog.models) {
    json replicas = json::array();
    for (const Row& row : RowsOf(model)) replicas.push_back(RowToJson(model, rates, row));
    models.push_back({{"run", model.key.run},
                      {"model", model.key.model},
                      {"latest", LatestOf(model)},
                      {"totals", TotalsToJson(model.totals)},
                      {"replicas", std::move(replicas)}});
  }
  return {{"epoch", catalog.epoch.value}, {"models", std::move(models)}};
}

}  // namespace th
