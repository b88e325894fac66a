#include "th/transfer/ibverbs/read_plan.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th::ibverbs {
namespace {

using ::testing::ElementsAre;

constexpr ReadLimits kLimits = {.max_pieces = 4, .max_bytes = 1000};

std::vector<KeyedRange> From(const ReadPlan& plan) {
  std::vector<KeyedRange> from;
  for (const PlannedRead& read : plan.reads) from.push_back(read.from);
  return from;
}

TEST(PlanReadsTest, OneRangeIsScatteredOverSeveralPieces) {
  const ReadPlan plan = PlanReads({{100, 60, 7}}, {{5000, 10, 1}, {6000, 50, 2}}, kLimits);
  EXPECT_THAT(From(plan), ElementsAre(KeyedRange{100, 60, 7}));
  EXPECT_THAT(plan.pieces, ElementsAre(KeyedRange{5000, 10, 1}, KeyedRange{6000, 50, 2}));
}

TEST(PlanReadsTest, RangesThatFollowEachOtherAreOneRead) {
  const ReadPlan plan = PlanReads({{100, 60, 7}, {160, 40, 7}}, {{5000, 100, 1}}, kLimits);
  EXPECT_THAT(From(plan), ElementsAre(KeyedRange{100, 100, 7}));
  EXPECT_THAT(plan.pieces, ElementsAre(KeyedRange{5000, 100, 1}));
}

TEST(PlanReadsTest, AnotherKeyOrAGapIsAnotherRead) {
  const ReadPlan plan =
      PlanReads({{100, 60, 7}, {160, 40, 8}, {201, 9, 8}}, {{5000, 109, 1}}, kLimits);
  EXPECT_THAT(From(plan),
              ElementsAre(KeyedRange{100, 60, 7}, KeyedRange{160, 40, 8}, KeyedRange{201, 9, 8}));
}

TEST(PlanReadsTest, AShortGapIsReadAlongAndThrownAway) {
  constexpr ReadLimits kWithGaps = {.max_pieces = 5, .max_bytes = 1000, .max_gap_bytes = 16};
  const KeyedRange discard = {9000, 16, 5};
  const ReadPlan plan = PlanReads({{100, 60, 7}, {176, 40, 7}, {226, 9, 7}},
                                  {{5000, 60, 1}, {6000, 49, 1}}, kWithGaps, discard);
  EXPECT_THAT(From(plan), ElementsAre(KeyedRange{100, 135, 7}));
  EXPECT_THAT(plan.pieces,
              ElementsAre(KeyedRange{5000, 60, 1}, KeyedRange{9000, 16, 5}, KeyedRange{6000, 40, 1},
                          KeyedRange{9000, 10, 5}, KeyedRange{6040, 9, 1}));
}

TEST(PlanReadsTest, AGapThatIsLongOrDoesNotFitIsAnotherRead) {
  const KeyedRange discard = {9000, 16, 5};
  const std::vector<KeyedRange> from = {{100, 60, 7}, {176, 40, 7}};
  const std::vector<KeyedRange> into = {{5000, 100, 1}};
  const auto reads = [&](const ReadLimits& limits) {
    return PlanReads(from, into, limits, discard).reads.size();
  };
  EXPECT_EQ(reads({.max_pieces = 3, .max_bytes = 77, .max_gap_bytes = 16}), 2U);
  EXPECT_EQ(From(PlanReads(from, into, {.max_pieces = 3, .max_bytes = 77, .max_gap_bytes = 16},
                           discard))[0],
            (KeyedRange{100, 77, 7}))
      << "as much as the READ takes";
  EXPECT_EQ(reads({.max_pieces = 3, .max_bytes = 1000, .max_gap_bytes = 16}), 1U);
  EXPECT_EQ(reads({.max_pieces = 3, .max_bytes = 1000, .max_gap_bytes = 15}), 2U);
  EXPECT_EQ(reads({.max_pieces = 2, .max_bytes = 1000, .max_gap_bytes = 16}), 2U);
  EXPECT_EQ(reads({.max_pieces = 3, .max_bytes = 76, .max_gap_bytes = 16}), 2U)
      << "a READ ends with bytes that are wanted";
}

// The limit is one byte of gaps for 100 that are wanted: the shortest gaps are taken, each of which
// saves a READ as any other does.
TEST(PlanReadsTest, GapsTogetherAreBoundedAndTheShortestAreTaken) {
  constexpr ReadLimits kBounded = {
      .max_pieces = 30, .max_bytes = 1 << 20, .max_gap_bytes = 512, .bytes_per_gap_byte = 100};
  const KeyedRange discard = {uint64_t{1} << 40, 512, 5};
  std::vector<KeyedRange> from;
  uint64_t at = 0;
  for (const uint64_t gap : {30, 10, 20, 10, 10, 0}) {
    from.push_back({at, 500, 7});
    at += 500 + gap;
  }
  const std::vector<KeyedRange> into = {{uint64_t{1} << 30, 3000, 1}};
  const ReadPlan plan = PlanReads(from, into, kBounded, discard);  // 30 bytes of gaps for 3,000
  EXPECT_THAT(From(plan), ElementsAre(KeyedRange{0, 500, 7}, KeyedRange{530, 1010, 7},
                                      KeyedRange{1560, 1520, 7}));
  EXPECT_EQ(plan.gap_bytes, 30U);
  // As many gaps of one length are taken as there is room for.
  from = {{0, 500, 7}, {508, 500, 7}, {1016, 500, 7}};  // 16 bytes of gaps for 1,500
  const ReadPlan equal = PlanReads(from, into, kBounded, discard);
  EXPECT_THAT(From(equal), ElementsAre(KeyedRange{0, 1008, 7}, KeyedRange{1016, 500, 7}));
  EXPECT_EQ(equal.gap_bytes, 8U);
}

// As torch's allocator places them, 17.6 KiB on average: all of their gaps would be 1.5 %.
TEST(PlanReadsTest, GapsOfTensorsAtMultiplesOf512BytesAreAtMostOnePercent) {
  constexpr ReadLimits kLikeAQueuePair = {
      .max_pieces = 30, .max_bytes = 1 << 20, .max_gap_bytes = 512, .bytes_per_gap_byte = 100};
  std::mt19937_64 random(20260102);
  std::vector<KeyedRange> from;
  uint64_t at = 0, wanted = 0;
  for (int i = 0; i < 1000; ++i) {
    from.push_back({at, 1 + random() % (2 * 17'600), 7});
    wanted += from.back().bytes;
    at += (from.back().bytes + 511) / 512 * 512;
  }
  const ReadPlan plan = PlanReads(from, {{uint64_t{1} << 40, wanted, 1}}, kLikeAQueuePair,
                                  {uint64_t{1} << 50, 512, 5});
  uint64_t on_the_wire = 0;
  for (const PlannedRead& read : plan.reads) on_the_wire += read.from.bytes;
  EXPECT_EQ(on_the_wire, wanted + plan.gap_bytes);
  EXPECT_LE(plan.gap_bytes, wanted / 100);
  EXPECT_GE(plan.gap_bytes, wanted / 150) << "what is allowed saves READs";
  EXPECT_LE(plan.reads.size(), 400U);
}

TEST(PlanReadsTest, RangesAreTakenInTheOrderOfTheirAddresses) {
  const ReadPlan plan =
      PlanReads({{160, 40, 7}, {50, 5, 8}, {100, 60, 7}}, {{5000, 105, 1}}, kLimits);
  EXPECT_THAT(From(plan), ElementsAre(KeyedRange{100, 100, 7}, KeyedRange{50, 5, 8}));
  EXPECT_THAT(plan.pieces, ElementsAre(KeyedRange{5045, 60, 1}, KeyedRange{5000, 40, 1},
                                       KeyedRange{5040, 5, 1}));
}

TEST(PlanReadsTest, LongReadsAreSplit) {
  const ReadPlan plan = PlanReads({{0, 2500, 7}}, {{5000, 2500, 1}}, kLimits);
  EXPECT_THAT(From(plan), ElementsAre(KeyedRange{0, 1000, 7}, KeyedRange{1000, 1000, 7},
                                      KeyedRange{2000, 500, 7}));
}

TEST(PlanReadsTest, TooManyPiecesAreSplit) {
  std::vector<KeyedRange> into;
  for (uint64_t i = 0; i < 9; ++i) into.push_back({5000 + i * 100, 10, 1});
  const ReadPlan plan = PlanReads({{0, 90, 7}}, into, kLimits);
  EXPECT_THAT(From(plan),
              ElementsAre(KeyedRange{0, 40, 7}, KeyedRange{40, 40, 7}, KeyedRange{80, 10, 7}));
}

TEST(PlanReadsTest, EmptyPiecesAreNoReads) {
  EXPECT_TRUE(PlanReads({{100, 0, 7}}, {{5000, 0, 1}}, kLimits).reads.empty());
  const ReadPlan plan =
      PlanReads({{100, 0, 7}, {100, 5, 7}}, {{1, 0, 1}, {5000, 5, 1}, {2, 0, 1}}, kLimits);
  EXPECT_THAT(From(plan), ElementsAre(KeyedRange{100, 5, 7}));
}

// Every byte of the source goes to its place and none to another, within the limits, whatever the
// pieces are.
TEST(PlanReadsTest, EveryByteGoesToItsPlace) {
  constexpr ReadLimits kGaps = {.max_pieces = 4, .max_bytes = 1000, .max_gap_bytes = 2};
  const KeyedRange discard = {uint64_t{1} << 40, 2, 9};
  std::mt19937_64 random(20260101);
  const auto cut = [&random](uint64_t total, uint64_t base) {
    std::vector<KeyedRange> pieces;
    for (uint64_t at = base; total > 0;) {
      const uint64_t bytes = std::min<uint64_t>(total, random() % 700);
      pieces.push_back({at, bytes, static_cast<uint32_t>(random() % 2)});
      at += bytes + random() % 4;
      total -= bytes;
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    return pieces;
  };
  const auto addresses = [](const std::vector<KeyedRange>& pieces) {
    std::vector<uint64_t> all;
    for (const KeyedRange& piece : pieces) {
      for (uint64_t i = 0; i < piece.bytes; ++i) all.push_back(piece.address + i);
    }
    return all;
  };
  for (int round = 0; round < 200; ++round) {
    const uint64_t total = random() % 10'000;
    const auto from = cut(total, 0), into = cut(total, uint64_t{1} << 32);
    std::map<uint64_t, uint64_t> wanted, planned;  // by the place, the byte of the source
    const auto from_bytes = addresses(from), into_bytes = addresses(into);
    for (uint64_t i = 0; i < total; ++i) wanted[into_bytes[i]] = from_bytes[i];
    const ReadPlan plan = PlanReads(from, into, kGaps, discard);
    for (const PlannedRead& read : plan.reads) {
      ASSERT_LE(read.from.bytes, kGaps.max_bytes);
      ASSERT_LE(read.piece_count, kGaps.max_pieces);
      uint64_t bytes = 0;
      for (uint32_t i = 0; i < read.piece_count; ++i) {
        const KeyedRange& piece = plan.pieces[read.first_piece + i];
        if (piece.key == discard.key) {
          ASSERT_LE(piece.bytes, discard.bytes);
          ASSERT_EQ(piece.address, discard.address);
        }
        for (uint64_t at = 0; piece.key != discard.key && at < piece.bytes; ++at) {
          planned[piece.address + at] = read.from.address + bytes + at;
        }
        bytes += piece.bytes;
      }
      ASSERT_EQ(bytes, read.from.bytes);
    }
    ASSERT_EQ(planned, wanted);
  }
}

TEST(SliceTest, TakesAPartOfSeveralRanges) {
  const std::vector<KeyedRange> ranges = {{100, 10, 1}, {200, 0, 1}, {300, 10, 2}};
  EXPECT_THAT(Slice(ranges, 4, 8), ElementsAre(KeyedRange{104, 6, 1}, KeyedRange{300, 2, 2}));
  EXPECT_THAT(Slice(ranges, 10, 100), ElementsAre(KeyedRange{300, 10, 2}));
  EXPECT_THAT(Slice(ranges, 20, 1), ElementsAre());
}

TEST(SignalPlanTest, OneInSoManyAndTheLastOfABatch) {
  SignalPlan plan(128);
  EXPECT_EQ(plan.every(), 16U);
  for (int i = 1; i < 16; ++i) EXPECT_FALSE(plan.Next(false)) << i;
  EXPECT_TRUE(plan.Next(false));
  EXPECT_FALSE(plan.Next(false));
  EXPECT_TRUE(plan.Next(true));
  for (int i = 1; i < 16; ++i) EXPECT_FALSE(plan.Next(false)) << i;
  EXPECT_TRUE(plan.Next(false));
}

TEST(SignalPlanTest, ShortQueuesSignalMoreOften) {
  EXPECT_EQ(SignalPlan(1).every(), 1U);
  EXPECT_EQ(SignalPlan(8).every(), 2U);
}

}  // namespace
}  // namespace th::ibverbs
