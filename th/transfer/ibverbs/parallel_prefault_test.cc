#include "th/transfer/ibverbs/parallel_prefault.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace th::ibverbs {
namespace {

constexpr uint64_t kBytes = uint64_t{4} << 20;
// Two threads and more for so little.
constexpr PrefaultLimits kEager{.max_threads = 4, .min_bytes_per_thread = 64 << 10};

// Anonymous memory that nobody has touched.
class Untouched {
 public:
  Untouched()
      : data_(static_cast<char*>(
            mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    EXPECT_NE(data_, MAP_FAILED);
    madvise(data_, kBytes, MADV_NOHUGEPAGE);  // each page by itself
  }
  ~Untouched() { munmap(data_, kBytes); }
  char* data() const { return data_; }
  uintptr_t begin() const { return reinterpret_cast<uintptr_t>(data_); }
  size_t resident_pages() const {
    const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> resident(kBytes / page_bytes);
    EXPECT_EQ(mincore(data_, kBytes, resident.data()), 0);
    return static_cast<size_t>(
        std::count_if(resident.begin(), resident.end(), [](unsigned char c) { return c & 1; }));
  }
  static size_t pages() { return kBytes / static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

 private:
  char* const data_;
};

bool KernelPopulates() {
  const Untouched probe;
  return madvise(probe.data(), 4096, 23) == 0;
}

class ParallelPrefaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!KernelPopulates()) GTEST_SKIP() << "this kernel has no MADV_POPULATE_WRITE";
    if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one processor";
  }
};

TEST(PrefaultThreadsTest, AreBoundedByTheMemoryTheLimitAndTheMachine) {
  const PrefaultLimits limits{.max_threads = 8, .min_bytes_per_thread = 100};
  const uint32_t processors = std::max(std::thread::hardware_concurrency(), 1U);
  EXPECT_EQ(PrefaultThreads(0, limits), 1U);
  EXPECT_EQ(PrefaultThreads(199, limits), 1U);
  EXPECT_EQ(PrefaultThreads(200, limits), std::min(2U, processors));
  EXPECT_EQ(PrefaultThreads(uint64_t{1} << 40, limits), std::min(8U, processors));
  EXPECT_EQ(PrefaultThreads(uint64_t{1} << 40, {.max_threads = 0, .min_bytes_per_thread = 0}), 1U);
}

TEST_F(ParallelPrefaultTest, EveryPageIsThereAfterwards) {
  const Untouched memory;
  EXPECT_EQ(memory.resident_pages(), 0U);
  PrefaultInParallel(memory.begin() + 1, kBytes - 2, kEager);
  EXPECT_EQ(memory.resident_pages(), Untouched::pages());
}

TEST_F(ParallelPrefaultTest, WhatTheMemoryHoldsStays) {
  const Untouched memory;
  std::memset(memory.data() + 5000, 0x5a, 9000);
  PrefaultInParallel(memory.begin(), kBytes, kEager);
  EXPECT_EQ(std::count(memory.data(), memory.data() + kBytes, 0x5a), 9000);
  EXPECT_EQ(std::count(memory.data() + 5000, memory.data() + 14'000, 0x5a), 9000);
}

TEST_F(ParallelPrefaultTest, MemoryThatCannotBeWrittenOrIsNotThereIsLeftToTheRegistration) {
  const Untouched memory;
  ASSERT_EQ(mprotect(memory.data(), kBytes, PROT_READ), 0);
  PrefaultInParallel(memory.begin(), kBytes, kEager);
  EXPECT_EQ(memory.resident_pages(), Untouched::pages());
  ASSERT_EQ(mprotect(memory.data(), kBytes / 2, PROT_NONE), 0);
  PrefaultInParallel(memory.begin(), kBytes, kEager);
}

TEST_F(ParallelPrefaultTest, LittleMemoryIsLeftToTheRegistration) {
  const Untouched memory;
  PrefaultInParallel(memory.begin(), kBytes, {});
  EXPECT_EQ(memory.resident_pages(), 0U);
}

}  // namespace
}  // namespace th::ibverbs
