#include "th/memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "testing/open_descriptors.h"
#include "testing/status_matchers.h"
#include "th/memory/arena_alignment.h"
#include "th/memory/reader_lease.h"

namespace th {
namespace {

using ::th::testing::OpenDescriptors;
using ::th::testing::StatusIs;

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

// ---- ranges that readers attach

constexpr uint64_t kNoLimit = uint64_t{1} << 40;

// A reader in this process that uses a range where it lies.
struct Attachment {
  explicit Attachment(const SharedMemoryRange& range)
      : memory(MapAgain(range)), bytes(range.bytes) {
    absl::StatusOr<std::unique_ptr<ReaderLease>> taken = ReaderLease::Take(getpid(), range.lease);
    EXPECT_OK(taken.status());
    if (taken.ok()) lease = *std::move(taken);
  }
  ~Attachment() { munmap(const_cast<std::byte*>(memory), bytes); }

  const std::byte* const memory;
  const uint64_t bytes;
  std::unique_ptr<ReaderLease> lease;
};

std::byte* MapAttachable(uint64_t bytes) {
  const auto data = MapSharedMemory(bytes, ReadersMay::kAttach);
  EXPECT_OK(data.status());
  return data.ok() ? *data : nullptr;
}

TEST(AttachedMemoryTest, IsOfferedOnlyWhereReadersMayAttach) {
  ASSERT_OK_AND_ASSIGN(std::byte* const data, MapSharedMemory(kBytes));
  EXPECT_THAT(OfferToReaders(data, 1, kNoLimit).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  int on_stack = 0;
  EXPECT_THAT(OfferToReaders(&on_stack, 1, kNoLimit).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  UnmapSharedMemory(data);
}

TEST(AttachedMemoryTest, RenewedRangeHasTheSameAddressAndContentAndReadersTheOldPages) {
  std::byte* const data = MapAttachable(kBytes);
  std::memset(data, 1, kBytes);
  ASSERT_OK_AND_ASSIGN(OfferedToReaders offer, OfferToReaders(data, kBytes, kNoLimit));
  {
    const Attachment reader(offer.range);
    offer.pin.reset();
    EXPECT_EQ(RenewSharedMemory(data, absl::InfiniteDuration()), Renewal::kRenewed);
    EXPECT_EQ(data[0], std::byte{1});
    EXPECT_EQ(data[kBytes - 1], std::byte{1});
    const auto renewed = FindSharedMemory(data, kBytes);
    ASSERT_TRUE(renewed.has_value());
    EXPECT_NE(renewed->id, offer.range.id);
    EXPECT_FALSE(IsAttached(data));
    std::memset(data, 2, kBytes);
    EXPECT_EQ(MapAgain(*renewed)[kBytes - 1], std::byte{2});
    EXPECT_EQ(reader.memory[0], std::byte{1});
    EXPECT_EQ(reader.memory[kBytes - 1], std::byte{1});
    EXPECT_EQ(BytesLeftToReaders(), kBytes);
  }
  EXPECT_EQ(BytesLeftToReaders(), 0U);
  UnmapSharedMemory(data);
}

TEST(AttachedMemoryTest, WithoutPatienceTheRangeBecomesPrivate) {
  std::byte* const data = MapAttachable(kBytes);
  std::memset(data, 1, kBytes);
  ASSERT_OK_AND_ASSIGN(OfferedToReaders offer, OfferToReaders(data, kBytes, kNoLimit));
  const Attachment reader(offer.range);
  EXPECT_EQ(RenewSharedMemory(data, absl::ZeroDuration()), Renewal::kPrivate);
  EXPECT_FALSE(FindSharedMemory(data, 1).has_value());
  EXPECT_EQ(data[kBytes - 1], std::byte{1});
  std::memset(data, 2, kBytes);
  EXPECT_EQ(reader.memory[0], std::byte{1});
  EXPECT_EQ(reader.memory[kBytes - 1], std::byte{1});
  EXPECT_FALSE(UnmapSharedMemory(data));
  munmap(data, kBytes);
}

TEST(AttachedMemoryTest, NothingIsDoneForReadersThatAreGone) {
  std::byte* const data = MapAttachable(kBytes);
  ASSERT_OK_AND_ASSIGN(OfferedToReaders offer, OfferToReaders(data, kBytes, kNoLimit));
  { const Attachment reader(offer.range); }
  EXPECT_TRUE(IsAttached(data));  // the offer stands
  offer.pin.reset();
  EXPECT_FALSE(IsAttached(data));
  EXPECT_EQ(RenewSharedMemory(data, absl::InfiniteDuration()), Renewal::kNotAttached);
  EXPECT_EQ(FindSharedMemory(data, 1)->id, offer.range.id);
  UnmapSharedMemory(data);
}

TEST(AttachedMemoryTest, UnmappedRangeIsLeftToItsReaders) {
  std::byte* const data = MapAttachable(kBytes);
  std::memset(data, 1, kBytes);
  ASSERT_OK_AND_ASSIGN(OfferedToReaders offer, OfferToReaders(data, kBytes, kNoLimit));
  const Attachment reader(offer.range);
  offer.pin.reset();
  UnmapSharedMemory(data);
  EXPECT_EQ(reader.memory[0], std::byte{1});
  EXPECT_EQ(reader.memory[kBytes - 1], std::byte{1});
  EXPECT_EQ(BytesLeftToReaders(), kBytes);
}

TEST(AttachedMemoryTest, OffersNoMoreThanTheLimit) {
  std::byte* const one = MapAttachable(kBytes);
  std::byte* const two = MapAttachable(kBytes);
  EXPECT_THAT(OfferToReaders(one, 1, kBytes - 1).status(),
              StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_OK_AND_ASSIGN(OfferedToReaders first, OfferToReaders(one, 1, kBytes));
  // The same range costs nothing more, another one does.
  EXPECT_OK(OfferToReaders(one, 1, kBytes).status());
  EXPECT_THAT(OfferToReaders(two, 1, kBytes).status(),
              StatusIs(absl::StatusCode::kResourceExhausted));
  {
    const Attachment reader(first.range);
    first.pin.reset();
    EXPECT_EQ(RenewSharedMemory(one, absl::InfiniteDuration()), Renewal::kRenewed);
    // Memory that was left to readers counts.
    EXPECT_THAT(OfferToReaders(one, 1, kBytes).status(),
                StatusIs(absl::StatusCode::kResourceExhausted));
  }
  EXPECT_OK(OfferToReaders(one, 1, kBytes).status());
  UnmapSharedMemory(one);
  UnmapSharedMemory(two);
}

// Whichever of them is done first: once a call has returned its caller may write.
TEST(AttachedMemoryTest, NeitherOfTwoRenewalsAtOnceReturnsWhileReadersSeeWhatIsWritten) {
  constexpr int kTimes = 15;
  for (int i = 0; i < kTimes; ++i) {
    std::byte* const data = MapAttachable(kBytes);
    std::memset(data, 1, kBytes);
    ASSERT_OK_AND_ASSIGN(OfferedToReaders offer, OfferToReaders(data, kBytes, kNoLimit));
    const Attachment reader(offer.range);
    std::vector<std::thread> owners;
    for (std::byte* const half : {data, data + kBytes / 2}) {
      owners.emplace_back([data, half] {
        RenewSharedMemory(data, absl::ZeroDuration());
        std::memset(half, 2, kBytes / 2);
      });
    }
    for (std::thread& owner : owners) owner.join();
    EXPECT_EQ(std::count(reader.memory, reader.memory + kBytes, std::byte{1}), kBytes);
    EXPECT_EQ(std::count(data, data + kBytes, std::byte{2}), kBytes);
    munmap(data, kBytes);
  }
}

TEST(AttachedMemoryTest, WhileARangeIsRenewedItIsFoundAndOffered) {
  constexpr int kTimes = 15;
  std::byte* const data = MapAttachable(kBytes);
  std::memset(data, 1, kBytes);
  std::atomic<bool> renewed = false;
  uint64_t looks = 0, missed = 0;
  std::thread looking([&] {
    do {
      ++looks;
      if (!OfferToReaders(data, kBytes, kNoLimit).ok()) ++missed;
    } while (!renewed);
  });
  for (int i = 0; i < kTimes; ++i) {
    const auto offer = OfferToReaders(data, kBytes, kNoLimit);
    EXPECT_OK(offer.status());
    EXPECT_EQ(RenewSharedMemory(data, absl::InfiniteDuration()), Renewal::kRenewed);
    EXPECT_EQ(std::count(data, data + kBytes, std::byte{1}), kBytes);
  }
  renewed = true;
  looking.join();
  EXPECT_GT(looks, 0U);
  EXPECT_EQ(missed, 0U);
  UnmapSharedMemory(data);
}

// Files of ours that this process has mapped, each as often as it is.
size_t MappedArenas() {
  std::ifstream maps("/proc/self/maps");
  size_t arenas = 0;
  for (std::string line; std::getline(maps, line);) {
    arenas += line.find("/memfd:tensorhub-arena") != std::string::npos;
  }
  return arenas;
}

TEST(AttachedMemoryTest, ManyRenewalsLeakNothing) {
  constexpr int kTimes = 200;
  std::byte* const data = MapAttachable(kBytes);
  std::memset(data, 1, kBytes);
  const size_t descriptors = OpenDescriptors();
  const size_t mapped = MappedArenas();
  for (int i = 0; i < kTimes; ++i) {
    ASSERT_OK_AND_ASSIGN(OfferedToReaders offer, OfferToReaders(data, kBytes, kNoLimit));
    const Attachment reader(offer.range);
    ASSERT_EQ(RenewSharedMemory(data, absl::InfiniteDuration()), Renewal::kRenewed);
  }
  // A file that nobody has open or mapped any more is gone with its pages.
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_EQ(BytesLeftToReaders(), 0U);
  EXPECT_LT(MappedArenas(), mapped + kTimes / 2);
  UnmapSharedMemory(data);
}

}  // namespace
}  // namespace th
