// The conformance suite with both shards in GPU memory, both ends in one process: as it is, which
// is what two engines of one process have, and imported as from another process, which the fake
// driver allows tests. On the GPU that TH_TEST_CUDA_DRIVER names nothing is imported.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "th/memory/cuda/cuda_test_fixture.h"
#include "th/transfer/conformance_suite.h"
#include "th/transfer/cuda_ipc/cuda_ipc_transport.h"
#include "th/transfer/cuda_ipc/device_address.h"
#include "th/transfer/cuda_ipc/mapped_test_device.h"
#include "th/transfer/cuda_test_device.h"
#include "th/transfer/same_host/host_address.h"

namespace th::testing {
namespace {

class CudaIpcWorld : public ConformanceWorld {
 public:
  CudaIpcWorld(bool import_own, std::unique_ptr<TestDevice> device, bool mixed = false)
      : import_own_(import_own && IsFakeDriver()), device_(std::move(device)) {
    if (IsFakeDriver()) FakeCuda().AllowOwnImports(import_own);
    TestShard::default_device = device_.get();
    TestShard::default_every_other_on_host = mixed;
  }
  ~CudaIpcWorld() override {
    TestShard::default_device = nullptr;
    TestShard::default_every_other_on_host = false;
  }
  std::unique_ptr<Transport> NewTransport(const TransportLimits& limits) override {
    auto transport = NewCudaIpcTransport({.driver = CudaTestDevice::DriverPath(),
                                          .limits = limits,
                                          .imports = {.import_own = import_own_}});
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  }
  Endpoint DeadEndpoint() override {
    // A name that is drawn anew for each call: nobody has it.
    const cuda_ipc::DeviceAddress address{.host = *same_host::HostAddress::OfThisProcess(),
                                          .devices = {"0000:01:00.0"}};
    return {.address = address.ToString(), .transport = kCudaIpcTransport, .site = ""};
  }

 private:
  const bool import_own_;
  const std::unique_ptr<TestDevice> device_;
};

std::unique_ptr<ConformanceWorld> NewOwnWorld() {
  return std::make_unique<CudaIpcWorld>(false, std::make_unique<CudaTestDevice>());
}
std::unique_ptr<ConformanceWorld> NewImportedWorld() {
  return std::make_unique<CudaIpcWorld>(true, std::make_unique<CudaTestDevice>());
}
std::unique_ptr<ConformanceWorld> NewMappedWorld() {
  return std::make_unique<CudaIpcWorld>(true, std::make_unique<MappedTestDevice>());
}
std::unique_ptr<ConformanceWorld> NewMixedWorld() {
  return std::make_unique<CudaIpcWorld>(true, std::make_unique<CudaTestDevice>(), /*mixed=*/true);
}
// Reads what lies in the host as same_host does.
std::unique_ptr<ConformanceWorld> NewHostWorld() {
  return std::make_unique<CudaIpcWorld>(false, nullptr);
}

// Without imports it would be the first world again.
std::vector<std::unique_ptr<ConformanceWorld> (*)()> ImportedWorlds() {
  if (!IsFakeDriver()) return {};
  return {&NewImportedWorld};
}

INSTANTIATE_TEST_SUITE_P(Own, TransportConformanceTest, ::testing::Values(&NewOwnWorld));
INSTANTIATE_TEST_SUITE_P(Own, HeldReaderConformanceTest, ::testing::Values(&NewOwnWorld));
INSTANTIATE_TEST_SUITE_P(Imported, TransportConformanceTest, ::testing::ValuesIn(ImportedWorlds()));
INSTANTIATE_TEST_SUITE_P(Imported, HeldReaderConformanceTest,
                         ::testing::ValuesIn(ImportedWorlds()));
INSTANTIATE_TEST_SUITE_P(Mapped, TransportConformanceTest, ::testing::Values(&NewMappedWorld));
INSTANTIATE_TEST_SUITE_P(Mapped, HeldReaderConformanceTest, ::testing::Values(&NewMappedWorld));
INSTANTIATE_TEST_SUITE_P(Mixed, TransportConformanceTest, ::testing::Values(&NewMixedWorld));
INSTANTIATE_TEST_SUITE_P(Mixed, HeldReaderConformanceTest, ::testing::Values(&NewMixedWorld));
INSTANTIATE_TEST_SUITE_P(Host, TransportConformanceTest, ::testing::Values(&NewHostWorld));
INSTANTIATE_TEST_SUITE_P(Host, HeldReaderConformanceTest, ::testing::Values(&NewHostWorld));

}  // namespace
}  // namespace th::testing
