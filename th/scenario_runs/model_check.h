// `th bench model`: whether the simulator says what real runs show. Real fan-outs on virtual hosts
// with one, two and four readers fix the simulator's figures of links (link_model.h); then eight
// and sixteen readers, a relay that is stopped or killed half-way, and two sites with a slow, long
// link are run for real and predicted.
//
//   TH_ASSIGN_OR_RETURN(const ModelCheck check, CheckModel({.cluster = ..., .rate = 31'250'000}));
//   check.Within()    // the largest relative difference of what was predicted
#ifndef TH_SCENARIO_RUNS_MODEL_CHECK_H_
#define TH_SCENARIO_RUNS_MODEL_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/controlled_rank/local_cluster.h"
#include "th/scenario_runs/link_model.h"
#include "th/simulator/scenarios/scenarios.h"

namespace th {

struct ModelCheckOptions {
  LocalClusterOptions cluster;  // programs and folder, which exists
  uint64_t rate = 31'250'000;   // of each host's link, each way, in bytes a second
  uint64_t bytes = uint64_t{64} << 20;
  uint32_t rounds = 3;                                   // of each point, after one that warms up
  std::vector<uint32_t> predicted_hosts = {8, 16};       // without trouble
  uint64_t site_rate = 12'500'000;                       // of the link between two sites
  absl::Duration site_latency = absl::Milliseconds(15);  // each way
};

// One thing that was run for real and simulated.
struct ModelPoint {
  std::string name;
  bool fitted = false;   // the simulator's figures come from it
  std::string scenario;  // its file's text
  uint32_t runs = 1;     // of the file, each with fresh processes; one has several rounds
  std::vector<std::string> without;  // groups that do not count: who was stopped or killed
  std::vector<double> real_seconds;  // medians of each run's rounds
  double simulated_seconds = 0;

  double RealSeconds() const;  // median
  double Difference() const;   // simulated over real, less 1
};

struct ModelCheck {
  uint64_t rate = 0, bytes = 0;
  uint32_t rounds = 0;
  double flow_seconds = 0;
  LinkModel model;
  std::vector<ModelPoint> points;

  double Within() const;        // of the predicted points
  double WithinFitted() const;  // of the others
};

// The points that will be run. Pure. The fitted points come first.
std::vector<ModelPoint> ModelPoints(const ModelCheckOptions& options);

// Fixes the model from the fitted points and simulates all. The real seconds are there. Pure.
absl::Status Predict(const ModelCheckOptions& options, ModelCheck* check);

// Errors of RunScenarioForReal. Takes minutes.
absl::StatusOr<ModelCheck> CheckModel(const ModelCheckOptions& options);

// The keys that README.md lists.
nlohmann::json ToJson(const ModelCheck& check);
std::string TextOf(const ModelCheck& check);

}  // namespace th

#endif  // TH_SCENARIO_RUNS_MODEL_CHECK_H_
