#include "th/demo/demo_report.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "th/command_line/quantity.h"
#include "th/command_line/text_table.h"

namespace th {
namespace {

bool IsTrainer(const DemoReport& report, const std::string& rank) {
  return absl::StartsWith(rank, absl::StrCat(report.trainer_group, "/"));
}

bool LateJoinerReadTheTrainer(const DemoReport& report) {
  return std::any_of(report.late_joiner_sources.begin(), report.late_joiner_sources.end(),
                     [&](const std::string& source) { return IsTrainer(report, source); });
}

std::string GigabytesPerSecond(const DemoTransfer& transfer) {
  const double seconds = absl::ToDoubleSeconds(transfer.active);
  if (seconds <= 0) return "";
  return absl::StrFormat("%.3f", static_cast<double>(transfer.bytes) / seconds / 1e9);
}

std::string KillLine(const DemoReport& report) {
  if (!report.kill_wanted) return "nobody was to be killed";
  if (!report.killed_at_fraction) {
    return "nobody was killed: no group was seen part-way while others read from it (a lower "
           "--rate "
           "shows it)";
  }
  return absl::StrFormat(
      "%s was killed at %.0f %%; survivors %s, the group %s; %s fetched elsewhere",
      report.killed_group, *report.killed_at_fraction * 100,
      report.survivors_complete ? "complete" : "NOT complete",
      report.rejoined ? "rejoined and complete" : "has NOT come back",
      FormatBytes(report.rerouted_bytes));
}

std::string LateJoinerLine(const DemoReport& report) {
  if (report.late_joiner_sources.empty()) return "no late joiner was filled";
  return absl::StrCat("filled by ", absl::StrJoin(report.late_joiner_sources, ", "),
                      ", the trainer having unpublished");
}

}  // namespace

double TrainerCopies(const DemoDelivery& delivery) {
  if (delivery.shard_bytes == 0) return 0;
  return static_cast<double>(delivery.trainer_bytes_sent) /
         static_cast<double>(delivery.shard_bytes);
}

double RelayedFraction(const DemoReport& report) {
  uint64_t all = 0, relayed = 0;
  for (const DemoTransfer& transfer : report.transfers) {
    all += transfer.bytes;
    if (!IsTrainer(report, transfer.source)) relayed += transfer.bytes;
  }
  return all == 0 ? 0 : static_cast<double>(relayed) / static_cast<double>(all);
}

bool Verified(const DemoReport& report) {
  return report.error.empty() && report.differences.empty() && report.shards_compared > 0;
}

bool RecoveredFromKill(const DemoReport& report) {
  return report.killed_at_fraction.has_value() && report.survivors_complete && report.rejoined;
}

std::vector<std::string> Faults(const DemoReport& report) {
  std::vector<std::string> faults;
  if (!report.error.empty()) faults.push_back(report.error);
  for (const std::string& difference : report.differences) faults.push_back(difference);
  if (report.error.empty() && report.shards_compared == 0) faults.push_back("nothing was compared");
  if (report.killed_at_fraction && !RecoveredFromKill(report)) {
    faults.push_back("the kill was not recovered from");
  }
  if (report.error.empty() && report.late_joiner_sources.empty()) {
    faults.push_back("no late joiner was filled");
  }
  if (LateJoinerReadTheTrainer(report)) faults.push_back("the late joiner read from the trainer");
  if (report.bytes_held_beyond_live > 0) {
    faults.push_back(absl::StrCat(FormatBytes(report.bytes_held_beyond_live),
                                  " of weights were held beyond the live buffers"));
  }
  return faults;
}

std::string TransferTable(const DemoReport& report) {
  TextTable table({{"VERSION"},
                   {"READER"},
                   {"SOURCE"},
                   {"BY"},
                   {"BYTES", Align::kRight},
                   {"SECONDS", Align::kRight},
                   {"GB/S", Align::kRight},
                   {"RE-ROUTES", Align::kRight}});
  for (const DemoTransfer& transfer : report.transfers) {
    table.AddRow({transfer.version, transfer.reader, transfer.source, transfer.transport,
                  FormatBytes(transfer.bytes),
                  absl::StrFormat("%.2f", absl::ToDoubleSeconds(transfer.active)),
                  GigabytesPerSecond(transfer), absl::StrCat(transfer.reroutes)});
  }
  return table.ToString();
}

std::string Summary(const DemoReport& report) {
  std::vector<std::string> copies;
  for (const DemoDelivery& delivery : report.deliveries) {
    copies.push_back(absl::StrFormat("%.2f for %s%s", TrainerCopies(delivery), delivery.version,
                                     delivery.with_kill ? " with the kill" : ""));
  }
  return absl::StrCat(
      "copies sent by the trainer  ", absl::StrJoin(copies, ", "), "\n",
      absl::StrFormat("relayed between rollouts    %.0f %% of all bytes\n",
                      RelayedFraction(report) * 100),
      "kill                        ", KillLine(report), "\n", "late joiner                 ",
      LateJoinerLine(report), "\n", "held beyond live buffers    ",
      FormatBytes(report.bytes_held_beyond_live), "\n",
      absl::StrFormat("stall                       %.1f s, summed over the readers\n",
                      absl::ToDoubleSeconds(report.stall)));
}

std::string Verdict(const DemoReport& report) {
  const std::vector<std::string> faults = Faults(report);
  if (!faults.empty()) return absl::StrCat("FAILED: ", absl::StrJoin(faults, "; "));
  return absl::StrCat("GOOD: ", report.deliveries.size(), " deliveries to ", report.readers.size(),
                      " readers; ", report.tensors_compared, " tensors in ", report.shards_compared,
                      " shards have the trainer's SHA-256 sums");
}

nlohmann::json ToJson(const DemoReport& report) {
  nlohmann::json json = {{"verified", Verified(report)},
                         {"readers", report.readers},
                         {"relayed_fraction", RelayedFraction(report)},
                         {"recovered_from_kill", RecoveredFromKill(report)},
                         {"killed_at_fraction", nullptr},
                         {"rerouted_bytes", report.rerouted_bytes},
                         {"late_joiner_sources", report.late_joiner_sources},
                         {"bytes_held_beyond_live", report.bytes_held_beyond_live},
                         {"stall_seconds", absl::ToDoubleSeconds(report.stall)},
                         {"versions", nlohmann::json::array()},
                         {"trainer_copies_sent", nlohmann::json::array()},
                         {"transfers", nlohmann::json::array()}};
  if (report.killed_at_fraction) json["killed_at_fraction"] = *report.killed_at_fraction;
  for (const DemoDelivery& delivery : report.deliveries) {
    json["versions"].push_back(delivery.version);
    json["trainer_copies_sent"].push_back(TrainerCopies(delivery));
  }
  for (const DemoTransfer& transfer : report.transfers) {
    json["transfers"].push_back({{"version", transfer.version},
                                 {"reader", transfer.reader},
                                 {"source", transfer.source},
                                 {"transport", transfer.transport},
                                 {"bytes", transfer.bytes},
                                 {"seconds", absl::ToDoubleSeconds(transfer.active)},
                                 {"reroutes", transfer.reroutes}});
  }
  const std::vector<std::string> faults = Faults(report);
  if (!faults.empty()) json["faults"] = faults;
  return json;
}

}  // namespace th
