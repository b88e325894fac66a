#include "th/memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "testing/open_descriptors.h"
#include "testing/status_matchers.h"
#include "th/memory/arena_alignment.h"

namespace th {
namespace {

using ::th::testing::OpenDescriptors;

constexpr uint64_t kBytes = 2 * kArenaAlignment;

// As another process would: through the file.
const std::byte* MapAgain(const SharedMemoryRange& range) {
  const int fd =
      open(absl::StrCat("/proc/self/fd/", range.file_descriptor).c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_GE(fd, 0);
  void* const mapped = mmap(nullptr, range.bytes, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  EXPECT_NE(mapped, MAP_FAILED);
  return static_cast<const std::byte*>(mapped);
}

TEST(SharedMemoryTest, WhatIsWrittenIsSeenByWhoeverMapsTheFile) {
  ASSERT_OK_AND_ASSIGN(std::byte* const data, MapSharedMemory(kBytes));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kArenaAlignment, 0);
  const auto range = FindSharedMemory(data, kBytes);
  ASSERT_TRUE(range.has_value());
  const std::byte* const seen = MapAgain(*range);
  data[kBytes - 1] = std::byte{7};
  EXPECT_EQ(seen[kBytes - 1], std::byte{7});
  munmap(const_cast<std::byte*>(seen), kBytes);
  EXPECT_TRUE(UnmapSharedMemory(data));
}

// A reader that still has it mapped neither keeps its memory nor is ended by a signal.
TEST(SharedMemoryTest, PagesOfAnUnmappedRangeReadAsZerosElsewhere) {
  ASSERT_OK_AND_ASSIGN(std::byte* const data, MapSharedMemory(kBytes));
  std::memset(data, 7, kBytes);
  const std::byte* const seen = MapAgain(*FindSharedMemory(data, kBytes));
  EXPECT_EQ(seen[5000], std::byte{7});
  EXPECT_TRUE(UnmapSharedMemory(data));
  EXPECT_EQ(seen[5000], std::byte{0});
  munmap(const_cast<std::byte*>(seen), kBytes);
}

TEST(SharedMemoryTest, TheSizeOfTheFileCannotBeChanged) {
  ASSERT_OK_AND_ASSIGN(std::byte* const data, MapSharedMemory(kBytes));
  const int fd = FindSharedMemory(data, 1)->file_descriptor;
  EXPECT_NE(ftruncate(fd, 4096), 0);
  EXPECT_NE(ftruncate(fd, 2 * kBytes), 0);
  EXPECT_TRUE(UnmapSharedMemory(data));
}

TEST(SharedMemoryTest, OnlyWhatLiesWhollyWithinARangeIsFound) {
  ASSERT_OK_AND_ASSIGN(std::byte* const data, MapSharedMemory(kBytes));
  EXPECT_TRUE(FindSharedMemory(data + 10, kBytes - 10).has_value());
  EXPECT_FALSE(FindSharedMemory(data + 10, kBytes - 9).has_value());
  EXPECT_FALSE(FindSharedMemory(data - 1, 1).has_value());
  EXPECT_FALSE(FindSharedMemory(data + kBytes, 1).has_value());
  EXPECT_FALSE(FindSharedMemory(data, UINT64_MAX).has_value());
  int other = 0;
  EXPECT_FALSE(FindSharedMemory(&other, sizeof(other)).has_value());
  EXPECT_TRUE(UnmapSharedMemory(data));
  EXPECT_FALSE(FindSharedMemory(data, 1).has_value());
}

TEST(SharedMemoryTest, RangesAreListedAndHaveNumbersOfTheirOwn) {
  ASSERT_OK_AND_ASSIGN(std::byte* const one, MapSharedMemory(kBytes));
  ASSERT_OK_AND_ASSIGN(std::byte* const two, MapSharedMemory(kBytes));
  const std::vector<SharedMemoryRange> all = AllSharedMemory();
  ASSERT_EQ(all.size(), 2);
  EXPECT_LT(all[0].address, all[1].address);
  EXPECT_NE(all[0].id, all[1].id);
  EXPECT_TRUE(UnmapSharedMemory(one));
  EXPECT_TRUE(UnmapSharedMemory(two));
  EXPECT_TRUE(AllSharedMemory().empty());
}

TEST(SharedMemoryTest, WhatIsNoRangeIsNotUnmapped) {
  ASSERT_OK_AND_ASSIGN(std::byte* const data, MapSharedMemory(kBytes));
  EXPECT_FALSE(UnmapSharedMemory(data + 1));
  EXPECT_FALSE(UnmapSharedMemory(nullptr));
  EXPECT_TRUE(UnmapSharedMemory(data));
  EXPECT_FALSE(UnmapSharedMemory(data));
}

size_t LinesOf(const char* file) {
  std::ifstream in(file);
  return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(in), {}, '\n'));
}

TEST(SharedMemoryTest, ManyRangesLeaveNoDescriptorAndNoMapping) {
  const size_t descriptors = OpenDescriptors(), mappings = LinesOf("/proc/self/maps");
  for (int i = 0; i < 500; ++i) {
    ASSERT_OK_AND_ASSIGN(std::byte* const data, MapSharedMemory(kArenaAlignment));
    data[0] = std::byte{1};
    ASSERT_TRUE(UnmapSharedMemory(data));
  }
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_LE(LinesOf("/proc/self/maps"), mappings + 10);  // the heap may have grown
}

TEST(SharedMemoryTest, AForkedChildThatUnmapsLeavesItsParentThePages) {
  ASSERT_OK_AND_ASSIGN(std::byte* const data, MapSharedMemory(kBytes));
  data[5000] = std::byte{7};
  const pid_t child = fork();
  if (child == 0) _exit(UnmapSharedMemory(data) ? 0 : 1);
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(data[5000], std::byte{7});
  EXPECT_TRUE(UnmapSharedMemory(data));
}

}  // namespace
}  // namespace th
