// Room for one more model: a run that has ended leaves its durable record behind, and the oldest of
// those makes room when the server is full.
#ifndef TH_REFERENCE_REGISTRY_MODELS_H_
#define TH_REFERENCE_REGISTRY_MODELS_H_

#include "absl/status/status.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// RESOURCE_EXHAUSTED naming max_models: `key` is new, there are as many, and each has a group, a
// pin or a retention policy, or may be announced again after a restart.
absl::Status HasRoomForModel(const RegistryState& state, const ModelKey& key);
// The model with that key; HasRoomForModel was OK. A new one takes the place of the one whose
// newest version is the oldest, if need be.
Model& TakeModel(Turn& turn, const ModelKey& key);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_MODELS_H_
