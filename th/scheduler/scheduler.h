// Which sources a reader pulls from: policy only, a pure function of a snapshot.
//
//   std::vector<SchedulerChoice> choices = Schedule(snapshot, demand, limits);
//
// Rules, in order:
//  1. Never a cycle: a source that (transitively) fills from the reader is out. The graph is per
//     (version, shard), an upper bound of the graph per segment.
//  2. Excluded, unconnected or draining holders are out. So is a partial holder that nothing feeds:
//     no path leads from it up to a complete holder, whether that one is available or not.
//  3. Holders at a limit (max_readers_per_source, max_chain) come after all others.
//  4. Near before far (topology distance).
//  5. Sources that are suspected or have been silent come after all others of their distance.
//     Less loaded (readers already assigned) before more loaded.
//  6. At equal load a rollout before the publisher: a relay costs the trainer nothing.
//  7. Shorter chains first, then the lower address: deterministic.
#ifndef TH_SCHEDULER_SCHEDULER_H_
#define TH_SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <vector>

#include "th/topology/location.h"
#include "th/weights/identifiers.h"

namespace th {

// One buffer that holds or fills the wanted shard of the wanted version in the wanted form.
struct SchedulerHolder {
  BufferAddress buffer;
  Location location;
  bool complete = false;
  bool publisher = false;
  bool available = true;   // connected, not draining, its group not invalidated
  bool suspected = false;  // a reader reported it lately, or it has been silent
  uint64_t segments_held = 0;
  uint32_t readers = 0;                // assigned to it now
  std::vector<BufferAddress> sources;  // that it fills from now; others than holders feed nothing
};

struct SchedulerSnapshot {
  std::vector<SchedulerHolder> holders;  // any order; one entry a buffer
};

struct SchedulerDemand {
  BufferAddress reader;
  Location location;
  std::vector<BufferAddress> excluded;  // failed this fill before
};

struct SchedulerLimits {
  // At once for one reader. Beyond the first only sources that are neither suspected nor at a
  // limit.
  uint32_t max_sources = 1;
  uint32_t max_readers_per_source = 4;  // beyond it a source is taken only when there is no other
  uint32_t max_chain = 16;  // hops; beyond it a source is taken only when there is no other
};

struct SchedulerChoice {
  BufferAddress source;
  Distance distance = Distance::kSameSite;
  friend bool operator==(const SchedulerChoice&, const SchedulerChoice&) = default;
};

// The sources for `demand`, best first; empty when there is none. Deterministic: the order of
// snapshot.holders does not matter. O(holders + edges).
std::vector<SchedulerChoice> Schedule(const SchedulerSnapshot& snapshot,
                                      const SchedulerDemand& demand, const SchedulerLimits& limits);

}  // namespace th

#endif  // TH_SCHEDULER_SCHEDULER_H_
