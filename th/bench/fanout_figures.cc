#include "th/bench/fanout_figures.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "th/bench/transfer_bench.h"
#include "th/command_line/quantity.h"
#include "th/command_line/text_table.h"

namespace th {
namespace {

using nlohmann::json;

constexpr char kOurs[] = "ours";

std::vector<double> SecondsOfRounds(const FanoutArm& arm) {
  std::vector<double> seconds;
  seconds.reserve(arm.rounds.size());
  for (const FanoutRound& round : arm.rounds) seconds.push_back(round.last_reader_seconds());
  return seconds;
}

template <typename T>
json ListOf(const std::vector<DisturbedRound>& rounds, T DisturbedRound::*member) {
  json list = json::array();
  for (const DisturbedRound& round : rounds) list.push_back(round.*member);
  return list;
}

// The class whose flow takes longest, which no last reader beats. Null: there is no class.
const FanoutClass* SlowestClass(const FanoutMeasurement& measured) {
  const auto slowest = std::max_element(measured.classes.begin(), measured.classes.end(),
                                        [](const FanoutClass& a, const FanoutClass& b) {
                                          return Median(a.flow_seconds) < Median(b.flow_seconds);
                                        });
  return slowest == measured.classes.end() ? nullptr : &*slowest;
}

std::vector<double> IdealSecondsOfRounds(const FanoutMeasurement& measured) {
  const FanoutClass* const slowest = SlowestClass(measured);
  return slowest == nullptr ? std::vector<double>{} : slowest->flow_seconds;
}

// {"reader-2/0": {"reader-1/0": 134217728}}.
json SourcesOf(const std::vector<FanoutReader>& readers) {
  json sources = json::object();
  for (const FanoutReader& reader : readers) {
    json& of_reader = sources[reader.name] = json::object();
    for (const auto& [source, bytes] : reader.sources) of_reader[source] = bytes;
  }
  return sources;
}

const FanoutArm* Find(const FanoutMeasurement& measured, const std::string& name) {
  for (const FanoutArm& arm : measured.arms) {
    if (arm.name == name) return &arm;
  }
  return nullptr;
}

double Over(double value, double by) { return by > 0 ? value / by : 0; }

void AddArm(const FanoutMeasurement& measured, const FanoutArm& arm, json* report) {
  const FanoutFigures figures = FiguresOf(measured, arm);
  json& keys = *report;
  keys[arm.name + "_seconds"] = figures.seconds;
  keys[arm.name + "_seconds_of_rounds"] = SecondsOfRounds(arm);
  keys[arm.name + "_per_reader_seconds"] = figures.per_reader_seconds;
  keys[arm.name + "_copies_sent"] = figures.copies_sent;
  keys[arm.name + "_ratio"] = figures.ratio;
  keys[arm.name + "_sources"] =
      SourcesOf(arm.rounds.empty() ? std::vector<FanoutReader>{} : arm.rounds.back().readers);
  json& classes = keys[arm.name + "_classes"] = json::array();
  for (const FanoutClassFigures& of_rate : ClassFiguresOf(measured, arm)) {
    classes.push_back({{"rate", measured.classes[classes.size()].rate},
                       {"slowest_reader_seconds", of_rate.seconds},
                       {"slowest_reader_seconds_of_rounds", of_rate.seconds_of_rounds},
                       {"ratio", of_rate.ratio}});
  }
  const FanoutArm* const ours = Find(measured, kOurs);
  if (ours == nullptr || arm.name == kOurs) return;
  keys[arm.name + "_over_ours"] = Over(figures.seconds, FiguresOf(measured, *ours).seconds);
}

void AddDisturbance(const FanoutMeasurement& measured, json* report) {
  json& keys = *report;
  keys["disturb"] = measured.disturbance;
  const DisturbanceFigures figures = DisturbanceOf(measured);
  keys["noticed_seconds"] = figures.noticed_seconds;
  keys["noticed_seconds_of_rounds"] = ListOf(measured.disturbed, &DisturbedRound::noticed_seconds);
  keys["delay_seconds"] = figures.delay_seconds;
  keys["disturbed_seconds_of_rounds"] = ListOf(measured.disturbed, &DisturbedRound::others_seconds);
  keys["reread_bytes"] = figures.reread_bytes;
  keys["reread_bytes_of_rounds"] = ListOf(measured.disturbed, &DisturbedRound::reread_bytes);
  keys["disturbed_at_fraction"] = ListOf(measured.disturbed, &DisturbedRound::at_fraction);
  keys["disturbed_dependents"] = ListOf(measured.disturbed, &DisturbedRound::dependents);
  keys["disturbed_victims"] = ListOf(measured.disturbed, &DisturbedRound::victim);
  keys["disturbed_sources"] = json::array();
  for (const DisturbedRound& round : measured.disturbed) {
    keys["disturbed_sources"].push_back(SourcesOf(round.others));
  }
}

json ClassesToJson(const FanoutMeasurement& measured) {
  json classes = json::array();
  for (const FanoutClass& of_rate : measured.classes) {
    classes.push_back({{"rate", of_rate.rate},
                       {"hosts", of_rate.readers},
                       {"flow_seconds", Median(of_rate.flow_seconds)},
                       {"flow_seconds_of_rounds", of_rate.flow_seconds}});
  }
  return classes;
}

// "each on a virtual host with a link of 1gbit", or how many have which.
std::string LinksText(const FanoutMeasurement& measured) {
  if (measured.classes.size() == 1) {
    return absl::StrCat("each on a virtual host with a link of ", measured.classes.front().rate);
  }
  return absl::StrCat(
      "each on a virtual host, links of ",
      absl::StrJoin(measured.classes, ", ", [](std::string* out, const FanoutClass& of_rate) {
        absl::StrAppend(out, of_rate.rate, " (", of_rate.readers, ")");
      }));
}

// Each class beside one flow over a link of its own rate. Empty where all links are alike: the
// first table says it then.
std::string ClassesText(const FanoutMeasurement& measured) {
  if (measured.classes.size() <= 1) return "";
  TextTable table({{""},
                   {"LINK", Align::kRight},
                   {"READERS", Align::kRight},
                   {"SLOWEST READER", Align::kRight},
                   {"ONE FLOW", Align::kRight},
                   {"OVER FLOW", Align::kRight}});
  for (const FanoutArm& arm : measured.arms) {
    const std::vector<FanoutClassFigures> figures = ClassFiguresOf(measured, arm);
    for (size_t i = 0; i < figures.size(); ++i) {
      const FanoutClass& of_rate = measured.classes[i];
      table.AddRow({arm.name, of_rate.rate, absl::StrCat(of_rate.readers),
                    absl::StrFormat("%.3f s", figures[i].seconds),
                    absl::StrFormat("%.3f s", Median(of_rate.flow_seconds)),
                    absl::StrFormat("%.2f", figures[i].ratio)});
    }
  }
  return table.ToString();
}

std::string DisturbanceText(const FanoutMeasurement& measured) {
  const DisturbanceFigures figures = DisturbanceOf(measured);
  return absl::StrFormat(
      "%s of a reader that others read from, worst of %d rounds: re-routed after %.3f s, the "
      "others "
      "%.3f s later than undisturbed, received twice %s\n",
      measured.disturbance, measured.disturbed.size(), figures.noticed_seconds,
      figures.delay_seconds, FormatBytes(figures.reread_bytes));
}

}  // namespace

double FanoutRound::last_reader_seconds() const {
  double last = 0;
  for (const FanoutReader& reader : readers) last = std::max(last, reader.seconds);
  return last;
}

uint32_t FanoutMeasurement::readers() const {
  uint32_t readers = 0;
  for (const FanoutClass& of_rate : classes) readers += of_rate.readers;
  return readers;
}

double IdealSeconds(const FanoutMeasurement& measured) {
  return Median(IdealSecondsOfRounds(measured));
}

FanoutFigures FiguresOf(const FanoutMeasurement& measured, const FanoutArm& arm) {
  FanoutFigures figures;
  figures.seconds = Median(SecondsOfRounds(arm));
  figures.ratio = Over(figures.seconds, IdealSeconds(measured));
  const size_t readers = arm.rounds.empty() ? 0 : arm.rounds.front().readers.size();
  for (size_t i = 0; i < readers; ++i) {
    std::vector<double> seconds;
    for (const FanoutRound& round : arm.rounds) {
      if (i < round.readers.size()) seconds.push_back(round.readers[i].seconds);
    }
    figures.per_reader_seconds.push_back(Median(std::move(seconds)));
  }
  for (const FanoutRound& round : arm.rounds) {
    figures.copies_sent = std::max(
        figures.copies_sent,
        Over(static_cast<double>(round.holder_bytes_sent), static_cast<double>(measured.bytes)));
  }
  return figures;
}

std::vector<FanoutClassFigures> ClassFiguresOf(const FanoutMeasurement& measured,
                                               const FanoutArm& arm) {
  std::vector<FanoutClassFigures> all;
  all.reserve(measured.classes.size());
  size_t first = 0;  // of the class's readers
  for (const FanoutClass& of_rate : measured.classes) {
    FanoutClassFigures& figures = all.emplace_back();
    for (const FanoutRound& round : arm.rounds) {
      double slowest = 0;
      for (size_t i = first; i < std::min(first + of_rate.readers, round.readers.size()); ++i) {
        slowest = std::max(slowest, round.readers[i].seconds);
      }
      figures.seconds_of_rounds.push_back(slowest);
    }
    figures.seconds = Median(figures.seconds_of_rounds);
    figures.ratio = Over(figures.seconds, Median(of_rate.flow_seconds));
    first += of_rate.readers;
  }
  return all;
}

DisturbanceFigures DisturbanceOf(const FanoutMeasurement& measured) {
  DisturbanceFigures figures;
  const FanoutArm* const ours = Find(measured, kOurs);
  const double undisturbed = ours == nullptr ? 0 : FiguresOf(measured, *ours).seconds;
  for (const DisturbedRound& round : measured.disturbed) {
    figures.noticed_seconds = std::max(figures.noticed_seconds, round.noticed_seconds);
    figures.delay_seconds = std::max(figures.delay_seconds, round.others_seconds - undisturbed);
    figures.reread_bytes = std::max(figures.reread_bytes, round.reread_bytes);
  }
  return figures;
}

json ToJson(const FanoutMeasurement& measured) {
  const std::vector<double> ideal = IdealSecondsOfRounds(measured);
  json report = {
      {"hosts", measured.readers()},    {"classes", ClassesToJson(measured)},
      {"holders", measured.holders},    {"holder_rate", measured.holder_rate},
      {"bytes", measured.bytes},        {"rounds", ideal.size()},
      {"verified", measured.verified},  {"congestion_control", measured.congestion_control},
      {"ideal_seconds", Median(ideal)}, {"ideal_seconds_of_rounds", ideal}};
  if (measured.classes.size() == 1) report["rate"] = measured.classes.front().rate;
  for (const FanoutArm& arm : measured.arms) AddArm(measured, arm, &report);
  if (!measured.disturbance.empty()) AddDisturbance(measured, &report);
  return report;
}

std::string TextOf(const FanoutMeasurement& measured) {
  TextTable table({{""},
                   {"HOLDERS", Align::kRight},
                   {"LAST READER", Align::kRight},
                   {"FIRST READER", Align::kRight},
                   {"OVER IDEAL", Align::kRight},
                   {"COPIES SENT", Align::kRight}});
  const FanoutClass* const slowest = SlowestClass(measured);
  const bool unequal = measured.classes.size() > 1;
  table.AddRow({absl::StrCat("one plain TCP flow (ideal",
                             unequal ? absl::StrCat(", ", slowest->rate) : "", ")"),
                "1", absl::StrFormat("%.3f s", IdealSeconds(measured)), "", "1.00", "1.00"});
  for (const FanoutArm& arm : measured.arms) {
    const FanoutFigures figures = FiguresOf(measured, arm);
    const auto first =
        std::min_element(figures.per_reader_seconds.begin(), figures.per_reader_seconds.end());
    table.AddRow(
        {arm.name, absl::StrCat(arm.holders), absl::StrFormat("%.3f s", figures.seconds),
         first == figures.per_reader_seconds.end() ? "" : absl::StrFormat("%.3f s", *first),
         absl::StrFormat("%.2f", figures.ratio), absl::StrFormat("%.2f", figures.copies_sent)});
  }
  return absl::StrCat(FormatBytes(measured.bytes), " to ", measured.readers(), " reader(s), ",
                      LinksText(measured), " (", measured.congestion_control, "), ",
                      measured.holders, " holder(s) with links of ", measured.holder_rate,
                      "; medians of ", IdealSecondsOfRounds(measured).size(), " rounds\n",
                      table.ToString(), ClassesText(measured),
                      measured.disturbance.empty() ? "" : DisturbanceText(measured));
}

}  // namespace th
