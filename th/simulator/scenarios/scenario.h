// A scenario: a fleet, a network and a course of events, as a text file says it. README.md has the
// format.
//
//   TH_ASSIGN_OR_RETURN(Scenario scenario, ParseScenario("web.scenario", text, {}));
//   ScenarioResult result = RunScenario(scenario, ScenarioPolicy::kNearest);
//
// What ParseScenario returns can be run: every name in it is known, every group is a whole replica,
// and somebody publishes. Thread-safety: plain values and pure functions.
#ifndef TH_SIMULATOR_SCENARIOS_SCENARIO_H_
#define TH_SIMULATOR_SCENARIOS_SCENARIO_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/scheduler/scheduler.h"
#include "th/simulator/fabric.h"
#include "th/topology/location.h"

namespace th {

// The limits of one scenario.
inline constexpr size_t kMaxScenarioBytes = size_t{1} << 20;
inline constexpr size_t kMaxScenarioSites = 64;
inline constexpr uint32_t kMaxScenarioHosts = 20'000;
inline constexpr uint32_t kMaxScenarioRanks = 20'000;
inline constexpr uint32_t kMaxScenarioSegments = 16'384;  // of a shard
inline constexpr uint32_t kMaxScenarioCopies = 64;        // of a rank's shard in host memory
inline constexpr uint32_t kMaxScenarioEvents = 100'000;   // repeated events count each time
inline constexpr absl::Duration kMaxScenarioTime = absl::Hours(24);

// How versions get from the publisher to the readers. All but the first are models of how others do
// it, to compare with (README.md says what each leaves out).
enum class ScenarioPolicy : uint8_t {
  kNearest,            // TensorHub's scheduler
  kDirect,             // every reader pulls from the publisher
  kChain,              // a static ring of all readers, which go on as soon as they have it
  kRandom,             // any holder
  kBroadcast,          // a static ring; trainer and readers wait until the last has it
  kSnapshotBroadcast,  // the trainer waits for a copy of its weights only; the readers as above
};
inline constexpr ScenarioPolicy kAllScenarioPolicies[] = {
    ScenarioPolicy::kNearest, ScenarioPolicy::kDirect,    ScenarioPolicy::kChain,
    ScenarioPolicy::kRandom,  ScenarioPolicy::kBroadcast, ScenarioPolicy::kSnapshotBroadcast};

// "nearest", "direct", "chain", "random", "broadcast", "snapshot-broadcast".
absl::string_view ScenarioPolicyName(ScenarioPolicy policy);
// The inverse. INVALID_ARGUMENT naming them all.
absl::StatusOr<ScenarioPolicy> ParseScenarioPolicy(absl::string_view name);

enum class GroupRole : uint8_t { kTrainer, kRollout, kSpot };
absl::string_view GroupRoleName(GroupRole role);

// Groups that are alike: "rollout-1" to "rollout-8", or "trainer" where there is one.
struct ScenarioFamily {
  std::string name;
  GroupRole role = GroupRole::kRollout;
  uint32_t ranks = 1;                         // of each group; rank r holds shard r % shards
  std::vector<std::string> groups;            // their names
  std::vector<std::vector<Location>> places;  // by group and rank
  bool joins_later = false;                   // an event brings its groups, not the start
  uint32_t copies = 0;                        // of its shard that each rank's host memory holds
  // Under kNearest its updates receive a version beside the one in use, in host memory of each rank
  // for one shard, and then apply it. Others know no staging.
  bool stages = false;
};

// The trainer's loop: publish, compute while others read, unpublish, write, publish.
struct ScenarioTraining {
  std::string family;    // of one group
  absl::Duration first;  // the first publish
  absl::Duration step;   // from a publish to the next one, if nothing holds it up
  absl::Duration write;  // of it the time in which the weights are written
  uint32_t steps = 1;    // the last version stays published
  absl::Duration drain;  // how long an unpublish lets readers finish (policy nearest)
};

// When a family asks for the latest version; a group that joins or starts again also does at once.
struct ScenarioUpdates {
  std::string family;
  bool after_publish = false;  // once a version, `delay` after its publication
  absl::Duration delay;
  absl::Duration stagger;  // the family's n-th group asks n - 1 times this later
  absl::Duration every;    // if not after_publish
  // Under kNearest; others know no seeds. Who was told to ask later does so after `retry`, or with
  // its next `every`.
  WhenSeeding when_seeding = WhenSeeding::kWait;
  absl::Duration retry = absl::Seconds(1);
};

struct ScenarioEvent {
  enum class Kind : uint8_t {
    kJoin,
    kUpdate,
    kLeave,
    kPreempt,
    kKill,
    kCrash,
    kStop,
    kReplace,
    kCutHost,
    kSlowHost,
    kSlowSiteLink
  };
  Kind kind = Kind::kJoin;
  absl::Duration at;
  // The period of a repeated event, from `at` on; nullopt: it happens once.
  std::optional<absl::Duration> every;
  absl::Duration until;
  std::string target;            // a family, a group, a host or a site
  std::optional<uint32_t> rank;  // of the group; nullopt: all
  std::string other_site;        // kSlowSiteLink: from `target` to it
  uint32_t groups = 0;           // kJoin
  absl::Duration lasting;        // kStop, kCutHost; kSlow...: 0 is for good. kReplace: the pause.
                                 // kPreempt: the notice
  double factor = 1;             // kSlow...
  LinkSide side = LinkSide::kBoth;
};

struct Scenario {
  std::string name;  // of the file
  uint64_t seed = 1;
  std::map<std::string, std::string> variables;  // as they were used
  FabricSpec fabric;
  SchedulerLimits scheduler;
  absl::Duration jitter;
  std::string server_site;  // of the reference server; the trainer's, unless the file says

  uint32_t shards = 1;              // distinct ones: those of a replica
  uint64_t shard_bytes = 0;         // of each rank: the file's, less than a byte a segment fewer
  uint64_t segment_bytes = 0;       // the file's or less, so that all of a shard are alike
  uint32_t segments = 0;            // of a shard
  double checksum_rate = 0;         // of a publisher's rank, bytes a second
  std::optional<double> copy_rate;  // of a trainer's rank, for kSnapshotBroadcast

  std::vector<ScenarioFamily> families;
  ScenarioTraining training;
  std::vector<ScenarioUpdates> updates;
  std::vector<ScenarioEvent> events;
  absl::Duration end;
};

// Variables that are set from outside, before the file's own `let`.
using ScenarioOverrides = std::map<std::string, std::string>;

// INVALID_ARGUMENT "file:line: reason", or "file: reason" for what is missing in the whole file.
// An override of a variable that the file does not let is refused too.
absl::StatusOr<Scenario> ParseScenario(const std::string& file, absl::string_view text,
                                       const ScenarioOverrides& overrides);

}  // namespace th

#endif  // TH_SIMULATOR_SCENARIOS_SCENARIO_H_
