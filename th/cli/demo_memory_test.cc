#include "th/cli/demo_memory.h"

#include "gtest/gtest.h"

namespace th {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(DemoMemoryTest, NothingIsHeldWithoutGrowth) {
  DemoMemory memory;
  memory.SetBaseline("r/0", 100 * kMiB);
  memory.Measure("r/0", 100 * kMiB);
  memory.Measure("r/0", 50 * kMiB);
  EXPECT_EQ(memory.held_beyond_live(), 0u);
}

TEST(DemoMemoryTest, GrowthUpToTheNoiseDoesNotCountAndBeyondItAllDoes) {
  DemoMemory memory;
  memory.SetBaseline("r/0", 100 * kMiB);
  memory.Measure("r/0", 100 * kMiB + kResidentNoise);
  EXPECT_EQ(memory.held_beyond_live(), 0u);
  memory.Measure("r/0", 100 * kMiB + kResidentNoise + 1);
  EXPECT_EQ(memory.held_beyond_live(), kResidentNoise + 1);
}

TEST(DemoMemoryTest, KeepsTheMostOfEachProcessAndAddsThem) {
  DemoMemory memory;
  memory.SetBaseline("a", 0);
  memory.SetBaseline("b", 0);
  memory.Measure("a", 45 * kMiB);
  memory.Measure("a", 1 * kMiB);
  memory.Measure("b", 40 * kMiB);
  EXPECT_EQ(memory.held_beyond_live(), 85 * kMiB);
}

TEST(DemoMemoryTest, WhatTheClientHeldWhileReceivingCountsToTheByte) {
  DemoMemory memory;
  memory.AddPeakExtra("a", 7);
  memory.AddPeakExtra("a", 3);
  memory.AddPeakExtra("b", 1);
  EXPECT_EQ(memory.held_beyond_live(), 8u);
}

TEST(DemoMemoryTest, AProcessThatComesAgainBeginsAnew) {
  DemoMemory memory;
  memory.SetBaseline("a", 0);
  memory.SetBaseline("a", 100 * kMiB);
  memory.Measure("a", 110 * kMiB);
  EXPECT_EQ(memory.held_beyond_live(), 0u);
  memory.Measure("unknown", 500 * kMiB);
  EXPECT_EQ(memory.held_beyond_live(), 0u);
}

}  // namespace
}  // namespace th
