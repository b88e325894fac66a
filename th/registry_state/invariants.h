// Checks that the state keeps its own rules: the indices agree with what they index, no graph of
// fills has a cycle, nothing withdrawn is a source, nothing waits without an end. For tests and
// simulations.
#ifndef TH_REGISTRY_STATE_INVARIANTS_H_
#define TH_REGISTRY_STATE_INVARIANTS_H_

#include "absl/status/status.h"
#include "th/registry_state/state.h"

namespace th::registry {

// INTERNAL naming the first rule that is broken and by whom. O(state).
absl::Status CheckStateInvariants(const RegistryState& state);

}  // namespace th::registry

#endif  // TH_REGISTRY_STATE_INVARIANTS_H_
