// Checks that the state keeps its own rules: the indices agree with what they index, no graph of
// fills has a cycle, nothing withdrawn is a source, nothing waits without an end. For tests and
// simulations.
#ifndef TH_REFERENCE_REGISTRY_INVARIANTS_H_
#define TH_REFERENCE_REGISTRY_INVARIANTS_H_

#include "absl/status/status.h"
#include "th/reference_registry/state.h"

namespace th::registry {

// INTERNAL naming the first rule that is broken and by whom. O(state).
absl::Status CheckStateInvariants(const RegistryState& state);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_INVARIANTS_H_
