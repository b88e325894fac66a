// Fills between memory of the host and of two GPUs (of the fake driver): what the tests share of
// the transports that move GPU memory. With the fake driver a dereferenced device pointer crashes
// the test.
#ifndef TH_TRANSFER_DEVICE_FILL_TEST_BED_H_
#define TH_TRANSFER_DEVICE_FILL_TEST_BED_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "th/transfer/cuda_test_device.h"
#include "th/transfer/fill_test_bed.h"
#include "th/transfer/test_peers.h"
#include "th/transfer/transport.h"
#include "th/weights/checksum.h"

namespace th::testing {

// Where the bytes of a shard lie; kMixed: every other storage on the first GPU.
enum class Memory : uint8_t { kHost, kDevice, kOtherDevice, kMixed };

class DeviceFillTestBed : public ::testing::Test {
 protected:
  static constexpr uint64_t kSegment = 65'536;

  // A shard of tensors of many sizes, from none to several segments.
  TestShard::Spec SpecIn(Memory memory,
                         ChecksumAlgorithm checksum = ChecksumAlgorithm::kXxh3Leaves);
  // Tells `transport` of the shard's memory, until attached_ is cleared.
  void Attach(Transport& transport, const TestShard& shard);
  void Attach(TestNode& node) { Attach(*node.transport, node.shard); }
  // Fills two nodes from `source`, which is published, while the GPUs stand still: `impatient`,
  // with an own_copy_timeout of some 100 ms, gives its GPU up and ends, `patient` does not. Neither
  // blames the source.
  void ExpectThatOnlyImpatienceGivesTheGpuUp(TestNode& source, TestNode& patient,
                                             TestNode& impatient);

  const FakeCuda fake_;
  CudaTestDevice device_;
  CudaTestDevice other_device_{1};
  std::vector<std::unique_ptr<AttachedMemory>> attached_;
};

}  // namespace th::testing

#endif  // TH_TRANSFER_DEVICE_FILL_TEST_BED_H_
