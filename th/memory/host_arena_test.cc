#include "th/memory/host_arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/memory/shared_memory.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(HostArenaTest, BlockIsWritableAlignedAndOfTheSizeAsked) {
  HostArena arena({.limit_bytes = 64 * kMiB});
  ASSERT_OK_AND_ASSIGN(HostBlock block, arena.Allocate(5 * kMiB + 3));
  std::memset(block.data(), 0x5a, block.bytes());
  EXPECT_EQ(block.bytes(), 5 * kMiB + 3);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data()) % kArenaAlignment, 0u);
  EXPECT_EQ(block.data()[block.bytes() - 1], std::byte{0x5a});
  EXPECT_EQ(arena.bytes_in_use(), 6 * kMiB);
}

// A page that the kernel has still to find costs a fault in the middle of a transfer.
TEST(HostArenaTest, EveryPageOfABlockIsBackedBeforeItsFirstUse) {
  for (const uint32_t threads : {1u, 3u}) {
    HostArena arena({.limit_bytes = 64 * kMiB, .prefault_threads = threads});
    ASSERT_OK_AND_ASSIGN(HostBlock block, arena.Allocate(8 * kMiB));
    std::vector<unsigned char> pages(block.bytes() / static_cast<uint64_t>(getpagesize()));
    ASSERT_EQ(mincore(block.data(), block.bytes(), pages.data()), 0);
    const auto resident = std::count_if(pages.begin(), pages.end(),
                                        [](unsigned char page) { return (page & 1) != 0; });
    EXPECT_EQ(static_cast<size_t>(resident), pages.size()) << threads << " threads";
  }
}

TEST(HostArenaTest, BlockThatWentBackIsUsedAgain) {
  HostArena arena({.limit_bytes = 64 * kMiB});
  ASSERT_OK_AND_ASSIGN(HostBlock first, arena.Allocate(8 * kMiB));
  const std::byte* const address = first.data();
  first = HostBlock();
  EXPECT_EQ(arena.bytes_in_use(), 0u);
  EXPECT_EQ(arena.bytes_mapped(), 8 * kMiB);
  ASSERT_OK_AND_ASSIGN(HostBlock second, arena.Allocate(7 * kMiB));
  EXPECT_EQ(second.data(), address);
  EXPECT_EQ(arena.bytes_mapped(), 8 * kMiB);
}

TEST(HostArenaTest, MuchLargerBlockIsKeptForOthers) {
  HostArena arena({.limit_bytes = 64 * kMiB});
  { ASSERT_OK_AND_ASSIGN(HostBlock large, arena.Allocate(32 * kMiB)); }
  ASSERT_OK_AND_ASSIGN(HostBlock small, arena.Allocate(2 * kMiB));
  EXPECT_EQ(arena.bytes_mapped(), 34 * kMiB);
}

TEST(HostArenaTest, LimitCountsWhatIsInUseAndNamesIt) {
  HostArena arena({.limit_bytes = 10 * kMiB});
  ASSERT_OK_AND_ASSIGN(HostBlock block, arena.Allocate(8 * kMiB));
  EXPECT_THAT(arena.Allocate(4 * kMiB),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("limit is 10485760 bytes")));
  EXPECT_THAT(arena.Allocate(11 * kMiB), StatusIs(absl::StatusCode::kResourceExhausted,
                                                  HasSubstr("exceeds the arena's limit")));
  EXPECT_EQ(arena.bytes_mapped(), 8 * kMiB);
}

TEST(HostArenaTest, KeptBlocksMakeRoomForALargerOne) {
  HostArena arena({.limit_bytes = 16 * kMiB});
  { ASSERT_OK_AND_ASSIGN(HostBlock small, arena.Allocate(4 * kMiB)); }
  ASSERT_OK_AND_ASSIGN(HostBlock large, arena.Allocate(16 * kMiB));
  EXPECT_EQ(arena.bytes_mapped(), 16 * kMiB);
}

TEST(HostArenaTest, NothingIsNoBlock) {
  HostArena arena({.limit_bytes = kMiB});
  EXPECT_THAT(arena.Allocate(0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 bytes")));
}

TEST(HostArenaTest, TrimReturnsWhatIsKept) {
  HostArena arena({.limit_bytes = 16 * kMiB});
  { ASSERT_OK_AND_ASSIGN(HostBlock block, arena.Allocate(4 * kMiB)); }
  arena.Trim();
  EXPECT_EQ(arena.bytes_mapped(), 0u);
}

// Its pages are those of the readers' file, and nobody could attach it.
TEST(HostArenaTest, BlockThatWasMadePrivateIsNotUsedAgain) {
  HostArena arena({.limit_bytes = 16 * kMiB, .readers_may = ReadersMay::kAttach});
  ASSERT_OK_AND_ASSIGN(HostBlock block, arena.Allocate(4 * kMiB));
  {
    ASSERT_OK_AND_ASSIGN(const OfferedToReaders offer,
                         OfferToReaders(block.data(), block.bytes(), 16 * kMiB));
    ASSERT_EQ(RenewSharedMemory(block.data(), absl::ZeroDuration()), Renewal::kPrivate);
  }
  block = HostBlock();
  EXPECT_EQ(arena.bytes_in_use(), 0u);
  EXPECT_EQ(arena.bytes_mapped(), 0u);
  ASSERT_OK_AND_ASSIGN(const HostBlock next, arena.Allocate(4 * kMiB));
  EXPECT_OK(OfferToReaders(next.data(), next.bytes(), 16 * kMiB).status());
}

TEST(HostArenaTest, ThreadsShareOneLimit) {
  HostArena arena({.limit_bytes = 8 * kMiB, .prefault_threads = 1});
  std::vector<std::thread> threads;
  std::vector<int> got(4, 0);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 50; ++round) got[i] += arena.Allocate(4 * kMiB).ok() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(got[0] + got[1] + got[2] + got[3], 50);
  EXPECT_LE(arena.bytes_mapped(), 8 * kMiB);
  EXPECT_EQ(arena.bytes_in_use(), 0u);
}

}  // namespace
}  // namespace th
