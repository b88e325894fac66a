// The conformance suite with shards in GPU memory (of the fake driver) that the adapters reach by
// either way.
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "th/transfer/conformance_suite.h"
#include "th/transfer/cuda_ipc/mapped_test_device.h"
#include "th/transfer/cuda_test_device.h"
#include "th/transfer/ibverbs/ibverbs_transport.h"
#include "th/transfer/ibverbs/reaching_verbs.h"
#include "th/transfer/stream/socket.h"

namespace th::testing {
namespace {

using ibverbs::GpuReach;

// Tensors lie side by side in one allocation, as engines have them.
class ArenaTestDevice : public CudaTestDevice {
 public:
  static constexpr size_t kArenaBytes = size_t{32} << 20;

  ArenaTestDevice() : arena_(static_cast<char*>(CudaTestDevice::Allocate(kArenaBytes))) {}
  void* Allocate(size_t bytes) override {
    EXPECT_LE(used_ + bytes, kArenaBytes) << "the arena is full";
    void* const memory = arena_ + used_;
    used_ += (bytes + 3) / 4 * 4;
    return memory;  // zeroed with the arena
  }
  void Free(void*) override {}  // with the device

 private:
  char* const arena_;
  size_t used_ = 0;
};

class GpuWorld : public ConformanceWorld {
 public:
  GpuWorld(GpuReach reach, std::unique_ptr<CudaTestDevice> device)
      : reach_(reach), device_(std::move(device)) {
    TestShard::default_device = device_.get();
  }
  ~GpuWorld() override { TestShard::default_device = nullptr; }
  std::unique_ptr<Transport> NewTransport(const TransportLimits& limits) override {
    auto transport = NewIbverbsTransport(
        {// Transports take the two devices in turn, so that the ends of a transfer have one each.
         .devices = {next_++ % 2 == 0 ? "rxe0" : "rxe1"},
         .limits = limits,
         // An emulated machine is slow.
         .deadlines = {.probe = kPatience, .read = kPatience},
         .gpus = [cuda = device_->cuda()] { return cuda; },
         .verbs = ibverbs::ReachingVerbs(reach_)});
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  }
  Endpoint DeadEndpoint() override {
    const stream::Socket gone = *stream::ListenOn(*stream::SocketAddress::Parse("127.0.0.1:0"));
    return {.address = stream::SocketAddress::OfSelf(gone.fd()).ToString() + "/roce",
            .transport = kIbverbsTransport,
            .site = ""};
  }
  // A thousand take a minute here, and the suite in host memory makes them.
  size_t many_transfers() const override { return 50; }

 private:
  const GpuReach reach_;
  const std::unique_ptr<CudaTestDevice> device_;
  int next_ = 0;
};

std::unique_ptr<ConformanceWorld> NewDmaBufWorld() {
  return std::make_unique<GpuWorld>(GpuReach::kDmaBuf, std::make_unique<ArenaTestDevice>());
}
// Tensors that lie over two mappings.
std::unique_ptr<ConformanceWorld> NewPeermemWorld() {
  return std::make_unique<GpuWorld>(GpuReach::kPeermem, std::make_unique<MappedTestDevice>());
}

INSTANTIATE_TEST_SUITE_P(DmaBuf, TransportConformanceTest, ::testing::Values(&NewDmaBufWorld));
INSTANTIATE_TEST_SUITE_P(DmaBuf, HeldReaderConformanceTest, ::testing::Values(&NewDmaBufWorld));
INSTANTIATE_TEST_SUITE_P(Peermem, TransportConformanceTest, ::testing::Values(&NewPeermemWorld));
INSTANTIATE_TEST_SUITE_P(Peermem, HeldReaderConformanceTest, ::testing::Values(&NewPeermemWorld));

}  // namespace
}  // namespace th::testing
