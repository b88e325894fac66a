// Which sources a reader pulls from: policy only, a pure function of a snapshot and of the graph of
// fills above it.
//
//   FillPaths paths(graph, demand.reader);
//   std::vector<SchedulerChoice> choices = Schedule(snapshot, demand, limits, paths);
//
// Candidates are compared by what is noted of them. Only who would be taken is followed up through
// the graph, and where it cannot feed the reader, the next one is: one or two of them. To follow
// all would be to walk most of a large fleet's graph.
//
// The rules of SchedulerPolicy::kNearest. 1 and 2, which are those of every policy, exclude; 3 to 7
// compare; 8 adds further sources:
//  1. Never a cycle: a source that (transitively) fills from the reader is out. The graph is per
//     (version, shard). It does not say which segments flow, so it forbids more than it need.
//  2. Excluded holders are out. So is a partial holder that nothing feeds: no path leads from it up
//     to a complete holder, candidate or not, or to a source that has not come back yet since a
//     restart (fill_paths.h).
// The candidates that are left are compared by one property after another, in this order: leaving,
// other site, at a limit, slower link, distance, suspected, load, publisher, unproved, chain,
// address.
//  3. Holders whose workers leave lose against all others. Then those of another site lose
//     (an unknown site counts as the reader's own): a reader crosses over only if nobody who is
//     offered from its own site can feed it and stays, so that a version comes into a site once,
//     by the first that asks there. Then those at a limit lose
//     (max_readers_per_source, max_chain); another buffer of the reader's own worker has no limit.
//  4. Then those behind a slower link than the reader's lose, except on the reader's own host: a
//     reader gets no more than its source receives. So a chain goes from fast links to slow ones,
//     and slow readers are at its end. Then near before far (topology distance); another buffer of
//     the reader's own worker is nearest.
//  5. Then those that are `suspected` lose: reported by a reader, left for being slow, or silent.
//     Then less loaded before more loaded. The load is what is outstanding on the holder's uplink,
//     as a number of quarters of the shard, rounded up (of one byte, where the shard's size is not
//     known): what readers lack is known as of their last report, so that a finer number would say
//     no more.
//  6. Then a rollout before the publisher: a relay costs the trainer nothing. Then one that has
//     proved itself for a further reader before one that has not: a partial holder that has one
//     reader proves itself with a quarter of the shard, one that has two with half of it. A holder
//     without a reader has proved itself.
//  7. Then shorter chains, and last the lower address: deterministic.
//  8. Further sources (max_sources in all) only where each adds a free uplink: complete, with
//     nothing left to send (to readers that are stalled or behind a slower link than this one it
//     may), on a known host other than the reader's and those chosen before, no farther than the
//     first, and so none beside a first one on the reader's own host; neither suspected, leaving
//     nor at a limit, and not the publisher where the first is a relay.
#ifndef TH_SCHEDULER_SCHEDULER_H_
#define TH_SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "th/identifiers/identifiers.h"
#include "th/scheduler/fill_paths.h"
#include "th/scheduler/link_rate.h"
#include "th/topology/location.h"

namespace th {

// One buffer that holds or fills the wanted shard of the wanted version in the wanted form, and may
// be given to readers, as the caller decides (the registry by IsCandidate in holders.h).
struct SchedulerHolder {
  BufferAddress buffer;
  const Location* location = nullptr;  // outlives the snapshot
  bool complete = false;
  bool publisher = false;
  bool suspected = false;  // reported or left for being slow lately, or silent
  bool leaving = false;    // its worker has a notice
  uint64_t segments_held = 0;
  uint64_t segments = 0;  // of the shard; 0: not known
  // The readers that are assigned to it now. Those behind a slower link than the demand's reader
  // count neither here nor in what is outstanding: they make way for a faster one.
  uint32_t readers = 0;
  // The bytes that its worker's uplink has still to send, to readers that are not stalled.
  uint64_t outstanding_bytes = 0;
  std::optional<double> link_limit;  // see LinkRate
  // Hops up to a complete holder, as noted when its sources were assigned. The graph may have
  // changed since. A note that is too short, where one above has moved to the end of another chain,
  // is found out before the holder is taken. One that is too long, where one above has completed,
  // ranks it later than it need be (rules 3 and 7), until it completes itself soon after.
  uint32_t chain = 0;
};

struct SchedulerSnapshot {
  std::vector<SchedulerHolder> holders;  // any order; one entry a buffer
};

struct SchedulerDemand {
  BufferAddress reader;
  Location location;
  uint64_t bytes = 0;                   // of the shard; 0: not known
  std::vector<BufferAddress> excluded;  // have failed this reader during this fill, or were left
  std::optional<double> link_limit;     // see LinkRate
};

// How a source is chosen. All but the first imitate how other systems move weights, to compare
// with; they look at neither distance nor limits, and give one source.
enum class SchedulerPolicy : uint8_t {
  kNearest = 1,  // the rules above
  kDirect = 2,   // the publisher and nobody else: point to point
  // The end of the longest chain, wherever it is: a static ring of all members. Suspected ones come
  // last, and those with fewer readers first.
  kChain = 3,
  kRandom = 4,  // anybody who could serve
};

// "nearest", "direct", "chain", "random".
absl::string_view SchedulerPolicyName(SchedulerPolicy policy);
// The inverse. INVALID_ARGUMENT naming them.
absl::StatusOr<SchedulerPolicy> ParseSchedulerPolicy(absl::string_view name);

struct SchedulerLimits {
  SchedulerPolicy policy = SchedulerPolicy::kNearest;
  uint32_t max_sources = 2;             // at once for one reader
  uint32_t max_readers_per_source = 4;  // with so many a source is at its limit: rule 3
  // A source that is so many hops below a complete holder is at its limit. A hop delays the end of
  // the chain by the time of one segment, and a second chain from the same uplink halves
  // everybody's rate: a long chain is the better one while the shard has more segments than it has
  // hops.
  uint32_t max_chain = 64;
};

struct SchedulerChoice {
  BufferAddress source;
  Distance distance = Distance::kSameSite;
  // It leaves, and nothing that stays can feed the reader; or it is at a limit, and so is all else
  // that stays and can feed the reader from the reader's own site (from any, where the reader
  // crosses). Never set for a further source.
  bool at_limit = false;
  bool slower = false;  // rule 4
  uint32_t chain = 0;   // hops from it up to a complete holder
  friend bool operator==(const SchedulerChoice&, const SchedulerChoice&) = default;
};

// True when a holder, `chain` hops below a complete one, is at the limit of chains (rule 3) or,
// under kDirect, is not taken at all: callers that offer only some holders offer these last.
bool IsDeprioritized(const SchedulerLimits& limits, bool publisher, uint32_t chain);

// Rule 6: a holder that has so many readers, or more, has not proved itself for a further one.
uint32_t ReadersAllowed(const SchedulerLimits& limits, const SchedulerHolder& holder);

// The sources for `demand`, best first; empty when there is none. `paths` are those of the same
// reader. Deterministic: the order of snapshot.holders does not matter. O(holders log holders), and
// what is above those that would be taken.
std::vector<SchedulerChoice> Schedule(const SchedulerSnapshot& snapshot,
                                      const SchedulerDemand& demand, const SchedulerLimits& limits,
                                      FillPaths& paths);

}  // namespace th

#endif  // TH_SCHEDULER_SCHEDULER_H_
