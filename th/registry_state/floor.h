// The oldest version that the ranks of a replica accept. Each rank may ask for nothing older than
// some version that it knows of; the newest of these counts for all.
#ifndef TH_REGISTRY_STATE_FLOOR_H_
#define TH_REGISTRY_STATE_FLOOR_H_

#include "th/identifiers/identifiers.h"
#include "th/registry_state/state.h"

namespace th::registry {

// True when `version` is older than `floor` allows. A floor of a version that was rolled back
// counts as the version that it was rolled back to.
bool IsBehindFloor(const Replica& replica, VersionSequence version, VersionSequence floor);

}  // namespace th::registry

#endif  // TH_REGISTRY_STATE_FLOOR_H_
