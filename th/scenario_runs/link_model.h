// The simulator's knowledge of real links and processes: three figures, fixed from small real
// runs, and nothing else. Pure: values in, values out; thread-safe.
//
//   const FanoutTimes measured{.rate = 31.25e6, .bytes = 64e6, .flow_seconds = 2.24,
//                              .seconds = {{1, 2.244}, {2, 2.266}, {4, 2.294}}};
//   const LinkModel model = FitLinkModel(measured, simulate);
//   RunScenario(OnRealLinks(scenario, model), ScenarioPolicy::kNearest, {});
#ifndef TH_SCENARIO_RUNS_LINK_MODEL_H_
#define TH_SCENARIO_RUNS_LINK_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "th/simulator/scenarios/scenarios.h"

namespace th {

// TCP carries 1,448 bytes of a full Ethernet frame of 1,514.
inline constexpr double kTcpPayloadOfLink = 1448.0 / 1514.0;

struct LinkModel {
  double goodput = kTcpPayloadOfLink;                // of a link's rate
  absl::Duration message = absl::Microseconds(100);  // the way of a message and its handling
  // The bytes that a relay has received before it passes them on, beside what the file says of
  // segments: how much later the next one in a chain has it is this over the goodput. 0: the file's
  // segments.
  uint64_t hop_bytes = 0;
};

// The scenario with every link's rate, every message's latency and the segments as the model says.
Scenario OnRealLinks(Scenario scenario, const LinkModel& model);

// From the first start of a version's readers to the end of the last one, median of the versions
// after the first (which warms up, if there are others). Groups named in `without` do not count. 0
// where nobody moved.
double LastReaderSeconds(const ScenarioResult& result, const std::vector<std::string>& without);

// A measurement: a version to N readers over links that are alike.
struct FanoutTimes {
  double rate = 0;  // of each link, in bytes a second
  double bytes = 0;
  double flow_seconds = 0;             // of one plain TCP flow of the bytes
  std::map<uint32_t, double> seconds;  // until the last of N readers has them; 1 and more
};
// Seconds of the same with so many readers under a model.
using SimulateFanout = std::function<double(uint32_t readers, const LinkModel& model)>;

// Goodput: from the flow. Message: what one reader takes longer than the flow. Hop: what each
// further reader of the largest N adds. None below what is physically there (no message arrives
// before it is sent).
LinkModel FitLinkModel(const FanoutTimes& measured, uint64_t segment_bytes,
                       const SimulateFanout& simulate);

}  // namespace th

#endif  // TH_SCENARIO_RUNS_LINK_MODEL_H_
