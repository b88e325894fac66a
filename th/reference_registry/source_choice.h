// Whom a reader would pull from: the scheduler's policy put to the holders near the reader, and to
// farther ones only where those do not settle it.
#ifndef TH_REFERENCE_REGISTRY_SOURCE_CHOICE_H_
#define TH_REFERENCE_REGISTRY_SOURCE_CHOICE_H_

#include <cstddef>
#include <vector>

#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"
#include "th/scheduler/scheduler.h"

namespace th::registry {

// How many candidates of each place (host, rack, site, everywhere) are looked at for one reader, so
// that the cost of an assignment does not grow with the fleet.
inline constexpr size_t kMaxCandidatesPerPlace = 16;
// How many candidates of its own site are looked at before a reader takes a source in another one.
inline constexpr size_t kMaxCandidatesBeforeCrossing = 256;

// The best first, none of `excluded`; empty: nobody can serve. `reader` has a shard.
std::vector<SchedulerChoice> ChooseSources(const Turn& turn, const Buffer& reader,
                                           std::vector<BufferAddress> excluded);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_SOURCE_CHOICE_H_
