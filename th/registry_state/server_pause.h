// A pause of the server: it was stopped (SIGSTOP, a paused machine, a disk that hung) and has heard
// nobody meanwhile, whatever its workers said. Their silence is not theirs.
#ifndef TH_REGISTRY_STATE_SERVER_PAUSE_H_
#define TH_REGISTRY_STATE_SERVER_PAUSE_H_

#include "absl/time/time.h"
#include "th/registry_state/state.h"

namespace th::registry {

// Moves everything that waits for a worker by `pause`: leases, operations, retries, the recovery
// window, the end of adoption. Pins keep their time: they are somebody's wall clock. O(everything).
void MovePastPause(RegistryState& state, absl::Duration pause, absl::Time now);

}  // namespace th::registry

#endif  // TH_REGISTRY_STATE_SERVER_PAUSE_H_
