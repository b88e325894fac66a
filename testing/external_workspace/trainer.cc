// A trainer of one rank: publishes two versions of its weights, one after the other.
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "th/client/client.h"

#ifndef EXAMPLE_OWN_ABSL
#error "TensorHub replaced the Abseil of this workspace"
#endif

absl::Status Train(const std::string& server) {
  std::vector<float> weight(1 << 20);
  th::Tensor tensor;
  tensor.name = "layer.weight";
  tensor.dtype = th::DType::kF32;
  tensor.shape = {1024, 1024};
  tensor.data = weight.data();

  TH_ASSIGN_OR_RETURN(
      auto hub,
      th::Client::Join({.server = server, .run = "example", .model = "tiny", .group = "trainer"}));
  TH_ASSIGN_OR_RETURN(th::WeightBuffer weights, hub->Register({tensor}));
  for (int64_t step = 1; step <= 2; ++step) {
    weight.assign(weight.size(), static_cast<float>(step));  // what an optimizer does
    TH_RETURN_IF_ERROR(weights.Publish(step));
    TH_RETURN_IF_ERROR(weights.AwaitPublished().status());
    std::cout << "published " << step << std::endl;
    std::string line;
    std::getline(std::cin, line);  // rollouts read until somebody says that they are done
    TH_RETURN_IF_ERROR(weights.Unpublish());
  }
  return absl::OkStatus();
}

int main(int argc, char** argv) {
  const absl::Status status =
      argc == 2 ? Train(argv[1]) : absl::InvalidArgumentError("usage: trainer HOST:PORT");
  if (!status.ok()) std::cerr << "trainer: " << status << "\n";
  return status.ok() ? 0 : 1;
}
