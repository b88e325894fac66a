#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "th/transfer/conformance_suite.h"
#include "th/transfer/ibverbs/ibverbs_transport.h"
#include "th/transfer/stream/socket.h"

namespace th::testing {
namespace {

class IbverbsWorld : public ConformanceWorld {
 public:
  std::unique_ptr<Transport> NewTransport(const TransportLimits& limits) override {
    // Transports take the two devices in turn, so that the ends of a transfer have one each.
    const std::string device = next_++ % 2 == 0 ? "rxe0" : "rxe1";
    auto transport = NewIbverbsTransport(
        {.devices = {device},
         .limits = limits,
         .deadlines = {.probe = kPatience, .read = kPatience}});  // an emulated machine is slow
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  }
  Endpoint DeadEndpoint() override {
    const stream::Socket gone = *stream::ListenOn(*stream::SocketAddress::Parse("127.0.0.1:0"));
    return {.address = stream::SocketAddress::OfSelf(gone.fd()).ToString() + "/roce",
            .transport = kIbverbsTransport,
            .site = ""};
  }

 private:
  int next_ = 0;
};

std::unique_ptr<ConformanceWorld> NewIbverbsWorld() { return std::make_unique<IbverbsWorld>(); }

INSTANTIATE_TEST_SUITE_P(Ibverbs, TransportConformanceTest, ::testing::Values(&NewIbverbsWorld));
INSTANTIATE_TEST_SUITE_P(Ibverbs, HeldReaderConformanceTest, ::testing::Values(&NewIbverbsWorld));

}  // namespace
}  // namespace th::testing
