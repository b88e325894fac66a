// A trainer of one rank: publishes two versions of its weights, one after the other.
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "th/client/client.h"

namespace {

absl::Status Train(const std::string& server) {
  std::vector<float> values(1024 * 1024);  // could as well be GPU memory
  th::Tensor tensor;
  tensor.name = "layer.weight";
  tensor.dtype = th::DType::kF32;
  tensor.shape = {1024, 1024};
  tensor.data = values.data();

  TH_ASSIGN_OR_RETURN(
      auto hub,
      th::Client::Join({.server = server, .run = "example", .model = "tiny", .group = "trainer"}));
  TH_ASSIGN_OR_RETURN(th::WeightBuffer weights, hub->Register({tensor}));  // copies nothing
  for (int64_t step = 1; step <= 2; ++step) {
    values.assign(values.size(), static_cast<float>(step));  // an optimizer writes here
    TH_RETURN_IF_ERROR(weights.Publish(step));  // `values` must not be written from here on
    TH_RETURN_IF_ERROR(weights.AwaitPublished().status());
    std::cout << "published " << step << "; Enter ends it" << std::endl;
    std::string line;
    std::getline(std::cin, line);             // rollouts read meanwhile
    TH_RETURN_IF_ERROR(weights.Unpublish());  // `values` may be written again
  }
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  const absl::Status status =
      argc == 2 ? Train(argv[1]) : absl::InvalidArgumentError("usage: trainer HOST:PORT");
  if (!status.ok()) std::cerr << "trainer: " << status << "\n";
  return status.ok() ? 0 : 1;
}
