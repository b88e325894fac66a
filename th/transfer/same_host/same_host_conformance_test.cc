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

// Shards lie in memory that the reader can map, but for small storages.
class MappedWorld : public SameHostWorld {
 public:
  MappedWorld() { TestMemory::Share(true); }
  ~MappedWorld() override { TestMemory::Share(false); }
};

std::unique_ptr<ConformanceWorld> NewMappedWorld() { return std::make_unique<MappedWorld>(); }
std::unique_ptr<ConformanceWorld> NewSameHostWorld() { return std::make_unique<SameHostWorld>(); }

INSTANTIATE_TEST_SUITE_P(SameHost, TransportConformanceTest, ::testing::Values(&NewSameHostWorld));
INSTANTIATE_TEST_SUITE_P(SameHost, HeldReaderConformanceTest, ::testing::Values(&NewSameHostWorld));
INSTANTIATE_TEST_SUITE_P(Mapped, TransportConformanceTest, ::testing::Values(&NewMappedWorld));
INSTANTIATE_TEST_SUITE_P(Mapped, HeldReaderConformanceTest, ::testing::Values(&NewMappedWorld));

}  // namespace
}  // namespace th::testing
