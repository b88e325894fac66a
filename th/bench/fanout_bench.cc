#include "th/bench/fanout_bench.h"

#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "th/bench/fanout_disturbance.h"
#include "th/bench/fanout_stage.h"
#include "th/processes/virtual_hosts.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

constexpr char kOurs[] = "ours";
constexpr char kOneHolder[] = "one_holder";

class FanoutBench {
 public:
  explicit FanoutBench(const FanoutOptions& options)
      : options_(options), readers_(HostsOf(options.classes)) {}

  absl::StatusOr<FanoutMeasurement> Run() {
    for (const LinkClass& of_rate : options_.classes) {
      measured_.classes.push_back({.rate = of_rate.rate, .readers = of_rate.hosts});
    }
    measured_.holders = options_.holders;
    measured_.disturbance = options_.disturbance;
    TH_RETURN_IF_ERROR(MakeHosts());
    for (const std::string& policy : options_.policies) {
      TH_RETURN_IF_ERROR(RunArm({.name = policy, .holders = options_.holders}));
    }
    if (options_.holders > 1) {
      TH_RETURN_IF_ERROR(RunArm({.name = kOneHolder, .holders = 1}));
    }
    measured_.verified = true;
    return measured_;
  }

 private:
  absl::Status MakeHosts() {
    VirtualHosts::Options hosts{.folder = options_.cluster.folder};
    hosts.rates.reserve(FanoutStage::HostsFor(options_.holders, readers_));
    hosts.rates.push_back(FastestOf(options_.classes).bytes_per_second);
    hosts.rates.insert(hosts.rates.end(), options_.holders, options_.holder_rate);
    for (const LinkClass& of_rate : options_.classes) {
      hosts.rates.insert(hosts.rates.end(), of_rate.hosts, of_rate.bytes_per_second);
    }
    TH_ASSIGN_OR_RETURN(hosts_, VirtualHosts::Create(std::move(hosts)));
    return absl::OkStatus();
  }

  absl::Status RunArm(FanoutArm arm) {
    if (options_.progress) {
      options_.progress(absl::StrFormat("%s: starting a server, %d holder(s) and %d reader(s)",
                                        arm.name, arm.holders, readers_));
    }
    TH_ASSIGN_OR_RETURN(const auto stage, OpenStage(arm));
    measured_.bytes = stage->bytes();
    const bool with_flows = measured_.arms.empty();  // the first arm's rounds have them
    for (uint32_t number = 0; number <= options_.rounds; ++number) {
      TH_RETURN_IF_ERROR(stage->PublishNext());
      TH_ASSIGN_OR_RETURN(FanoutRound round, stage->Update());
      TH_RETURN_IF_ERROR(stage->Verify(stage->Readers()));
      if (with_flows) TH_RETURN_IF_ERROR(MeasureFlows(*stage, number));
      Say(arm.name, number,
          absl::StrFormat("the last reader after %.3f s", round.last_reader_seconds()));
      if (number > 0) arm.rounds.push_back(std::move(round));
    }
    const bool disturbed = arm.name == kOurs && !options_.disturbance.empty();
    measured_.arms.push_back(std::move(arm));
    return disturbed ? Disturb(*stage) : absl::OkStatus();
  }

  // Round 0 warms up.
  void Say(const std::string& arm, uint32_t number, const std::string& came_to) {
    if (!options_.progress) return;
    options_.progress(absl::StrCat(
        arm,
        number == 0 ? ", warm-up" : absl::StrFormat(", round %d of %d", number, options_.rounds),
        ": ", came_to));
  }

  absl::StatusOr<std::unique_ptr<FanoutStage>> OpenStage(const FanoutArm& arm) {
    FanoutStageOptions stage{
        .cluster = options_.cluster, .holders = arm.holders, .readers = readers_};
    absl::StrAppend(&stage.cluster.folder, "/", arm.name);
    std::error_code error;
    std::filesystem::create_directories(stage.cluster.folder, error);
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("cannot make ", stage.cluster.folder, ": ", error.message()));
    }
    if (arm.name != kOurs && arm.name != kOneHolder) {
      stage.cluster.server_program = options_.policy_server;
      stage.cluster.server_flags.push_back(absl::StrCat("--policy=", arm.name));
    }
    return FanoutStage::Open(std::move(stage), hosts_.get(), options_.holders);
  }

  // To the first reader of each class.
  absl::Status MeasureFlows(FanoutStage& stage, uint32_t number) {
    size_t reader = 0;
    for (FanoutClass& of_rate : measured_.classes) {
      TH_ASSIGN_OR_RETURN(const double seconds, stage.MeasureFlow(reader));
      if (number > 0) of_rate.flow_seconds.push_back(seconds);
      reader += of_rate.readers;
    }
    measured_.congestion_control = stage.congestion_control();
    return absl::OkStatus();
  }

  absl::Status Disturb(FanoutStage& stage) {
    for (uint32_t number = 0; number < options_.rounds; ++number) {
      TH_RETURN_IF_ERROR(stage.PublishNext());
      TH_ASSIGN_OR_RETURN(DisturbedRound round, RunDisturbed(stage, options_.disturbance));
      measured_.disturbed.push_back(std::move(round));
      Say(absl::StrCat("disturbed (", options_.disturbance, ")"), number + 1, "done");
    }
    return absl::OkStatus();
  }

  const FanoutOptions options_;
  const uint32_t readers_;
  std::unique_ptr<VirtualHosts> hosts_;
  FanoutMeasurement measured_;
};

}  // namespace

absl::StatusOr<FanoutMeasurement> MeasureFanout(const FanoutOptions& options) {
  return FanoutBench(options).Run();
}

}  // namespace th
