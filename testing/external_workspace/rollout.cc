// A rollout of one rank: moves to the latest version and says what it got.
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/client/client.h"

absl::Status Serve(const std::string& server, const std::string& group) {
  std::vector<float> weight(1 << 20);
  th::Tensor tensor;
  tensor.name = "layer.weight";
  tensor.dtype = th::DType::kF32;
  tensor.shape = {1024, 1024};
  tensor.data = weight.data();

  TH_ASSIGN_OR_RETURN(
      auto hub,
      th::Client::Join({.server = server, .run = "example", .model = "tiny", .group = group}));
  TH_ASSIGN_OR_RETURN(th::WeightBuffer weights, hub->Register({tensor}));
  TH_ASSIGN_OR_RETURN(const th::UpdateResult result,
                      weights.Update(th::Latest(), {.timeout = absl::Seconds(30)}));
  if (!result.moved()) return absl::NotFoundError("no version is there");
  const bool whole =
      std::count(weight.begin(), weight.end(), weight[0]) == static_cast<long>(weight.size());
  if (!whole) return absl::DataLossError("the weights are a mixture");
  std::cout << "version " << result.version().label.text() << ": every weight is " << weight[0]
            << std::endl;
  return absl::OkStatus();
}

int main(int argc, char** argv) {
  const absl::Status status = argc == 3
                                  ? Serve(argv[1], argv[2])
                                  : absl::InvalidArgumentError("usage: rollout HOST:PORT GROUP");
  if (!status.ok()) std::cerr << "rollout: " << status << "\n";
  return status.ok() ? 0 : 1;
}
