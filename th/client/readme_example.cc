// The example of the main README, compiled. readme_example_test keeps the two equal.
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "th/weights/version.h"

// The user's own.
void Generate();
void OptimizerStep();
bool Serving();
void OnNewWeights(const th::VersionInfo& version);
void ServeForAWhile();

// clang-format off
// [README
#include "th/client/client.h"

absl::Status Train(std::vector<th::Tensor> tensors, uint32_t rank) {
  TH_ASSIGN_OR_RETURN(
      auto hub,
      th::Client::Join({.server = "10.0.0.1:7077", .run = "r1", .model = "qwen3-8b",
                        .group = "trainer", .rank = rank, .ranks = 8}));
  TH_ASSIGN_OR_RETURN(th::WeightBuffer weights, hub->Register(std::move(tensors)));  // no copy
  for (int64_t step = 1;; ++step) {
    TH_RETURN_IF_ERROR(weights.Publish(step));  // returns at once; the buffers are frozen now
    Generate();                                 // rollouts read meanwhile
    TH_RETURN_IF_ERROR(weights.Unpublish());    // bounded drain; then the optimizer may write
    OptimizerStep();
  }
}

absl::Status Serve(std::vector<th::Tensor> tensors, uint32_t rank) {
  TH_ASSIGN_OR_RETURN(
      auto hub,
      th::Client::Join({.server = "10.0.0.1:7077", .run = "r1", .model = "qwen3-8b",
                        .group = "rollout-3", .rank = rank, .ranks = 8}));
  TH_ASSIGN_OR_RETURN(th::WeightBuffer weights, hub->Register(std::move(tensors)));
  while (Serving()) {
    TH_ASSIGN_OR_RETURN(th::UpdateResult result, weights.Update(th::Latest()));
    if (result.moved()) OnNewWeights(result.version());  // else: nothing newer, or not available yet
    ServeForAWhile();
  }
  return absl::OkStatus();
}
// README]
// clang-format on
