// The kernels' source on the host, against the library that the processor's sums come from.
#include "th/memory/cuda/kernels/leaf_checksum.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <vector>

#include "absl/numeric/int128.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/memory/cuda/kernels/arguments.h"
#include "th/memory/cuda/kernels/host_kernels.h"
#include "th/memory/cuda/kernels/host_warp.h"
#include "th/weights/checksum.h"

namespace th::kernels {
namespace {

using ::testing::ElementsAreArray;

SegmentChecksum ToSegmentChecksum(Checksum128 checksum) {
  return absl::MakeUint128(checksum.high, checksum.low);
}

uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

std::vector<uint8_t> RandomBytes(size_t count, uint64_t seed) {
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) {
    seed = seed * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<uint8_t>(seed >> 56);
  }
  return bytes;
}

SegmentChecksum ChecksumOnHost(const void* data, uint32_t bytes) {
  const PlainMemory memory;
  const HostWarp warp(memory);
  HostWarp::Lanes<LaneKeys> keys;
  warp.ForEachLane([&](uint32_t lane) { keys[lane] = KeysOf(lane); });
  return ToSegmentChecksum(ChecksumLeaf(warp, keys, AddressOf(data), bytes));
}

TEST(LeafChecksumTest, LeavesAreAsLongAsThoseOfTheProcessor) {
  EXPECT_EQ(kLeafBytes, th::kLeafBytes);
}

// Each length is a buffer of its own: with the address sanitizer a read beyond it fails.
TEST(LeafChecksumTest, EveryLengthHasTheSumOfTheProcessor) {
  const std::vector<uint8_t> all = RandomBytes(kLeafBytes, 1);
  for (uint32_t bytes = 0; bytes <= kLeafBytes; ++bytes) {
    const std::vector<uint8_t> leaf(all.begin(), all.begin() + bytes);
    ASSERT_EQ(ChecksumOnHost(leaf.data(), bytes), ChecksumOfLeaf(leaf.data(), bytes)) << bytes;
  }
}

TEST(LeafChecksumTest, AnyAlignmentHasTheSameSum) {
  for (const uint32_t bytes : {1U, 5U, 12U, 100U, 200U, 241U, 1024U, 1025U, 5000U, kLeafBytes}) {
    const std::vector<uint8_t> all = RandomBytes(bytes + 16, bytes);
    for (uint32_t skipped = 0; skipped < 16; ++skipped) {
      const std::vector<uint8_t> memory(all.begin(), all.begin() + skipped + bytes);
      ASSERT_EQ(ChecksumOnHost(&memory[skipped], bytes), ChecksumOfLeaf(&all[skipped], bytes))
          << bytes << " bytes at " << skipped;
    }
  }
}

TEST(LeafChecksumTest, AByteMoreOrAnotherByteIsAnotherSum) {
  std::vector<uint8_t> leaf = RandomBytes(kLeafBytes, 3);
  const SegmentChecksum before = ChecksumOnHost(leaf.data(), kLeafBytes);
  EXPECT_NE(ChecksumOnHost(leaf.data(), kLeafBytes - 1), before);
  for (const size_t at : {size_t{0}, size_t{8127}, size_t{8128}, size_t{8191}}) {
    leaf[at] ^= 1;
    EXPECT_NE(ChecksumOnHost(leaf.data(), kLeafBytes), before) << at;
    leaf[at] ^= 1;
  }
}

TEST(LeafChecksumTest, OneLaunchSumsTheLeavesOfManyRuns) {
  // Runs of one byte, of a whole number of leaves, of some leaves and a part, at odd addresses.
  const std::vector<uint64_t> lengths = {1, kLeafBytes, 3 * kLeafBytes, 2 * kLeafBytes + 77, 240};
  const uint64_t total = std::accumulate(lengths.begin(), lengths.end(), uint64_t{0});
  const std::vector<uint8_t> memory = RandomBytes(total, 4);
  std::vector<LeafRun> runs;
  std::vector<SegmentChecksum> expected;
  uint64_t begin = 0;
  for (const uint64_t length : lengths) {
    runs.push_back({AddressOf(&memory[begin]), length, expected.size()});
    for (uint64_t at = 0; at < length; at += kLeafBytes) {
      expected.push_back(
          ChecksumOfLeaf(&memory[begin + at], std::min<uint64_t>(kLeafBytes, length - at)));
    }
    begin += length;
  }
  std::vector<Checksum128> checksums(expected.size());
  const LeafChecksumsArguments arguments = {AddressOf(runs.data()), runs.size(), expected.size(),
                                            AddressOf(checksums.data())};
  for (const uint32_t blocks : {1U, 3U}) {
    std::fill(checksums.begin(), checksums.end(), Checksum128{0, 0});
    FindHostKernel("th_leaf_checksums")(&arguments, blocks, PlainMemory());
    std::vector<SegmentChecksum> got;
    std::transform(checksums.begin(), checksums.end(), std::back_inserter(got), ToSegmentChecksum);
    EXPECT_THAT(got, ElementsAreArray(expected)) << blocks << " blocks";
  }
}

}  // namespace
}  // namespace th::kernels
