#include "th/simulator/random_runs/retention_watch.h"

#include <algorithm>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "th/simulator/cluster.h"
#include "th/simulator/simulated_worker.h"

namespace th {
namespace {

struct StepHeld {
  uint64_t step = 0;   // 0: none
  bool named = false;  // by a server; a publication that none names is no version
};

// The version that a buffer of the worker holds whole. The end of a fill is heard by the server
// before the session calls it published. A drain has taken nothing away yet: where the update that
// it is for has failed on another rank, the version stays when it ends.
StepHeld HeldBy(const SimulatedWorker& worker, BufferId id) {
  const BufferState state = worker.session().buffer_state(id);
  const SimulatedBuffer& buffer = *worker.FindBuffer(id);
  const bool received =
      state == BufferState::kFilling && buffer.held().count() == buffer.segment_count();
  const bool there = state == BufferState::kPublished || state == BufferState::kDraining;
  if (!there && !received) return {};
  const auto version = worker.session().buffer_version(id);
  absl::string_view label = version.label.text();
  uint64_t step = 0;
  if (!absl::ConsumePrefix(&label, "step-") || !absl::SimpleAtoi(label, &step)) return {};
  return {step, version.sequence != VersionSequence()};
}

// The steps of which every shard is there.
std::set<uint64_t> WholeSteps(const std::map<uint64_t, std::set<int>>& shards_of, size_t shards) {
  std::set<uint64_t> whole;
  for (const auto& [step, held] : shards_of) {
    if (held.size() == shards) whole.insert(step);
  }
  return whole;
}

}  // namespace

void RetentionWatch::Look() {
  std::map<Step, std::set<int>> held, held_without_copies;
  for (const auto& worker : cluster_->workers()) {
    if (!worker->alive() || !worker->ready()) continue;
    const int shard = worker->spec().shard;
    if (const StepHeld own = HeldBy(*worker, worker->buffer_id()); own.step != 0) {
      held[own.step].insert(shard);
      held_without_copies[own.step].insert(shard);
      if (own.named) named_.insert(own.step);
    }
    for (const BufferId id : worker->copies()) {
      if (const StepHeld copy = HeldBy(*worker, id); copy.step != 0) held[copy.step].insert(shard);
    }
  }
  const std::set<Step> whole = WholeSteps(held, shards_);
  const std::set<Step> whole_without_copies = WholeSteps(held_without_copies, shards_);
  for (const Step step : whole_) {
    // A server may have named what no rank has heard of yet, and let older ones go.
    const auto newer = std::count_if(whole.upper_bound(step), whole.end(), [this](Step other) {
      return cluster_->server().alive() || named_.contains(other);
    });
    if (newer >= keep_latest_ || !named_.contains(step)) continue;
    if (!whole_without_copies.contains(step)) saved_.insert(step);
    if (whole.contains(step)) continue;
    cluster_->checker().Violated(absl::StrCat("step-", step, " is lost, and the ", keep_latest_,
                                              " newest versions are kept; there are ", newer,
                                              " newer ones"));
  }
  whole_ = whole;
  seen_.insert(whole.begin(), whole.end());
}

}  // namespace th
