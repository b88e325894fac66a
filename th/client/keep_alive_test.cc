#include "th/client/keep_alive.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include "gtest/gtest.h"

namespace th {
namespace {

TEST(KeepAliveTest, ChannelsThatFollowEachOtherPingAtIntervalsOfTheirOwn) {
  constexpr uint32_t kChannels = 1000;
  constexpr uint32_t kShortest = kKeepAliveMs - kKeepAliveMs / 4;
  for (const uint32_t first : {0u, 12'345u, 0xffffff00u}) {
    std::array<size_t, 10> parts{};
    for (uint32_t i = 0; i < kChannels; ++i) {
      const uint32_t interval = KeepAliveOf(first + i);
      ASSERT_GT(interval, kShortest - 1);
      ASSERT_LE(interval, kKeepAliveMs);
      ++parts[(kKeepAliveMs - interval) * parts.size() / (kKeepAliveMs / 4 + 1)];
    }
    for (const size_t channels : parts) {
      EXPECT_GE(channels, 90u);
      EXPECT_LE(channels, 110u);
    }
  }
}

}  // namespace
}  // namespace th
