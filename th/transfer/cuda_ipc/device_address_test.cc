#include "th/transfer/cuda_ipc/device_address.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th::cuda_ipc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

TEST(DeviceAddressTest, IsReadAsItIsWritten) {
  const std::string text =
      "5f3a91c02d77e04b/4026531840/tensorhub-4711-8c0d11f7a2b3e495/0000:3b:00.0+0000:86:00.0";
  ASSERT_OK_AND_ASSIGN(const DeviceAddress address, DeviceAddress::Parse(text));
  EXPECT_EQ(address.host.socket, "tensorhub-4711-8c0d11f7a2b3e495");
  EXPECT_THAT(address.devices, ElementsAre("0000:3b:00.0", "0000:86:00.0"));
  EXPECT_EQ(address.ToString(), text);
}

TEST(DeviceAddressTest, WhatIsNoneSaysWhatIsExpected) {
  std::string many = "a/b/c/0";
  for (size_t i = 0; i < kMaxNamedDevices; ++i) many += "+0";
  for (const std::string& text :
       {std::string(), std::string("10.0.0.7:4711"), std::string("a/b/c"), std::string("a/b/c/"),
        std::string("a/b/c/0000:3b:00.0+"), std::string("a/b/c/gpu"), std::string("/b/c/0"),
        "a/b/c/" + std::string(32, '0'), many}) {
    EXPECT_THAT(DeviceAddress::Parse(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("such as")))
        << text;
  }
}

}  // namespace
}  // namespace th::cuda_ipc
