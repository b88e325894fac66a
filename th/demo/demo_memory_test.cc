#include "th/demo/demo_memory.h"

#include "gtest/gtest.h"

namespace th {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kNoise = 32 * kMiB;

TEST(ResidentNoiseTest, IsAQuarterOfAShardWithinItsBounds) {
  EXPECT_EQ(ResidentNoise(0), kLeastResidentNoise);
  EXPECT_EQ(ResidentNoise(64 * kMiB), 16 * kMiB);
  EXPECT_EQ(ResidentNoise(4096 * kMiB), kMostResidentNoise);
}

TEST(ResidentNoiseTest, HidesNoSecondCopyOfAShard) {
  for (const uint64_t shard : {8 * kMiB, 45 * kMiB, 4096 * kMiB}) {
    DemoMemory memory(ResidentNoise(shard));
    memory.SetBaseline("r/0", shard);
    memory.Measure("r/0", 2 * shard);
    EXPECT_EQ(memory.held_beyond_live(), shard);
  }
}

TEST(DemoMemoryTest, NothingIsHeldWithoutGrowth) {
  DemoMemory memory(kNoise);
  memory.SetBaseline("r/0", 100 * kMiB);
  memory.Measure("r/0", 100 * kMiB);
  memory.Measure("r/0", 50 * kMiB);
  EXPECT_EQ(memory.held_beyond_live(), 0u);
}

TEST(DemoMemoryTest, GrowthUpToTheNoiseDoesNotCountAndBeyondItAllDoes) {
  DemoMemory memory(kNoise);
  memory.SetBaseline("r/0", 100 * kMiB);
  memory.Measure("r/0", 100 * kMiB + kNoise);
  EXPECT_EQ(memory.held_beyond_live(), 0u);
  memory.Measure("r/0", 100 * kMiB + kNoise + 1);
  EXPECT_EQ(memory.held_beyond_live(), kNoise + 1);
}

TEST(DemoMemoryTest, KeepsTheMostOfEachProcessAndAddsThem) {
  DemoMemory memory(kNoise);
  memory.SetBaseline("a", 0);
  memory.SetBaseline("b", 0);
  memory.Measure("a", 45 * kMiB);
  memory.Measure("a", 1 * kMiB);
  memory.Measure("b", 40 * kMiB);
  EXPECT_EQ(memory.held_beyond_live(), 85 * kMiB);
}

TEST(DemoMemoryTest, WhatTheClientHeldBeyondRequestsAndFramesCountsToTheByte) {
  DemoMemory memory(kNoise);
  memory.AddPeakExtra("a", kTransportBytes);
  EXPECT_EQ(memory.held_beyond_live(), 0u);
  memory.AddPeakExtra("a", kTransportBytes + 7);
  memory.AddPeakExtra("a", kTransportBytes + 3);
  memory.AddPeakExtra("b", kTransportBytes + 1);
  EXPECT_EQ(memory.held_beyond_live(), 2 * kTransportBytes + 8);
}

TEST(DemoMemoryTest, AProcessThatComesAgainBeginsAnew) {
  DemoMemory memory(kNoise);
  memory.SetBaseline("a", 0);
  memory.SetBaseline("a", 100 * kMiB);
  memory.Measure("a", 110 * kMiB);
  EXPECT_EQ(memory.held_beyond_live(), 0u);
  memory.Measure("unknown", 500 * kMiB);
  EXPECT_EQ(memory.held_beyond_live(), 0u);
}

}  // namespace
}  // namespace th
