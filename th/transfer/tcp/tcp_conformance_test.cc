#include "absl/status/statusor.h"
#include "th/transfer/conformance_suite.h"
#include "th/transfer/cuda_test_device.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/tcp/tcp_transport.h"

namespace th::testing {
namespace {

class TcpWorld : public ConformanceWorld {
 public:
  std::unique_ptr<Transport> NewTransport(const TransportLimits& limits) override {
    auto transport = NewTcpTransport({.limits = limits});
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  }
  Endpoint DeadEndpoint() override {
    // A port that was ours a moment ago: nobody listens, and the system does not give it out at
    // once.
    auto address = stream::SocketAddress::Parse("127.0.0.1:0");
    auto socket = stream::ListenOn(*address);
    return {.address = stream::SocketAddress::OfSelf(socket->fd()).ToString()};
  }
};

// Shards lie in the memory of a GPU, but for every other storage if `mixed`.
template <bool mixed>
class DeviceWorld : public TcpWorld {
 public:
  DeviceWorld() {
    TestShard::default_device = &device_;
    TestShard::default_every_other_on_host = mixed;
  }
  ~DeviceWorld() override {
    TestShard::default_device = nullptr;
    TestShard::default_every_other_on_host = false;
  }

 private:
  CudaTestDevice device_;
};

std::unique_ptr<ConformanceWorld> NewDeviceWorld() {
  return std::make_unique<DeviceWorld<false>>();
}
std::unique_ptr<ConformanceWorld> NewMixedWorld() { return std::make_unique<DeviceWorld<true>>(); }
std::unique_ptr<ConformanceWorld> NewTcpWorld() { return std::make_unique<TcpWorld>(); }

INSTANTIATE_TEST_SUITE_P(Tcp, TransportConformanceTest, ::testing::Values(&NewTcpWorld));
INSTANTIATE_TEST_SUITE_P(Tcp, HeldReaderConformanceTest, ::testing::Values(&NewTcpWorld));
INSTANTIATE_TEST_SUITE_P(Device, TransportConformanceTest, ::testing::Values(&NewDeviceWorld));
INSTANTIATE_TEST_SUITE_P(Device, HeldReaderConformanceTest, ::testing::Values(&NewDeviceWorld));
INSTANTIATE_TEST_SUITE_P(Mixed, TransportConformanceTest, ::testing::Values(&NewMixedWorld));

}  // namespace
}  // namespace th::testing
