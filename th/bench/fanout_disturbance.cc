#include "th/bench/fanout_disturbance.h"

#include <algorithm>
#include <csignal>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

using nlohmann::json;

// For the victim to hear that its update is cancelled, and for the server to see that it has gone.
constexpr absl::Duration kFarewellTimeout = absl::Seconds(5);
constexpr absl::Duration kRejoinTimeout = absl::Seconds(20);

double NowSeconds() { return absl::ToDoubleSeconds(MonotonicNow() - absl::UnixEpoch()); }

class DisturbedUpdate {
 public:
  DisturbedUpdate(FanoutStage& stage, const std::string& disturbance)
      : stage_(stage), disturbance_(disturbance) {}

  absl::StatusOr<DisturbedRound> Run() {
    readers_ = stage_.Readers();
    for (const std::string& group : stage_.reader_groups()) Watch(group);
    for (RankProcess* reader : readers_) reader->Send({{"do", "update"}, {"version", "latest"}});
    TH_RETURN_IF_ERROR(stage_.cluster().poller().RunUntil([this] { return Over(); },
                                                          kFanoutStepTimeout, "the update"));
    for (RankProcess* reader : readers_) reader->on_event = nullptr;
    TH_RETURN_IF_ERROR(interference_);
    if (!victim_) {
      return absl::FailedPreconditionError(absl::StrCat(
          "no reader was seen to hold about half while others read from it: give more --bytes or a "
          "lower --rate, and at least 2 --hosts"));
    }
    TH_RETURN_IF_ERROR(InvariantChecker());
    TH_RETURN_IF_ERROR(BringBack());
    return round_;
  }

 private:
  void Watch(const std::string& group) {
    RankProcess* const reader = stage_.cluster().RanksOf(group).front();
    fills_[reader->name()] = {.group = group};
    reader->on_event = [this, name = reader->name()](const json& event) {
      ObservedFill& fill = fills_[name];
      fill.bytes = event.value("bytes", uint64_t{0});
      fill.total = event.value("total", uint64_t{0});
      fill.sources = SplitSources(event.value("source", ""));
      Notice(name, event.value("at_s", 0.0));
    };
  }

  bool ReadsFromVictim(const ObservedFill& fill) const {
    return std::find(fill.sources.begin(), fill.sources.end(), VictimName()) != fill.sources.end();
  }
  std::string VictimName() const { return absl::StrCat(victim_->group, "/0"); }

  // Records the first report of a dependent that receives from others.
  void Notice(const std::string& reader, double at_s) {
    const auto dependent = noticed_at_.find(reader);
    if (dependent == noticed_at_.end() || dependent->second > 0 || at_s < disturbed_at_) return;
    const ObservedFill& fill = fills_[reader];
    if (!fill.sources.empty() && !ReadsFromVictim(fill)) dependent->second = at_s;
  }

  bool Over() {
    if (!victim_ && interference_.ok()) DisturbIfSeen();
    return !interference_.ok() || std::all_of(readers_.begin(), readers_.end(),
                                              [](RankProcess* r) { return r->answered(); });
  }

  void DisturbIfSeen() {
    std::vector<ObservedFill> fills;
    fills.reserve(fills_.size());
    for (const auto& [name, fill] : fills_) fills.push_back(fill);
    victim_ = FindVictim(fills, kDisturbedFractions);
    if (!victim_) return;
    round_.victim = VictimName();
    round_.at_fraction = victim_->fraction;
    for (const auto& [name, fill] : fills_) {
      if (ReadsFromVictim(fill)) noticed_at_[name] = 0;
    }
    round_.dependents = static_cast<uint32_t>(noticed_at_.size());
    RankProcess* const process = stage_.cluster().RanksOf(victim_->group).front();
    readers_.erase(std::remove(readers_.begin(), readers_.end(), process), readers_.end());
    disturbed_at_ = NowSeconds();
    interference_ = Disturb(*process);
  }

  absl::Status Disturb(RankProcess& victim) {
    if (disturbance_ == kCut) return stage_.hosts().Cut(stage_.HostOf(victim_->group));
    if (disturbance_ == kStop) victim.process().Signal(SIGSTOP);
    if (disturbance_ == kLeave) victim.Send({{"do", "leave"}});
    return absl::OkStatus();
  }

  absl::Status InvariantChecker() {
    for (RankProcess* reader : readers_) TH_RETURN_IF_ERROR(reader->answer().status());
    TH_ASSIGN_OR_RETURN(const FanoutRound others, FanoutStage::RoundOf(readers_));
    round_.others_seconds = others.last_reader_seconds();
    for (const FanoutReader& reader : others.readers) round_.reread_bytes += reader.reread_bytes;
    round_.others = others.readers;
    for (const auto& [name, at_s] : noticed_at_) {
      // One that said nothing more had all it needed, or ended between two words.
      const double seen = at_s > 0 ? at_s : EndOf(name);
      round_.noticed_seconds = std::max(round_.noticed_seconds, seen - disturbed_at_);
    }
    return stage_.Verify(readers_);
  }

  double EndOf(const std::string& name) const {
    for (RankProcess* reader : readers_) {
      if (reader->name() == name) return reader->answer()->value("ended_s", 0.0);
    }
    return 0;
  }

  absl::Status BringBack() {
    RankProcess* const victim = stage_.cluster().RanksOf(victim_->group).front();
    if (disturbance_ == kCut) {
      TH_RETURN_IF_ERROR(stage_.hosts().Restore(stage_.HostOf(victim_->group)));
    }
    if (disturbance_ == kLeave) {
      // Cancelled by its own leaving, which is no error here.
      TH_RETURN_IF_ERROR(stage_.cluster().poller().RunUntil(
          [victim] { return victim->answered(); }, kFarewellTimeout, "the victim's leaving"));
    }
    return Rejoin();
  }

  // The server may still see the killed process's stream, which is over within moments.
  absl::Status Rejoin() {
    const absl::Time deadline = MonotonicNow() + kRejoinTimeout;
    for (;;) {
      stage_.cluster().Kill(victim_->group);
      const absl::Status joined = stage_.Rejoin(victim_->group);
      if (!absl::IsAlreadyExists(joined) || MonotonicNow() >= deadline) return joined;
    }
  }

  FanoutStage& stage_;
  const std::string disturbance_;
  std::vector<RankProcess*> readers_;  // without the victim, once there is one
  std::map<std::string, ObservedFill> fills_;
  std::optional<Victim> victim_;
  double disturbed_at_ = 0;
  std::map<std::string, double> noticed_at_;  // by dependent; 0: not yet
  absl::Status interference_;
  DisturbedRound round_;
};

}  // namespace

absl::StatusOr<DisturbedRound> RunDisturbed(FanoutStage& stage, const std::string& disturbance) {
  return DisturbedUpdate(stage, disturbance).Run();
}

}  // namespace th
