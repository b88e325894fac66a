// The result of a scenario's run, as plain values. Times are since the run's start.
#ifndef TH_SIMULATOR_SCENARIOS_SCENARIO_RESULT_H_
#define TH_SIMULATOR_SCENARIOS_SCENARIO_RESULT_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "th/simulator/scenarios/scenario.h"
#include "th/simulator/scenarios/stall_clock.h"
#include "th/topology/location.h"

namespace th {

inline constexpr size_t kDistances = static_cast<size_t>(Distance::kOtherSite) + 1;

// A rank received from one source, within one update: from when it waited for the bytes to the last
// of them.
struct FillSpan {
  std::string source;  // "rollout-1/0"
  absl::Duration began, ended;
};

// All lives of one rank together.
struct RankResult {
  std::string name;   // "rollout-1/0"
  std::string group;  // "rollout-1"
  GroupRole role = GroupRole::kRollout;
  std::string host;
  StallTimes stall;
  std::map<std::string, uint64_t> bytes_from;  // by the source's name
  uint64_t bytes_sent = 0;
  std::vector<FillSpan> spans;
};

// An update of one group that brought it to a version.
struct ReadResult {
  std::string group;
  std::string label;
  absl::Duration began, ended;
  // The part of the time between that was spent in a call that stops the group: all of it, or where
  // the version was staged the apply alone.
  absl::Duration stall;
};

struct VersionResult {
  std::string label;
  absl::Duration published;
  uint32_t groups = 0;  // that moved to it
  // The slowest of the groups that moved to it; 0: none has. One that joins later asks later.
  absl::Duration slowest_update;
  absl::Duration last_reader;  // the end of the last one, after the publication
};

struct LinkResult {
  std::string name;
  uint64_t bytes = 0;
  double rate = 0;  // at the end, bytes a second
};

struct ScenarioResult {
  std::string scenario;
  ScenarioPolicy policy = ScenarioPolicy::kNearest;
  uint64_t seed = 0;
  absl::Duration ended;
  std::vector<RankResult> ranks;
  std::vector<VersionResult> versions;
  std::vector<ReadResult> reads;                     // in the order of their ends
  std::vector<LinkResult> links;                     // over which something went, the busiest first
  std::array<uint64_t, kDistances> bytes_over = {};  // received, by distance
  uint64_t replica_bytes = 0;
  uint32_t updates_failed = 0, updates_not_available = 0;  // of groups
  uint32_t calls_open = 0;  // groups whose call had no end when the run had
  uint64_t events = 0;      // messages and segments delivered
  std::vector<std::string> violations;

  // Sums over ranks: seconds of GPUs, where a rank is one.
  StallTimes TrainerStall() const { return StallOf(true); }
  StallTimes RolloutStall() const { return StallOf(false); }  // spot ones too
  // The bytes that the trainer sent for each version, in replicas.
  double CopiesSent() const;
  // The slowest of all reads, of its call; 0 without one.
  absl::Duration SlowestRead() const;
  // The end of the latest read.
  absl::Duration LastRead() const;

 private:
  StallTimes StallOf(bool trainer) const;
};

}  // namespace th

#endif  // TH_SIMULATOR_SCENARIOS_SCENARIO_RESULT_H_
