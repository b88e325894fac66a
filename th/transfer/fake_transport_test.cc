#include "th/transfer/fake_transport.h"

#include "th/transfer/conformance_suite.h"

namespace th::testing {
namespace {

class FakeWorld : public ConformanceWorld {
 public:
  std::unique_ptr<Transport> NewTransport(const TransportLimits& limits) override {
    return network_.NewTransport(limits);
  }
  Endpoint DeadEndpoint() override { return {.address = "nowhere", .transport = "fake"}; }

 private:
  FakeNetwork network_;
};

std::unique_ptr<ConformanceWorld> NewFakeWorld() { return std::make_unique<FakeWorld>(); }

INSTANTIATE_TEST_SUITE_P(Fake, TransportConformanceTest, ::testing::Values(&NewFakeWorld));

}  // namespace
}  // namespace th::testing
