#include <memory>

#include "absl/status/statusor.h"
#include "th/transfer/conformance_suite.h"
#include "th/transfer/same_host/host_address.h"
#include "th/transfer/same_host/same_host_transport.h"

namespace th::testing {
namespace {

class SameHostWorld : public ConformanceWorld {
 public:
  std::unique_ptr<Transport> NewTransport(const TransportLimits& limits) override {
    auto transport = NewSameHostTransport({.limits = limits});
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  }
  Endpoint DeadEndpoint() override {
    // A name that is drawn anew for each call: nobody has it.
    return {.address = same_host::HostAddress::OfThisProcess()->ToString(),
            .transport = kSameHostTransport,
            .site = ""};
  }
};

std::unique_ptr<ConformanceWorld> NewSameHostWorld() { return std::make_unique<SameHostWorld>(); }

INSTANTIATE_TEST_SUITE_P(SameHost, TransportConformanceTest, ::testing::Values(&NewSameHostWorld));
INSTANTIATE_TEST_SUITE_P(SameHost, HeldReaderConformanceTest, ::testing::Values(&NewSameHostWorld));

}  // namespace
}  // namespace th::testing
