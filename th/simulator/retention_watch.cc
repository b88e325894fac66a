#include "th/simulator/retention_watch.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "th/simulator/cluster.h"
#include "th/simulator/simulated_worker.h"

namespace th {
namespace {

// The step that a buffer of the worker holds all of; 0: none. The end of a fill is heard by the
// server before the session calls it published.
uint64_t StepHeld(const SimulatedWorker& worker, BufferId id) {
  const BufferState state = worker.session().buffer_state(id);
  const SimulatedBuffer& buffer = *worker.FindBuffer(id);
  const bool received =
      state == BufferState::kFilling && buffer.held().count() == buffer.segment_count();
  if (state != BufferState::kPublished && !received) return 0;
  const auto version = worker.session().buffer_version(id);
  absl::string_view label = version.label.text();
  uint64_t step = 0;
  const bool named = absl::ConsumePrefix(&label, "step-") && absl::SimpleAtoi(label, &step);
  return named ? step : 0;
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
    if (const Step step = StepHeld(*worker, worker->buffer_id()); step != 0) {
      held[step].insert(shard);
      held_without_copies[step].insert(shard);
    }
    for (const BufferId copy : worker->copies()) {
      if (const Step step = StepHeld(*worker, copy); step != 0) held[step].insert(shard);
    }
  }
  const std::set<Step> whole = WholeSteps(held, shards_);
  const std::set<Step> whole_without_copies = WholeSteps(held_without_copies, shards_);
  for (const Step step : whole_) {
    const auto newer = std::distance(whole.upper_bound(step), whole.end());
    if (newer >= keep_latest_) continue;
    if (!whole_without_copies.contains(step)) saved_.insert(step);
    if (whole.contains(step)) continue;
    cluster_->judge().Violated(absl::StrCat("step-", step, " is lost, and the ", keep_latest_,
                                            " newest versions are kept; there are ", newer,
                                            " newer ones"));
  }
  whole_ = whole;
  seen_.insert(whole.begin(), whole.end());
}

}  // namespace th
