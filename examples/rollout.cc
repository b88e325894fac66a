// A rollout of one rank: moves to two versions, as they come, and says what it holds.
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "th/client/client.h"

namespace {

absl::Status Serve(const std::string& server, const std::string& group) {
  std::vector<float> values(1024 * 1024);
  th::Tensor tensor;
  tensor.name = "layer.weight";
  tensor.dtype = th::DType::kF32;
  tensor.shape = {1024, 1024};
  tensor.data = values.data();

  TH_ASSIGN_OR_RETURN(
      auto hub,
      th::Client::Join({.server = server, .run = "example", .model = "tiny", .group = group}));
  TH_ASSIGN_OR_RETURN(th::WeightBuffer weights, hub->Register({tensor}));
  for (int moves = 0; moves < 2;) {
    TH_ASSIGN_OR_RETURN(const th::UpdateResult result, weights.Update(th::Latest()));
    if (result.moved()) {
      ++moves;
      std::cout << "version " << result.version().label.text();
      for (const th::SourceShare& source : result.sources) std::cout << " from " << source.name;
      std::cout << ": every weight is " << values.front() << std::endl;
    }
    absl::SleepFor(absl::Milliseconds(100));  // an engine answers requests here
  }
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  const absl::Status status = argc == 3
                                  ? Serve(argv[1], argv[2])
                                  : absl::InvalidArgumentError("usage: rollout HOST:PORT GROUP");
  if (!status.ok()) std::cerr << "rollout: " << status << "\n";
  return status.ok() ? 0 : 1;
}
