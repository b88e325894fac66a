#include "th/scenario_runs/real_run.h"

#include <algorithm>
#include <csignal>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/protocol/messages.h"
#include "th/scenario_runs/scenario_cluster.h"
#include "th/status/status_macros.h"
#include "th/topology/location.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

using nlohmann::json;

bool Broadcasts(ScenarioPolicy policy) {
  return policy == ScenarioPolicy::kBroadcast || policy == ScenarioPolicy::kSnapshotBroadcast;
}

std::string LabelOf(uint32_t step) { return absl::StrCat("step-", step); }

// The command with which a rollout updates, straight into its weights, or stages.
json UpdateCommand(const char* verb, WhenSeeding when_seeding, absl::Duration timeout) {
  return {{"do", verb},
          {"version", "latest"},
          {"in_place", true},
          {"timeout_seconds", absl::ToDoubleSeconds(timeout)},
          {"when_seeding", WhenSeedingName(when_seeding)}};
}

// The moment at which the first rank's call began.
double BeginOf(const RealOutcome& outcome) {
  double began = std::numeric_limits<double>::infinity();
  for (const json& answer : outcome.answers) {
    began = std::min(began, answer.value("started_s", 0.0));
  }
  return began;
}

bool IsSeeding(const json& answer) {
  return answer.value("reason", 0) == static_cast<int>(NotAvailableReason::kSeeding);
}

class RealRun {
 public:
  RealRun(const Scenario& scenario, ScenarioPolicy policy) : scenario_(scenario), policy_(policy) {}
  absl::StatusOr<RealRunResult> Run(const RealRunOptions& options);

 private:
  struct Reader {
    RealGroup* group = nullptr;
    const ScenarioUpdates* updates = nullptr;  // null: only when it joins or is told to
    bool wanted = false;                       // to be called again after the call that goes on
    bool in_round = false;                     // of a broadcast that goes on
    bool works = false;  // has weights, its own or a version: what is staged stands beside them
    absl::Time waits_since = absl::InfiniteFuture();                  // for the other members of it
    double staged_since_s = std::numeric_limits<double>::infinity();  // what it applies now
    std::string label;  // of the version that it holds
  };

  absl::Status Prepare(const RealRunOptions& options);
  absl::Status Play();
  // `counts`: the run does not end before.
  void Post(absl::Duration delay, bool counts, std::function<void()> work);
  bool Over() const;

  void PublishNext();
  void Publish();
  void HandlePublished(const RealOutcome& outcome);
  void WaitForNextStep(absl::Duration after);
  void Unpublish();
  void Write(absl::Duration at_least);
  void BeginRound();
  void EndRoundIfAll();
  void LeaveRound(Reader* reader);
  void AddTrainerStall(StallCause cause, absl::Duration stall);

  absl::Duration DelayOf(const Reader& reader) const {
    return reader.updates->delay +
           static_cast<int64_t>(reader.group->number) * reader.updates->stagger;
  }
  void Update(Reader* reader);
  bool Stages(const Reader& reader) const;
  void HandleStaged(Reader* reader, const RealOutcome& outcome);
  void HandleUpdated(Reader* reader, const RealOutcome& outcome);
  void EndUpdate(Reader* reader, const RealOutcome& outcome);
  void CountBytes(Reader* reader, const RealOutcome& outcome);
  void TakeRead(Reader* reader, const RealOutcome& outcome);
  void Poll(Reader* reader);

  void Schedule(const ScenarioEvent& event, absl::Duration at);
  void Happen(const ScenarioEvent& event);
  void Join(const ScenarioEvent& event);
  void HappenToGroup(const ScenarioEvent& event, RealGroup* group);
  void HappenToHost(const ScenarioEvent& event);

  absl::Status Verify();
  absl::Status FillResult();
  absl::Duration Now() const { return MonotonicNow() - start_; }

  const Scenario& scenario_;
  const ScenarioPolicy policy_;
  std::unique_ptr<ScenarioCluster> cluster_;
  RealGroup* trainer_ = nullptr;
  std::deque<Reader> readers_;
  std::map<std::string, const Location*> places_;  // of the ranks, by name

  struct Work {
    bool counts = false;
    std::function<void()> act;
  };
  std::multimap<absl::Time, Work> agenda_;
  absl::Time start_;
  absl::Status failed_;  // of an event; ends the run
  uint32_t step_ = 0;
  bool trained_ = false;     // all steps are published, and their rounds over
  bool round_open_ = false;  // a broadcast goes on
  bool due_ = false;         // the next step waits for the end of the round
  absl::Time round_began_, due_since_;
  absl::Time next_step_at_;
  RealRunResult run_;
};

absl::StatusOr<RealRunResult> RealRun::Run(const RealRunOptions& options) {
  TH_RETURN_IF_ERROR(Prepare(options));
  TH_RETURN_IF_ERROR(Play());
  TH_RETURN_IF_ERROR(FillResult());
  TH_RETURN_IF_ERROR(Verify());
  return run_;
}

// Everybody that is there from the start has joined, and the trainer holds the first content.
absl::Status RealRun::Prepare(const RealRunOptions& options) {
  TH_ASSIGN_OR_RETURN(cluster_, ScenarioCluster::Open(scenario_, policy_, options));
  std::vector<RealGroup*> from_the_start;
  for (const auto& group : cluster_->groups()) {
    const std::vector<Location>& places = group->family->places[group->number];
    for (size_t i = 0; i < places.size(); ++i) places_[group->ranks[i].name] = &places[i];
    if (!group->family->joins_later) from_the_start.push_back(group.get());
    if (group->family->name == scenario_.training.family) {
      trainer_ = group.get();
      continue;
    }
    Reader& reader = readers_.emplace_back();
    reader.group = group.get();
    reader.works = !group->family->joins_later;
    for (const ScenarioUpdates& updates : scenario_.updates) {
      if (updates.family == group->family->name) reader.updates = &updates;
    }
  }
  TH_RETURN_IF_ERROR(cluster_->Start(from_the_start));
  TH_RETURN_IF_ERROR(cluster_->SendToRanks(*trainer_, {{"do", "change"}, {"content", 1}}));
  if (policy_ == ScenarioPolicy::kSnapshotBroadcast) {  // whose memory is then there
    TH_RETURN_IF_ERROR(cluster_->SendToRanks(*trainer_, {{"do", "copy"}}));
  }
  const auto reader = std::find_if(readers_.begin(), readers_.end(),
                                   [](const Reader& r) { return r.group->joined; });
  if (!options.measure_flow || reader == readers_.end()) return absl::OkStatus();
  TH_ASSIGN_OR_RETURN(run_.flow_seconds, cluster_->MeasureFlow(*trainer_, *reader->group));
  return absl::OkStatus();
}

// ---- the course

void RealRun::Post(absl::Duration delay, bool counts, std::function<void()> work) {
  agenda_.emplace(MonotonicNow() + delay, Work{counts, std::move(work)});
}

bool RealRun::Over() const {
  if (!trained_ || trainer_->calling()) return false;
  for (const auto& [moment, work] : agenda_) {
    if (work.counts) return false;
  }
  return std::none_of(readers_.begin(), readers_.end(), [](const Reader& reader) {
    return reader.group->calling() || (reader.updates != nullptr && !reader.updates->after_publish);
  });
}

absl::Status RealRun::Play() {
  start_ = MonotonicNow();
  Post(scenario_.training.first, /*counts=*/true, [this] { PublishNext(); });
  for (const ScenarioEvent& event : scenario_.events) Schedule(event, event.at);
  for (Reader& reader : readers_) {
    if (reader.updates != nullptr && !reader.updates->after_publish) Poll(&reader);
  }
  while (failed_.ok() && !Over() && Now() < scenario_.end) {
    while (!agenda_.empty() && agenda_.begin()->first <= MonotonicNow()) {
      const std::function<void()> act = std::move(agenda_.begin()->second.act);
      agenda_.erase(agenda_.begin());
      act();
    }
    const absl::Time end = start_ + scenario_.end;
    TH_RETURN_IF_ERROR(
        cluster_->RunUntil(agenda_.empty() ? end : std::min(end, agenda_.begin()->first)));
  }
  for (const Reader& reader : readers_) {
    if (reader.group->joined) cluster_->Signal(*reader.group, std::nullopt, SIGCONT);
  }
  return failed_;
}

// ---- the trainer

void RealRun::AddTrainerStall(StallCause cause, absl::Duration stall) {
  for (RankResult& rank : trainer_->ranks) rank.stall.Add(cause, stall);
}

void RealRun::PublishNext() {
  ++step_;
  if (policy_ != ScenarioPolicy::kSnapshotBroadcast) return Publish();
  cluster_->Call(trainer_, {{"do", "copy"}}, [this](const RealOutcome& outcome) {
    next_step_at_ = MonotonicNow() + scenario_.training.step;
    for (size_t i = 0; i < outcome.answers.size(); ++i) {
      if (!outcome.answers[i].is_object()) continue;
      trainer_->ranks[i].stall.Add(StallCause::kCopy,
                                   absl::Seconds(outcome.answers[i].value("seconds", 0.0)));
    }
    Publish();
  });
}

void RealRun::Publish() {
  if (!trainer_->CanCall()) {
    trained_ = true;  // it is dead, and nobody starts it again
    return;
  }
  round_began_ = MonotonicNow();
  if (policy_ != ScenarioPolicy::kSnapshotBroadcast) {
    next_step_at_ = round_began_ + scenario_.training.step;
  }
  cluster_->Call(trainer_, {{"do", "publish"}, {"label", LabelOf(step_)}},
                 [this](const RealOutcome& outcome) { HandlePublished(outcome); });
}

void RealRun::HandlePublished(const RealOutcome& outcome) {
  if (!outcome.well) {
    failed_ = absl::InternalError(absl::StrCat("the trainer cannot publish: ", outcome.error));
    return;
  }
  run_.result.versions.push_back({.label = LabelOf(step_), .published = Now()});
  if (Broadcasts(policy_)) return BeginRound();
  for (size_t i = 0; i < outcome.answers.size(); ++i) {
    trainer_->ranks[i].stall.Add(StallCause::kGroup,
                                 absl::Seconds(outcome.answers[i].value("publish_seconds", 0.0)));
  }
  for (Reader& reader : readers_) {
    if (reader.updates == nullptr || !reader.updates->after_publish) continue;
    Post(DelayOf(reader), /*counts=*/true, [this, reader = &reader] { Update(reader); });
  }
  WaitForNextStep(next_step_at_ - scenario_.training.write - MonotonicNow());
}

void RealRun::WaitForNextStep(absl::Duration after) {
  if (step_ >= scenario_.training.steps) {
    trained_ = true;
    return;
  }
  Post(std::max(after, absl::ZeroDuration()), /*counts=*/true, [this] {
    if (!round_open_) return Unpublish();
    due_ = true;
    due_since_ = MonotonicNow();
  });
}

void RealRun::Unpublish() {
  if (!trainer_->CanCall()) {
    trained_ = true;
    return;
  }
  // Only TensorHub's readers find another source when theirs goes away.
  const absl::Duration drain =
      policy_ == ScenarioPolicy::kNearest ? scenario_.training.drain : scenario_.end;
  cluster_->Call(
      trainer_, {{"do", "unpublish"}, {"drain_seconds", absl::ToDoubleSeconds(drain)}},
      [this](const RealOutcome& outcome) {
        if (!outcome.well) {
          failed_ =
              absl::InternalError(absl::StrCat("the trainer cannot unpublish: ", outcome.error));
          return;
        }
        for (size_t i = 0; i < outcome.answers.size() && !Broadcasts(policy_); ++i) {
          trainer_->ranks[i].stall.Add(StallCause::kDrain,
                                       absl::Seconds(outcome.answers[i].value("seconds", 0.0)));
        }
        // A snapshot's owner has written all the time.
        Write(policy_ == ScenarioPolicy::kSnapshotBroadcast ? absl::ZeroDuration()
                                                            : scenario_.training.write);
      });
}

void RealRun::Write(absl::Duration at_least) {
  const absl::Time until = MonotonicNow() + at_least;
  cluster_->Call(trainer_, {{"do", "change"}, {"content", step_ + 1}},
                 [this, until](const RealOutcome&) {
                   Post(LeftUntil(until), /*counts=*/true, [this] { PublishNext(); });
                 });
}

// ---- broadcasts

void RealRun::BeginRound() {
  round_open_ = true;
  for (Reader& reader : readers_) {
    if (reader.updates == nullptr || !reader.group->CanCall()) continue;
    reader.in_round = true;
    reader.waits_since = absl::InfiniteFuture();
    Post(DelayOf(reader), /*counts=*/true, [this, reader = &reader] { Update(reader); });
  }
  if (policy_ == ScenarioPolicy::kSnapshotBroadcast) {
    WaitForNextStep(next_step_at_ - MonotonicNow());
  }
  EndRoundIfAll();
}

void RealRun::EndRoundIfAll() {
  if (!round_open_) return;
  for (const Reader& reader : readers_) {
    if (reader.in_round) return;
  }
  round_open_ = false;
  const absl::Time now = MonotonicNow();
  for (Reader& reader : readers_) {
    const absl::Duration waited = now - std::exchange(reader.waits_since, absl::InfiniteFuture());
    if (waited <= absl::ZeroDuration()) continue;
    for (RankResult& rank : reader.group->ranks) rank.stall.Add(StallCause::kMembers, waited);
  }
  if (policy_ == ScenarioPolicy::kBroadcast) {
    AddTrainerStall(StallCause::kMembers, now - round_began_);
    return WaitForNextStep(scenario_.training.step - scenario_.training.write);
  }
  if (!std::exchange(due_, false)) return;
  AddTrainerStall(StallCause::kMembers, now - due_since_);
  Unpublish();
}

void RealRun::LeaveRound(Reader* reader) {
  if (!std::exchange(reader->in_round, false)) return;
  if (!reader->group->gone) reader->waits_since = MonotonicNow();
  EndRoundIfAll();
}

// ---- readers

void RealRun::Update(Reader* reader) {
  if (Broadcasts(policy_) && !reader->in_round) return;  // the next broadcast has it
  reader->wanted = !reader->group->CanCall();
  if (reader->wanted) {
    if (!reader->group->calling()) LeaveRound(reader);  // dead: the others do not wait
    return;
  }
  // Policies of others know no seeds.
  const bool seeds = policy_ == ScenarioPolicy::kNearest && reader->updates != nullptr;
  const WhenSeeding when_seeding = seeds ? reader->updates->when_seeding : WhenSeeding::kWait;
  if (Stages(*reader)) {
    cluster_->Call(reader->group, UpdateCommand("stage", when_seeding, scenario_.end),
                   [this, reader](const RealOutcome& outcome) { HandleStaged(reader, outcome); });
  } else {
    cluster_->Call(reader->group, UpdateCommand("update", when_seeding, scenario_.end),
                   [this, reader](const RealOutcome& outcome) { HandleUpdated(reader, outcome); });
  }
}

// A rollout that has nothing to work with gains nothing by a copy.
bool RealRun::Stages(const Reader& reader) const {
  return policy_ == ScenarioPolicy::kNearest && reader.group->family->stages && reader.works;
}

// The group has worked on meanwhile: only the apply is a stall.
void RealRun::HandleStaged(Reader* reader, const RealOutcome& outcome) {
  const bool staged = outcome.well && outcome.answers.front().value("outcome", "") == "moved";
  if (!staged) return EndUpdate(reader, outcome);
  if (!reader->group->CanCall()) return EndUpdate(reader, {.well = false});
  CountBytes(reader, outcome);
  reader->staged_since_s = BeginOf(outcome);
  cluster_->Call(reader->group,
                 {{"do", "apply"}, {"timeout_seconds", absl::ToDoubleSeconds(scenario_.end)}},
                 [this, reader](const RealOutcome& applied) { HandleUpdated(reader, applied); });
}

void RealRun::HandleUpdated(Reader* reader, const RealOutcome& outcome) {
  for (size_t i = 0; i < outcome.answers.size(); ++i) {
    if (!outcome.answers[i].is_object()) continue;
    reader->group->ranks[i].stall.Add(StallCause::kBytes,
                                      absl::Seconds(outcome.answers[i].value("seconds", 0.0)));
  }
  EndUpdate(reader, outcome);
}

void RealRun::EndUpdate(Reader* reader, const RealOutcome& outcome) {
  if (!outcome.well) {
    ++run_.result.updates_failed;
    if (reader->group->CanCall() && !Broadcasts(policy_)) reader->wanted = true;
  } else {
    TakeRead(reader, outcome);
  }
  reader->staged_since_s = std::numeric_limits<double>::infinity();
  LeaveRound(reader);
  if (!std::exchange(reader->wanted, false)) return;
  Post(outcome.well ? absl::ZeroDuration() : kScenarioRetry, /*counts=*/true,
       [this, reader] { Update(reader); });
}

void RealRun::TakeRead(Reader* reader, const RealOutcome& outcome) {
  const std::string how = outcome.answers.front().value("outcome", "");
  if (how == "not available") {
    ++run_.result.updates_not_available;
    if (IsSeeding(outcome.answers.front()) && reader->updates->after_publish) {
      Post(reader->updates->retry, /*counts=*/true, [this, reader] { Update(reader); });
    }
  }
  if (how != "moved") return;
  CountBytes(reader, outcome);
  reader->works = true;
  const double began = BeginOf(outcome);
  double ended = 0;
  for (const json& answer : outcome.answers) {
    ended = std::max(ended, answer.value("ended_s", 0.0));
  }
  const absl::Duration at =
      absl::Seconds(std::min(began, reader->staged_since_s)) - (start_ - absl::UnixEpoch());
  const absl::Duration until = absl::Seconds(ended) - (start_ - absl::UnixEpoch());
  for (VersionResult& version : run_.result.versions) {
    // "step-2 (#2)": the label is the first word.
    const std::string name = outcome.answers.front().value("version", "");
    if (name.substr(0, name.find(' ')) != version.label) continue;
    reader->label = version.label;
    ++version.groups;
    version.last_reader = std::max(version.last_reader, until - version.published);
    version.slowest_update = std::max(version.slowest_update, until - at);
  }
  run_.result.reads.push_back(
      {reader->group->name, reader->label, at, until, absl::Seconds(ended - began)});
}

void RealRun::CountBytes(Reader* reader, const RealOutcome& outcome) {
  for (size_t i = 0; i < outcome.answers.size(); ++i) {
    for (const json& source : outcome.answers[i].value("sources", json::array())) {
      const auto bytes = source.value("bytes", uint64_t{0});
      const auto place = places_.find(source.value("name", ""));
      reader->group->ranks[i].bytes_from[source.value("name", "")] += bytes;
      if (place == places_.end()) continue;
      const Distance distance =
          DistanceBetween(*places_.at(reader->group->ranks[i].name), *place->second);
      run_.result.bytes_over[static_cast<size_t>(distance)] += bytes;
    }
  }
}

void RealRun::Poll(Reader* reader) {
  Post(reader->updates->every, /*counts=*/false, [this, reader] {
    if (reader->group->CanCall()) Update(reader);
    Poll(reader);
  });
}

// ---- events

void RealRun::Schedule(const ScenarioEvent& event, absl::Duration at) {
  if (at > scenario_.end || (event.every.has_value() && at > event.until)) return;
  Post(at - Now(), /*counts=*/true, [this, &event, at] {
    Happen(event);
    if (event.every.has_value()) Schedule(event, at + *event.every);
  });
}

void RealRun::Happen(const ScenarioEvent& event) {
  using Kind = ScenarioEvent::Kind;
  if (event.kind == Kind::kJoin) return Join(event);
  if (event.kind == Kind::kCutHost || event.kind == Kind::kSlowHost) return HappenToHost(event);
  const auto meant = [&](const RealGroup& group) {
    return group.joined && (group.name == event.target || group.family->name == event.target);
  };
  if (meant(*trainer_)) return HappenToGroup(event, trainer_);
  for (Reader& reader : readers_) {
    if (!meant(*reader.group)) continue;
    if (event.kind == Kind::kUpdate) {
      Update(&reader);
    } else {
      HappenToGroup(event, reader.group);
    }
  }
}

void RealRun::Join(const ScenarioEvent& event) {
  std::vector<Reader*> joining;
  std::vector<RealGroup*> groups;
  for (Reader& reader : readers_) {
    if (groups.size() == event.groups || reader.group->joined) continue;
    if (reader.group->family->name != event.target) continue;
    joining.push_back(&reader);
    groups.push_back(reader.group);
  }
  const bool from_the_start = Now() < scenario_.training.first;
  failed_ = cluster_->Start(groups);
  if (!failed_.ok()) return;
  for (Reader* reader : joining) {
    reader->works = from_the_start;
    if (!from_the_start) Update(reader);
  }
}

void RealRun::HappenToGroup(const ScenarioEvent& event, RealGroup* group) {
  using Kind = ScenarioEvent::Kind;
  const std::optional<uint32_t> rank = event.rank;
  if (event.kind == Kind::kStop) {
    cluster_->Signal(*group, rank, SIGSTOP);
    Post(event.lasting, /*counts=*/true,
         [this, group, rank] { cluster_->Signal(*group, rank, SIGCONT); });
    return;
  }
  group->gone = true;
  if (event.kind == Kind::kKill) return cluster_->Signal(*group, rank, SIGKILL);
  const std::vector<RankProcess*> ranks = cluster_->RanksOf(*group);
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!rank.has_value() || *rank == i) ranks[i]->Send({{"do", "leave"}});
  }
}

void RealRun::HappenToHost(const ScenarioEvent& event) {
  const bool cut = event.kind == ScenarioEvent::Kind::kCutHost;
  if (cut && event.lasting <= absl::ZeroDuration()) return;
  failed_ = cut ? cluster_->Cut(event.target) : cluster_->Slow(event.target, event.factor);
  if (event.lasting <= absl::ZeroDuration()) return;
  Post(event.lasting, /*counts=*/true, [this, cut, host = event.target] {
    failed_ = cut ? cluster_->Restore(host) : cluster_->Slow(host, 1);
  });
}

// ---- the end

absl::Status RealRun::FillResult() {
  ScenarioResult& result = run_.result;
  result.scenario = scenario_.name;
  result.policy = policy_;
  result.seed = scenario_.seed;
  result.ended = Now();
  result.replica_bytes = scenario_.shard_bytes * scenario_.shards;
  for (const auto& group : cluster_->groups()) {
    if (group->calling()) {
      ++result.calls_open;
    } else if (group->joined && !group->gone) {
      TH_RETURN_IF_ERROR(cluster_->SendToRanks(*group, {{"do", "stats"}}));
      const std::vector<RankProcess*> ranks = cluster_->RanksOf(*group);
      for (size_t i = 0; i < ranks.size(); ++i) {
        group->ranks[i].bytes_sent = ranks[i]->answer()->value("bytes_sent", uint64_t{0});
      }
    }
    result.ranks.insert(result.ranks.end(), group->ranks.begin(), group->ranks.end());
  }
  return absl::OkStatus();
}

// Compares what every reader of the last version holds, by shard, with the trainer.
absl::Status RealRun::Verify() {
  if (trainer_->gone || trainer_->calling() || run_.result.versions.empty()) {
    return absl::OkStatus();
  }
  TH_RETURN_IF_ERROR(cluster_->SendToRanks(*trainer_, {{"do", "sum"}}));
  std::vector<std::string> checksums(scenario_.shards);
  const std::vector<RankProcess*> sources = cluster_->RanksOf(*trainer_);
  for (size_t i = 0; i < scenario_.shards; ++i)
    checksums[i] = sources[i]->answer()->value("sum", "");
  for (const Reader& reader : readers_) {
    const bool holds = reader.label == run_.result.versions.back().label;
    if (!holds || reader.group->gone || reader.group->calling()) continue;
    TH_RETURN_IF_ERROR(cluster_->SendToRanks(*reader.group, {{"do", "sum"}}));
    const std::vector<RankProcess*> ranks = cluster_->RanksOf(*reader.group);
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i]->answer()->value("sum", "?") == checksums[i % scenario_.shards]) continue;
      return absl::DataLossError(
          absl::StrCat(ranks[i]->name(), " holds other bytes than the trainer published"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RealRunResult> RunScenarioForReal(const Scenario& scenario, ScenarioPolicy policy,
                                                 const RealRunOptions& options) {
  return RealRun(scenario, policy).Run(options);
}

}  // namespace th
