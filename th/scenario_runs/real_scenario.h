// Which scenarios can be run for real on virtual hosts of this machine, and where everybody then
// stands: a virtual host for each host of the file, one for the reference server, and a link
// between two sites. Pure: values in, values out; thread-safe.
//
//   TH_ASSIGN_OR_RETURN(const RealPlan plan, PlanRealScenario(scenario));
//   VirtualHosts::Create({.rates = plan.rates, .second_site = plan.second_site, ...});
//   plan.host_of.at("r-3")     // the place of its virtual host
#ifndef TH_SCENARIO_RUNS_REAL_SCENARIO_H_
#define TH_SCENARIO_RUNS_REAL_SCENARIO_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "th/processes/virtual_hosts.h"
#include "th/simulator/scenarios/scenarios.h"

namespace th {

// Each rank is a process that holds its shard.
inline constexpr uint32_t kMaxRealRanks = 64;
inline constexpr uint64_t kMaxRealBytes = uint64_t{8} << 30;  // of all ranks together
inline constexpr absl::Duration kMaxRealTime = absl::Minutes(10);

struct RealPlan {
  std::vector<uint64_t> rates;            // of each virtual host's link, in bytes a second
  std::optional<SecondSite> second_site;  // its hosts come last
  size_t server_host = 0;
  std::map<std::string, size_t> host_of;  // by the scenario's name
  std::map<std::string, uint64_t> rate_of;
};

// INVALID_ARGUMENT naming what of the scenario exists in the simulator alone: more than two sites,
// several adapters of a host, rack uplinks, an uplink that is not as fast as the downlink, rates
// that cannot be shaped, limits of the scheduler, events that are not done to processes (a crash of
// the machine, a notice of preemption), more ranks, bytes or time than above, or a replica that is
// too small for a made-up model.
absl::StatusOr<RealPlan> PlanRealScenario(const Scenario& scenario);

}  // namespace th

#endif  // TH_SCENARIO_RUNS_REAL_SCENARIO_H_
