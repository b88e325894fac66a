// How fast fills get on, as their readers tell with their progress, and who leaves a source that is
// slow but not silent: the rules of th/scheduler/slow_source.h put to the registry's state.
//
// A fill is looked at when it tells its throughputs. After the first time, and where it takes the
// word of others to judge them and they have told nothing yet, it is looked at once more after
// kRecheckAfter.
#ifndef TH_REFERENCE_REGISTRY_THROUGHPUT_H_
#define TH_REFERENCE_REGISTRY_THROUGHPUT_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// How long a source that was left for being slow comes after all others of its distance: then one
// reader tries it again.
inline constexpr absl::Duration kSlowLasts = absl::Minutes(1);
// A throughput is told of so many segments at least, if need be over several reports: of fewer the
// one that is under way says too much.
inline constexpr uint64_t kLeastSegmentsMeasured = 8;
inline constexpr absl::Duration kRecheckAfter = absl::Milliseconds(100);

// Takes the report of `buffer`, which is filling, on its sources; one that it has no more is
// ignored. The reader may leave one.
void NoteThroughputs(Turn& turn, Buffer& buffer, const std::vector<SourceThroughput>& throughputs);
// The look that a deadline asked for. No effect on a buffer that is not filling.
void RecheckSources(Turn& turn, Buffer& buffer);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_THROUGHPUT_H_
