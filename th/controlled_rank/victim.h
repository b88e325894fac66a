// Which group a demo kills or a benchmark disturbs, and when: one that is part-way and that others
// read from.
#ifndef TH_CONTROLLED_RANK_VICTIM_H_
#define TH_CONTROLLED_RANK_VICTIM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace th {

// The bytes that a reading rank had when it was last heard.
struct ObservedFill {
  std::string group;
  uint32_t rank = 0;
  uint64_t bytes = 0;
  uint64_t total = 0;                // 0: not heard of yet
  std::vector<std::string> sources;  // "rollout-1/1"
};

// Killed between these: the demo promises 20 to 80 %, and what is observed is some ms old.
inline constexpr double kKillFromFraction = 0.25;
inline constexpr double kKillToFraction = 0.75;

// How much a victim holds, of what it is to receive.
struct VictimRange {
  double from = kKillFromFraction;
  double to = kKillToFraction;
};

struct Victim {
  std::string group;
  double fraction = 0;  // of the group's bytes
};

// The first group (as they come) whose ranks together hold what `range` says, and from one of whose
// ranks a rank of another group reads.
std::optional<Victim> FindVictim(const std::vector<ObservedFill>& fills, VictimRange range = {});

// "trainer/0, rollout-1/1" -> its parts.
std::vector<std::string> SplitSources(const std::string& sources);

}  // namespace th

#endif  // TH_CONTROLLED_RANK_VICTIM_H_
