#include "th/transfer/same_host/shard_mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/memory/arena_alignment.h"
#include "th/memory/shared_memory.h"

namespace th::same_host {
namespace {

using ::th::testing::StatusIs;
using ServedRun = stream::ServedMemory::Run;

constexpr uint64_t kBytes = 2 * kArenaAlignment;
constexpr uint64_t kNoLimit = uint64_t{1} << 40;

class ShardMappingTest : public ::testing::Test {
 protected:
  ~ShardMappingTest() override {
    for (std::byte* const arena : arenas_) UnmapSharedMemory(arena);
  }
  std::byte* Arena(int fill) {
    const auto data = MapSharedMemory(kBytes, ReadersMay::kAttach);
    EXPECT_OK(data.status());
    if (!data.ok()) return nullptr;
    std::memset(*data, fill, kBytes);
    arenas_.push_back(*data);
    return *data;
  }

 private:
  std::vector<std::byte*> arenas_;
};

TEST_F(ShardMappingTest, RunsAreSeenWhereTheyLie) {
  std::byte* const one = Arena(1);
  std::byte* const two = Arena(2);
  one[100] = std::byte{9};
  const std::vector<ServedRun> runs = {{.stream_offset = 0, .memory = {one + 100, 1000}},
                                       {.stream_offset = 1000, .memory = {two, 50}},
                                       {.stream_offset = 1050, .memory = {one + 5000, 7}}};
  ASSERT_OK_AND_ASSIGN(const PinnedOffer pinned, OfferShard(runs, kNoLimit));
  EXPECT_EQ(pinned.offer.ranges.size(), 2U);
  ASSERT_OK_AND_ASSIGN(const ShardOffer offer, ShardOffer::Decode(pinned.offer.Encode()));
  ASSERT_OK_AND_ASSIGN(const auto shard, MapShard(getpid(), offer));
  ASSERT_NE(shard->At(0, 1000), nullptr);
  EXPECT_NE(shard->At(0, 1000), one + 100);  // another mapping of the same page
  EXPECT_EQ(*shard->At(0, 1000), std::byte{9});
  EXPECT_EQ(*shard->At(999, 1), std::byte{1});
  EXPECT_EQ(*shard->At(1000, 50), std::byte{2});
  EXPECT_EQ(*shard->At(1056, 1), std::byte{1});
  EXPECT_EQ(shard->At(999, 2), nullptr) << "no run holds both";
  EXPECT_EQ(shard->At(1057, 1), nullptr) << "behind the end";
}

TEST_F(ShardMappingTest, RangesAreAttachedForAsLongAsTheShardLives) {
  std::byte* const arena = Arena(1);
  const std::vector<ServedRun> runs = {{.stream_offset = 0, .memory = {arena, kBytes}}};
  std::shared_ptr<const MappedShard> shard;
  {
    ASSERT_OK_AND_ASSIGN(const PinnedOffer pinned, OfferShard(runs, kNoLimit));
    ASSERT_OK_AND_ASSIGN(shard, MapShard(getpid(), pinned.offer));
  }
  EXPECT_TRUE(IsAttached(arena));
  EXPECT_EQ(RenewSharedMemory(arena, absl::InfiniteDuration()), Renewal::kRenewed);
  std::memset(arena, 2, kBytes);
  EXPECT_EQ(*shard->At(kBytes - 1, 1), std::byte{1});
  EXPECT_EQ(BytesLeftToReaders(), kBytes);
  shard.reset();
  EXPECT_EQ(BytesLeftToReaders(), 0U);
}

TEST_F(ShardMappingTest, MappingIsReadOnly) {
  std::byte* const arena = Arena(1);
  const std::vector<ServedRun> runs = {{.stream_offset = 0, .memory = {arena, kBytes}}};
  ASSERT_OK_AND_ASSIGN(const PinnedOffer pinned, OfferShard(runs, kNoLimit));
  ASSERT_OK_AND_ASSIGN(const auto shard, MapShard(getpid(), pinned.offer));
  EXPECT_DEATH(*const_cast<std::byte*>(shard->At(0, 1)) = std::byte{7}, "");
}

TEST_F(ShardMappingTest, MemoryOfOthersIsNotOffered) {
  std::vector<char> heap(100);
  const std::vector<ServedRun> runs = {{.stream_offset = 0, .memory = {heap.data(), heap.size()}}};
  EXPECT_THAT(OfferShard(runs, kNoLimit).status(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(ShardMappingTest, TooManyRunsAreRefused) {
  std::byte* const arena = Arena(1);
  std::vector<ServedRun> runs;
  for (size_t i = 0; i <= kMaxMappedRuns; ++i) {
    runs.push_back({.stream_offset = i, .memory = {arena + 2 * i, 1}});
  }
  EXPECT_THAT(OfferShard(runs, kNoLimit).status(), StatusIs(absl::StatusCode::kResourceExhausted));
  runs.pop_back();
  EXPECT_OK(OfferShard(runs, kNoLimit).status());
}

TEST_F(ShardMappingTest, ARangeThatIsGoneIsNotMapped) {
  std::byte* const arena = Arena(1);
  const std::vector<ServedRun> runs = {{.stream_offset = 0, .memory = {arena, kBytes}}};
  ASSERT_OK_AND_ASSIGN(const PinnedOffer pinned, OfferShard(runs, kNoLimit));
  ShardOffer gone = pinned.offer;
  ++gone.ranges[0].memory.inode;
  EXPECT_THAT(MapShard(getpid(), gone).status(), StatusIs(absl::StatusCode::kUnavailable));
  gone = pinned.offer;
  ++gone.lease_inode;
  EXPECT_THAT(MapShard(getpid(), gone).status(), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ShardMappingTest, WordsThatMakeNoSenseAreRefused) {
  const std::byte* const arena = Arena(1);
  const std::vector<ServedRun> runs = {
      {.stream_offset = 0, .memory = {const_cast<std::byte*>(arena), kBytes}}};
  ASSERT_OK_AND_ASSIGN(const PinnedOffer pinned, OfferShard(runs, kNoLimit));
  const auto refused = [](const ShardOffer& offer) {
    return absl::IsInvalidArgument(ShardOffer::Decode(offer.Encode()).status());
  };
  ShardOffer bad = pinned.offer;
  bad.runs[0].offset = 1;
  EXPECT_TRUE(refused(bad)) << "a run beyond its range";
  bad = pinned.offer;
  bad.runs[0].range = 1;
  EXPECT_TRUE(refused(bad)) << "a range that is not named";
  bad = pinned.offer;
  bad.runs.push_back({.stream_offset = 5, .bytes = 1});
  EXPECT_TRUE(refused(bad)) << "runs that overlap";
  const std::string words = pinned.offer.Encode();
  EXPECT_TRUE(absl::IsInvalidArgument(
      ShardOffer::Decode(absl::string_view(words).substr(0, words.size() - 1)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ShardOffer::Decode("").status()));
}

}  // namespace
}  // namespace th::same_host
