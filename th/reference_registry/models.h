// Which models the server knows. A run that has ended leaves its durable record behind: it goes
// when somebody says so, when nobody has used it for long, and when the server is full and it is
// the one that was used least recently.
#ifndef TH_REFERENCE_REGISTRY_MODELS_H_
#define TH_REFERENCE_REGISTRY_MODELS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// RESOURCE_EXHAUSTED naming max_models: `key` is new, there are as many, and each has a group, a
// pin or a retention policy, or may be announced again after a restart.
absl::Status HasRoomForModel(const RegistryState& state, const ModelKey& key);
// The model with that key; HasRoomForModel was OK. A new one takes the place of the unused
// model that was used least recently, if need be; of those that nobody has used since a restart, of
// the one with the oldest newest version.
Model& TakeModel(Turn& turn, const ModelKey& key);

// The model is in use at this moment, which may be the last one.
void NoteUse(RegistryState& state, Model& model, absl::Time now);

// NOT_FOUND: there is none. UNAVAILABLE: ranks may still come back after a restart.
// FAILED_PRECONDITION naming the groups that it has.
absl::Status CanForget(const RegistryState& state, const ModelKey& key);
// CanForget was OK. Pins and retention policies go too. `asked_by` is for people.
void ForgetOnCommand(Turn& turn, const ModelKey& key, const std::string& asked_by);
// When forgets_at has come: models without groups, pins and retention policies go that have been
// unused for limits.forget_after.
void ForgetUnused(Turn& turn);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_MODELS_H_
