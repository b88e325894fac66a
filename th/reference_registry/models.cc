#include "th/reference_registry/models.h"

#include "absl/strings/str_cat.h"
#include "th/registry_state/holders.h"

namespace th::registry {
namespace {

bool IsWanted(const Model& model) {
  return !model.groups.empty() || !model.durable.pins.empty() || model.durable.keep_latest != 0 ||
         !model.durable.keep_latest_of_form.empty();
}

// Null when every model is wanted.
const Model* OldestUnwanted(const RegistryState& state) {
  if (state.recovering || state.adopting) return nullptr;
  const Model* oldest = nullptr;
  for (const auto& [key, model] : state.models) {
    if (IsWanted(model)) continue;
    const bool older = oldest == nullptr || model.durable.high_water < oldest->durable.high_water;
    if (older) oldest = &model;
  }
  return oldest;
}

bool IsFull(const RegistryState& state) { return state.models.size() >= state.limits.max_models; }

}  // namespace

absl::Status HasRoomForModel(const RegistryState& state, const ModelKey& key) {
  if (FindModel(state, key) != nullptr || !IsFull(state)) return absl::OkStatus();
  if (OldestUnwanted(state) != nullptr) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the server has ", state.models.size(),
                                                   " models, and max_models is ",
                                                   state.limits.max_models));
}

Model& TakeModel(Turn& turn, const ModelKey& key) {
  RegistryState& state = turn.state;
  if (FindModel(state, key) == nullptr && IsFull(state)) {
    if (const Model* unwanted = OldestUnwanted(state)) {
      Model* oldest = FindModel(state, unwanted->key);
      Log(turn, absl::StrCat(oldest->key.ToString(), " is forgotten to make room for another"));
      while (!oldest->versions.empty()) EraseVersion(turn, oldest->versions.begin()->second);
      turn.durable_changed |= state.durable.models.erase(oldest->key) > 0;
      ForgetModel(state, *oldest);
    }
  }
  return EnsureModel(state, key);
}

}  // namespace th::registry
