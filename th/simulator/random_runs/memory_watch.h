// Watches what memory workers hold beyond their own buffers (invariant 9): every block is within
// the worker's limit, and the server lists it as temporary while it can know of it.
//
//   MemoryWatch watch(&cluster);
//   watch.Look();      // every now and then
//
// Not thread-safe.
#ifndef TH_SIMULATOR_RANDOM_RUNS_MEMORY_WATCH_H_
#define TH_SIMULATOR_RANDOM_RUNS_MEMORY_WATCH_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"

namespace th {

class Cluster;
class SimulatedWorker;

// How long a block may be there before it is listed, and after, where worker and server can hear
// each other.
inline constexpr absl::Duration kMaxUnlisted = absl::Seconds(2);
// How often the server is asked for its list at most. The whole list costs more than a look.
inline constexpr absl::Duration kBetweenListings = absl::Milliseconds(500);

class MemoryWatch {
 public:
  explicit MemoryWatch(Cluster* cluster) : cluster_(cluster) {}  // outlives it

  // Reports what is wrong to the cluster's checker, once a block.
  void Look();

 private:
  // A rank's name and the name of a buffer.
  using Listed = std::set<std::pair<std::string, std::string>>;
  using Block = std::pair<const SimulatedWorker*, BufferId>;
  Listed Temporaries() const;
  void JudgeLimits(const SimulatedWorker& worker);
  void JudgeListings(const SimulatedWorker& worker, const Listed& listed);
  void JudgeListing(const SimulatedWorker& worker, BufferId copy, const Listed& listed);
  void JudgeBytes(const SimulatedWorker& worker, const char* what, uint64_t bytes, uint64_t limit);

  Cluster* const cluster_;
  std::map<Block, absl::Time> unlisted_since_;
  absl::Time next_listing_ = absl::InfinitePast();
};

}  // namespace th

#endif  // TH_SIMULATOR_RANDOM_RUNS_MEMORY_WATCH_H_
