#include "th/controlled_rank/device_weights.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/status_matchers.h"
#include "th/memory/cuda/cuda_memory_devices.h"
#include "th/memory/cuda/driver.h"

namespace th {
namespace {

using ::testing::Each;
using testing::StatusIs;

// Tensors of three kinds: of some bytes, of none, and an alias.
class DeviceWeightsTest : public ::testing::Test {
 protected:
  DeviceWeightsTest() : first_(1000, 'a'), second_(77, 'b') {
    EXPECT_OK(CudaDriver::Load(testing::FakeCuda::Path()));
    SetProcessCudaLibrary(testing::FakeCuda::Path());
    AddTensor("first", &first_);
    AddTensor("second", &second_);
    AddTensor("empty", nullptr);
    AddTensor("alias", &first_);
    tensors_.back().alias_of = "first";
  }

  void AddTensor(const std::string& name, std::vector<char>* memory) {
    Tensor tensor;
    tensor.name = name;
    tensor.dtype = DType::kU8;
    tensor.bytes = memory == nullptr ? 0 : memory->size();
    tensor.shape = {static_cast<int64_t>(tensor.bytes)};
    tensor.data = memory == nullptr ? nullptr : memory->data();
    tensors_.push_back(std::move(tensor));
  }

  std::vector<char> first_, second_;
  std::vector<Tensor> tensors_;
};

TEST_F(DeviceWeightsTest, WhatWasUploadedComesBack) {
  ASSERT_OK_AND_ASSIGN(const auto weights, DeviceWeights::Allocate(tensors_, 0));
  ASSERT_EQ(weights->tensors().size(), 4U);
  EXPECT_NE(weights->tensors()[0].data, first_.data());
  EXPECT_EQ(weights->tensors()[3].data, weights->tensors()[0].data);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(weights->tensors()[1].data) -
                reinterpret_cast<uintptr_t>(weights->tensors()[0].data),
            1024U);
  EXPECT_OK(weights->Upload());
  first_.assign(first_.size(), 0);
  second_.assign(second_.size(), 0);
  EXPECT_OK(weights->Download());
  EXPECT_THAT(first_, Each('a'));
  EXPECT_THAT(second_, Each('b'));
}

TEST_F(DeviceWeightsTest, ACopyOfTheDriversGoesOverAllOfThem) {
  for (const int from : {0, 1}) {
    ASSERT_OK_AND_ASSIGN(const auto weights, DeviceWeights::Allocate(tensors_, 0));
    first_.assign(first_.size(), 'a');
    second_.assign(second_.size(), 'b');
    EXPECT_OK(weights->Upload());
    ASSERT_OK_AND_ASSIGN(const DeviceWeights::CopyTime time, weights->CopyFromGpu(from));
    EXPECT_LE(time.begin, time.end);
    EXPECT_OK(weights->Download());
    // The fake's memory is zeroed when it is allocated.
    EXPECT_THAT(first_, Each(0)) << from;
    EXPECT_THAT(second_, Each(0)) << from;
  }
}

TEST_F(DeviceWeightsTest, AGpuThatIsNotThereAndOneWithoutRoomAreRefused) {
  EXPECT_THAT(DeviceWeights::Allocate(tensors_, 7), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_OK_AND_ASSIGN(const auto weights, DeviceWeights::Allocate(tensors_, 0));
  EXPECT_THAT(weights->CopyFromGpu(7), StatusIs(absl::StatusCode::kNotFound));
  const testing::FakeCuda fake;
  fake.Fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(weights->CopyFromGpu(0), StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace th
