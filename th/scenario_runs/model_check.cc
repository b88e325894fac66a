#include "th/scenario_runs/model_check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "th/bench/transfer_bench.h"
#include "th/command_line/quantity.h"
#include "th/command_line/text_table.h"
#include "th/scenario_runs/real_run.h"
#include "th/status/status_macros.h"
#include "th/weights/shard_layout.h"

namespace th {
namespace {

using nlohmann::json;

constexpr uint32_t kFittedHosts[] = {1, 2, 4};
constexpr uint32_t kTroubledHosts = 4;
constexpr char kVictim[] = "reader-2";
constexpr absl::Duration kFirst = absl::Seconds(1);
constexpr absl::Duration kWrite = absl::Milliseconds(500);
// Readers of a troubled point ask one after the other, so that in each run the same ones relay.
constexpr absl::Duration kStagger = absl::Milliseconds(20);
constexpr absl::Duration kStopped = absl::Seconds(3);
// A step leaves room for this many times what the bytes take, and for as much besides.
constexpr double kStepShare = 1.4;
constexpr absl::Duration kStepRoom = absl::Milliseconds(1500);

absl::Duration TimeOf(double bytes, double rate) { return absl::Seconds(bytes / rate); }

std::string RateText(uint64_t bytes_per_second) { return absl::StrCat(bytes_per_second, "B/s"); }
std::string Text(absl::Duration time) {
  return absl::StrCat(absl::ToInt64Milliseconds(time), "ms");
}

// The head of every file: links, weights and the trainer.
std::string WeightsText(const ModelCheckOptions& options) {
  return absl::StrCat("weights rank_bytes=", options.bytes,
                      "B segment=", std::min(options.bytes, DefaultSegmentBytes(options.bytes)),
                      "B\n", "group trainer role=trainer ranks=1 on=t\n");
}

std::string HostsText(absl::string_view name, absl::string_view site, uint32_t count,
                      uint64_t rate) {
  return absl::StrCat("hosts ", name, " site=", site, " count=", count, " up=", RateText(rate),
                      " down=", RateText(rate), " inside=10GB/s\n");
}

std::string TrainText(uint32_t steps, absl::Duration step) {
  return absl::StrCat("train trainer first=", Text(kFirst), " step=", Text(step),
                      " write=", Text(kWrite), " steps=", steps, "\n", "end ",
                      Text(kFirst + steps * step + absl::Seconds(30)), "\n");
}

ModelPoint FanoutPoint(const ModelCheckOptions& options, uint32_t hosts, bool fitted) {
  const absl::Duration step = kStepShare * TimeOf(options.bytes, options.rate) + kStepRoom + kWrite;
  ModelPoint point{.name = absl::StrCat(hosts, hosts == 1 ? " reader" : " readers"),
                   .fitted = fitted};
  point.scenario = absl::StrCat(
      "site a\n", HostsText("t", "a", 1, options.rate), HostsText("r", "a", hosts, options.rate),
      WeightsText(options), "group reader role=rollout ranks=1 count=", hosts, " on=r\n",
      "update reader after=publish\n", TrainText(1 + options.rounds, step));
  return point;
}

// The second version's update, half-way of which `event` happens to the victim.
ModelPoint TroubledPoint(const ModelCheckOptions& options, absl::string_view name,
                         absl::string_view event) {
  const absl::Duration transfer = TimeOf(options.bytes, options.rate);
  const absl::Duration step = kStepShare * transfer + kStepRoom + kWrite;
  ModelPoint point{.name = absl::StrCat(kTroubledHosts, " readers, ", name),
                   .runs = options.rounds,
                   .without = {kVictim}};
  point.scenario =
      absl::StrCat("site a\n", HostsText("t", "a", 1, options.rate),
                   HostsText("r", "a", kTroubledHosts, options.rate), WeightsText(options),
                   "group reader role=rollout ranks=1 count=", kTroubledHosts, " on=r\n",
                   "update reader after=publish stagger=", Text(kStagger), "\n", "at ",
                   Text(kFirst + step + transfer / 2), " ", event, "\n", TrainText(2, step));
  return point;
}

ModelPoint TwoSitesPoint(const ModelCheckOptions& options) {
  const absl::Duration step =
      kStepShare * TimeOf(options.bytes, std::min(options.rate, options.site_rate)) + kStepRoom +
      kWrite;
  ModelPoint point{.name = absl::StrCat("two sites, ", FormatRate(options.site_rate), " and ",
                                        Text(options.site_latency), " between")};
  point.scenario = absl::StrCat(
      "site a\nsite b\nlink a b rate=", RateText(options.site_rate),
      " latency=", Text(options.site_latency), "\n", HostsText("t", "a", 1, options.rate),
      HostsText("ra", "a", 2, options.rate), HostsText("rb", "b", 2, options.rate),
      WeightsText(options), "group near role=rollout ranks=1 count=2 on=ra\n",
      "group far role=rollout ranks=1 count=2 on=rb\n", "update near after=publish\n",
      "update far after=publish\n", TrainText(1 + options.rounds, step));
  return point;
}

absl::StatusOr<double> Simulate(const ModelPoint& point, const LinkModel& model) {
  TH_ASSIGN_OR_RETURN(Scenario scenario, ParseScenario(point.name, point.scenario, {}));
  TH_ASSIGN_OR_RETURN(
      const ScenarioResult result,
      RunScenario(OnRealLinks(std::move(scenario), model), ScenarioPolicy::kNearest, {}));
  return LastReaderSeconds(result, point.without);
}

double Worst(const std::vector<ModelPoint>& points, bool fitted) {
  double worst = 0;
  for (const ModelPoint& point : points) {
    if (point.fitted == fitted) worst = std::max(worst, std::abs(point.Difference()));
  }
  return worst;
}

class RealCheck {
 public:
  explicit RealCheck(const ModelCheckOptions& options) : options_(options) {}

  absl::StatusOr<ModelCheck> Run() {
    check_ = {.rate = options_.rate, .bytes = options_.bytes, .rounds = options_.rounds};
    check_.points = ModelPoints(options_);
    for (ModelPoint& point : check_.points) {
      for (uint32_t run = 0; run < point.runs; ++run) TH_RETURN_IF_ERROR(RunPoint(&point));
    }
    TH_RETURN_IF_ERROR(Predict(options_, &check_));
    return check_;
  }

 private:
  absl::Status RunPoint(ModelPoint* point) {
    fprintf(stderr, "%s\n", point->name.c_str());
    TH_ASSIGN_OR_RETURN(const Scenario scenario, ParseScenario(point->name, point->scenario, {}));
    RealRunOptions real{.cluster = options_.cluster, .measure_flow = check_.flow_seconds == 0};
    absl::StrAppend(&real.cluster.folder, "/", runs_++);
    std::error_code error;
    std::filesystem::create_directories(real.cluster.folder, error);
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("cannot make ", real.cluster.folder, ": ", error.message()));
    }
    TH_ASSIGN_OR_RETURN(const RealRunResult run,
                        RunScenarioForReal(scenario, ScenarioPolicy::kNearest, real));
    if (real.measure_flow) check_.flow_seconds = run.flow_seconds;
    const double seconds = LastReaderSeconds(run.result, point->without);
    if (seconds <= 0) return absl::InternalError(absl::StrCat(point->name, ": nobody moved"));
    point->real_seconds.push_back(seconds);
    return absl::OkStatus();
  }

  const ModelCheckOptions& options_;
  ModelCheck check_;
  uint32_t runs_ = 0;
};

}  // namespace

double ModelPoint::RealSeconds() const { return real_seconds.empty() ? 0 : Median(real_seconds); }

double ModelPoint::Difference() const {
  const double real = RealSeconds();
  return real > 0 ? simulated_seconds / real - 1 : 0;
}

double ModelCheck::Within() const { return Worst(points, /*fitted=*/false); }
double ModelCheck::WithinFitted() const { return Worst(points, /*fitted=*/true); }

std::vector<ModelPoint> ModelPoints(const ModelCheckOptions& options) {
  std::vector<ModelPoint> points;
  for (uint32_t hosts : kFittedHosts) points.push_back(FanoutPoint(options, hosts, true));
  for (uint32_t hosts : options.predicted_hosts) {
    points.push_back(FanoutPoint(options, hosts, false));
  }
  points.push_back(TroubledPoint(options, "a relay stopped half-way",
                                 absl::StrCat("stop ", kVictim, " for=", Text(kStopped))));
  points.push_back(
      TroubledPoint(options, "a relay killed half-way", absl::StrCat("kill ", kVictim)));
  points.push_back(TwoSitesPoint(options));
  return points;
}

absl::Status Predict(const ModelCheckOptions& options, ModelCheck* check) {
  FanoutTimes measured{.rate = static_cast<double>(options.rate),
                       .bytes = static_cast<double>(options.bytes),
                       .flow_seconds = check->flow_seconds};
  for (size_t i = 0; i < std::size(kFittedHosts); ++i) {
    measured.seconds[kFittedHosts[i]] = check->points[i].RealSeconds();
  }
  absl::Status failed;
  const auto simulate = [&](uint32_t readers, const LinkModel& model) {
    const absl::StatusOr<double> seconds =
        Simulate(FanoutPoint(options, readers, /*fitted=*/true), model);
    failed.Update(seconds.status());
    return seconds.value_or(0);
  };
  check->model =
      FitLinkModel(measured, std::min(options.bytes, DefaultSegmentBytes(options.bytes)), simulate);
  TH_RETURN_IF_ERROR(failed);
  for (ModelPoint& point : check->points) {
    TH_ASSIGN_OR_RETURN(point.simulated_seconds, Simulate(point, check->model));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelCheck> CheckModel(const ModelCheckOptions& options) {
  return RealCheck(options).Run();
}

json ToJson(const ModelCheck& check) {
  json points = json::array();
  for (const ModelPoint& point : check.points) {
    points.push_back({{"point", point.name},
                      {"kind", point.fitted ? "fitted" : "predicted"},
                      {"real_seconds", point.RealSeconds()},
                      {"real_seconds_of_runs", point.real_seconds},
                      {"simulated_seconds", point.simulated_seconds},
                      {"difference", point.Difference()}});
  }
  return {{"rate_bytes_per_second", check.rate},
          {"bytes", check.bytes},
          {"rounds", check.rounds},
          {"flow_seconds", check.flow_seconds},
          {"fitted",
           {{"goodput", check.model.goodput},
            {"message_us", absl::ToDoubleMicroseconds(check.model.message)},
            {"hop_bytes", check.model.hop_bytes}}},
          {"points", std::move(points)},
          {"within", check.Within()},
          {"within_fitted", check.WithinFitted()}};
}

std::string TextOf(const ModelCheck& check) {
  TextTable table({{"LAST READER"},
                   {""},
                   {"REAL", Align::kRight},
                   {"SIMULATED", Align::kRight},
                   {"DIFFERENCE", Align::kRight}});
  for (const ModelPoint& point : check.points) {
    table.AddRow({point.name, point.fitted ? "fitted" : "predicted",
                  absl::StrFormat("%.3f s", point.RealSeconds()),
                  absl::StrFormat("%.3f s", point.simulated_seconds),
                  absl::StrFormat("%+.1f %%", 100 * point.Difference())});
  }
  return absl::StrCat(
      FormatBytes(check.bytes), " over links of ", FormatRate(check.rate), ", medians of ",
      check.rounds, " rounds\n", table.ToString(),
      absl::StrFormat("fitted: goodput %.1f %% of a link's rate, a message %.0f us, a hop %s; what "
                      "was predicted is within %.1f %%\n",
                      100 * check.model.goodput, absl::ToDoubleMicroseconds(check.model.message),
                      FormatBytes(check.model.hop_bytes), 100 * check.Within()));
}

}  // namespace th
