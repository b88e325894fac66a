#include "th/reference_registry/models.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "th/registry_state/holders.h"

namespace th::registry {
namespace {

// Groups that the refusal to forget a model names.
constexpr size_t kMaxGroupsNamed = 5;
// The pause before models that are due are looked at again, while ranks may still come back.
constexpr absl::Duration kForgettingPause = absl::Seconds(1);

bool IsInUseOrRetained(const Model& model) {
  return !model.groups.empty() || MayRetain(model.durable);
}

// Ranks may still come back to models that seem to be unused.
bool MayComeBack(const RegistryState& state) { return state.recovering || state.adopting; }

// Null when every model is in use or retained.
const Model* LeastRecentlyUsed(const RegistryState& state) {
  if (MayComeBack(state)) return nullptr;
  const auto age = [](const Model& model) {
    return std::make_pair(model.last_used, model.durable.high_water);
  };
  const Model* least = nullptr;
  for (const auto& [key, model] : state.models) {
    if (IsInUseOrRetained(model)) continue;
    if (least == nullptr || age(model) < age(*least)) least = &model;
  }
  return least;
}

bool IsFull(const RegistryState& state) { return state.models.size() >= state.limits.max_models; }

void Forget(Turn& turn, const ModelKey& key, const std::string& who, const std::string& why) {
  Model& model = *FindModel(turn.state, key);
  Note(turn, model.key, {EventKind::kModelForgotten, EventId(), who}, why);
  while (!model.versions.empty()) EraseVersion(turn, model.versions.begin()->second);
  turn.durable_changed |= turn.state.durable.models.erase(model.key) > 0;
  ForgetModel(turn.state, model);
}

void SetForgetsAt(RegistryState& state, absl::Time at) {
  state.deadlines.erase({.at = state.forgets_at, .kind = DeadlineKind::kForgetting});
  state.forgets_at = at;
  if (at == absl::InfiniteFuture()) return;
  state.deadlines.insert({.at = at, .kind = DeadlineKind::kForgetting});
}

}  // namespace

absl::Status HasRoomForModel(const RegistryState& state, const ModelKey& key) {
  if (FindModel(state, key) != nullptr || !IsFull(state)) return absl::OkStatus();
  if (LeastRecentlyUsed(state) != nullptr) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the server has ", state.models.size(),
                                                   " models, and max_models is ",
                                                   state.limits.max_models));
}

Model& TakeModel(Turn& turn, const ModelKey& key) {
  RegistryState& state = turn.state;
  if (FindModel(state, key) == nullptr && IsFull(state)) {
    if (const Model* unused = LeastRecentlyUsed(state)) {
      Forget(turn, unused->key, /*who=*/"", absl::StrCat("makes room for ", key.ToString()));
    }
  }
  return EnsureModel(state, key);
}

void NoteUse(RegistryState& state, Model& model, absl::Time now) {
  model.last_used = now;
  if (state.forgets_at == absl::InfiniteFuture()) {
    SetForgetsAt(state, now + state.limits.forget_after);
  }
}

absl::Status CanForget(const RegistryState& state, const ModelKey& key) {
  const Model* model = FindModel(state, key);
  if (model == nullptr) {
    return absl::NotFoundError(absl::StrCat("the server knows no ", key.ToString()));
  }
  if (MayComeBack(state)) {
    return absl::UnavailableError(
        "the server has restarted, and ranks that held something may still come back");
  }
  if (model->groups.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const auto& [name, group] : model->groups) {
    if (names.size() < kMaxGroupsNamed) names.push_back(name);
  }
  const size_t more = model->groups.size() - names.size();
  return absl::FailedPreconditionError(
      absl::StrCat(key.ToString(), " is in use by ", absl::StrJoin(names, ", "),
                   more == 0 ? "" : absl::StrCat(" and ", more, " more"),
                   ": it can be forgotten once they have left"));
}

void ForgetOnCommand(Turn& turn, const ModelKey& key, const std::string& asked_by) {
  Forget(turn, key, asked_by, "on command");
}

void ForgetUnused(Turn& turn) {
  RegistryState& state = turn.state;
  absl::Time next = absl::InfiniteFuture();
  std::vector<const Model*> unused;
  for (const auto& [key, model] : state.models) {
    if (IsInUseOrRetained(model)) continue;
    const absl::Time due = model.last_used + state.limits.forget_after;
    if (due <= turn.now && !MayComeBack(state)) {
      unused.push_back(&model);
    } else {
      next = std::min(next, std::max(due, turn.now + kForgettingPause));
    }
  }
  for (const Model* model : unused) {
    Forget(turn, model->key, /*who=*/"",
           absl::StrCat("unused for ", absl::FormatDuration(turn.now - model->last_used)));
  }
  SetForgetsAt(state, next);
}

}  // namespace th::registry
