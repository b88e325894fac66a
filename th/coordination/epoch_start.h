// The beginning of an epoch: which number it has, and how its state's identity goes on.
#ifndef TH_COORDINATION_EPOCH_START_H_
#define TH_COORDINATION_EPOCH_START_H_

#include <functional>
#include <optional>

#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/registry_state/registry_types.h"

namespace th {

// The epoch of a server that opens a state at `now`: above `stored`, the state's last one (none: a
// new state), and at least the seconds that have passed since the start of 2026, so that a server
// whose state was lost or is older rarely begins below the epoch that its workers have lived in, or
// in that epoch: two servers of one epoch may number two versions alike. Seconds reach to 2060.
// Where the clock is behind, workers' claims raise it (RegistryEffects::outdone_by).
Epoch EpochAfter(std::optional<Epoch> stored, absl::Time now);

// Gives a new state its cluster id and key; `random` gives 64 bits that nobody can guess.
void NameCluster(StateIdentity& identity, const std::function<uint64_t()>& random);

// The identity goes on with one more epoch of this process, or with its first one.
void BeginEpochOf(StateIdentity& identity, EpochId epoch_id);

// 64 bits from the kernel. Aborts without them: a server without randomness must give no secrets.
uint64_t RandomFromSystem();

}  // namespace th

#endif  // TH_COORDINATION_EPOCH_START_H_
