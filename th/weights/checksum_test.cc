#include "th/weights/checksum.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "xxhash.h"

namespace th {
namespace {

// Bytes 0, 1, 2, ...
std::string Ramp(size_t bytes) {
  std::string ramp(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) ramp[i] = static_cast<char>(i);
  return ramp;
}

// The definition of the header, computed step by step with the plain functions of xxhash.h.
SegmentChecksum Reference(const std::string& data) {
  std::string leaves;
  for (size_t at = 0; at < data.size(); at += kLeafBytes) {
    XXH128_canonical_t big_endian;
    XXH128_canonicalFromHash(
        &big_endian, XXH3_128bits(data.data() + at, std::min(kLeafBytes, data.size() - at)));
    leaves.append(std::rbegin(big_endian.digest), std::rend(big_endian.digest));
  }
  const XXH128_hash_t checksum = XXH3_128bits(leaves.data(), leaves.size());
  return absl::MakeUint128(checksum.high64, checksum.low64);
}

// Lengths on either side of where XXH3 changes its method, of a leaf, and of what is summed at
// once.
std::vector<size_t> Lengths() {
  return {0,
          1,
          16,
          17,
          129,
          241,
          1025,
          kLeafBytes - 1,
          kLeafBytes,
          kLeafBytes + 1,
          3 * kLeafBytes,
          100'000,
          64 * kLeafBytes,
          64 * kLeafBytes + 1,
          1'000'003};
}

TEST(ChecksumTest, IsXxh3OfTheSumsOfLeaves) {
  for (const size_t bytes : Lengths()) {
    const std::string data = Ramp(bytes);
    EXPECT_EQ(ChecksumBytes(data.data(), bytes), Reference(data)) << bytes;
  }
}

// The sums are a promise to every other build: a change of them is another algorithm.
TEST(ChecksumTest, ValuesStayAsTheyAre) {
  EXPECT_EQ(ChecksumBytes("", 0), absl::MakeUint128(0x99aa06d3014798d8, 0x6001c324468d497f));
  const std::string data = Ramp(3 * kLeafBytes + 5);
  EXPECT_EQ(ChecksumBytes(data.data(), data.size()),
            absl::MakeUint128(0x09dbf225e3af7307, 0xa55e9ee99e587749));
}

TEST(ChecksumTest, DoesNotDependOnTheAlignment) {
  for (const size_t bytes : Lengths()) {
    const std::string data = Ramp(bytes);
    const std::string shifted = absl::StrCat("x", data);
    EXPECT_EQ(ChecksumBytes(shifted.data() + 1, bytes), ChecksumBytes(data.data(), bytes)) << bytes;
  }
}

TEST(ChecksumTest, LeavesSummedElsewhereGiveTheSameSum) {
  for (const size_t bytes : Lengths()) {
    const std::string data = Ramp(bytes);
    std::vector<SegmentChecksum> leaves;
    for (size_t at = 0; at < bytes; at += kLeafBytes) {
      leaves.push_back(ChecksumOfLeaf(&data[at], std::min(kLeafBytes, bytes - at)));
    }
    EXPECT_EQ(ChecksumOfLeaves(leaves), ChecksumBytes(data.data(), bytes)) << bytes;
  }
}

TEST(ChecksumTest, LeavesThatChangePlacesAreNoticed) {
  const std::string data = std::string(kLeafBytes, 'a') + std::string(kLeafBytes, 'b');
  const std::string swapped = std::string(kLeafBytes, 'b') + std::string(kLeafBytes, 'a');
  EXPECT_NE(ChecksumBytes(data.data(), data.size()), ChecksumBytes(swapped.data(), swapped.size()));
}

TEST(ChecksumTest, DoesNotDependOnHowTheBytesAreCut) {
  for (const size_t bytes : Lengths()) {
    const std::string data = Ramp(bytes);
    for (const size_t first : {size_t{1}, size_t{7}, kLeafBytes - 1, kLeafBytes, 2 * kLeafBytes}) {
      SegmentHasher hasher;
      for (size_t begin = 0, piece = first; begin < bytes; begin += piece, piece = 2 * piece + 1) {
        hasher.Update(data.data() + begin, std::min(piece, bytes - begin));
      }
      EXPECT_EQ(hasher.Finish(), ChecksumBytes(data.data(), bytes)) << bytes << " by " << first;
    }
  }
}

TEST(ChecksumTest, PiecesSumAsTheBytesInTheirOrder) {
  std::string data = Ramp(3 * kLeafBytes + 5);
  const SegmentChecksum whole = ChecksumBytes(data.data(), data.size());
  EXPECT_EQ(ChecksumPieces({{data.data(), data.size()}}, ChecksumAlgorithm::kXxh3Leaves), whole);
  const iovec front{data.data(), 7}, middle{data.data() + 7, kLeafBytes},
      back{data.data() + 7 + kLeafBytes, data.size() - 7 - kLeafBytes};
  EXPECT_EQ(ChecksumPieces({front, middle, back}, ChecksumAlgorithm::kXxh3Leaves), whole);
  EXPECT_NE(ChecksumPieces({middle, front, back}, ChecksumAlgorithm::kXxh3Leaves), whole);
  EXPECT_EQ(ChecksumPieces({front, middle, back}, ChecksumAlgorithm::kNone), SegmentChecksum{0});
}

TEST(ChecksumTest, NoticesEveryFlippedBit) {
  std::string data = Ramp(4096);
  const SegmentChecksum good = ChecksumBytes(data.data(), data.size());
  for (size_t bit = 0; bit < 8 * data.size(); bit += 97) {
    data[bit / 8] = static_cast<char>(data[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(ChecksumBytes(data.data(), data.size()), good) << "bit " << bit;
    data[bit / 8] = static_cast<char>(data[bit / 8] ^ (1 << bit % 8));
  }
}

TEST(ChecksumTest, HasherBeginsAnotherSegmentOnceOneIsFinished) {
  SegmentHasher hasher;
  for (const size_t bytes : {size_t{3}, kLeafBytes, kLeafBytes + 3, size_t{0}, size_t{5}}) {
    const std::string data = Ramp(bytes);
    hasher.Update(data.data(), bytes);
    EXPECT_EQ(hasher.Finish(), ChecksumBytes(data.data(), bytes)) << bytes;
  }
}

TEST(ChecksumTest, RootIsSha256OfLittleEndianSums) {
  const std::vector<SegmentChecksum> checksums = {
      absl::MakeUint128(0x1112131415161718, 0x0102030405060708), 1};
  const std::string bytes(
      "\x08\x07\x06\x05\x04\x03\x02\x01\x18\x17\x16\x15\x14\x13\x12\x11"
      "\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
      32);
  EXPECT_EQ(RootOfChecksums(checksums), Sha256(bytes));
  EXPECT_EQ(RootOfChecksums({}), Sha256(""));
}

TEST(ChecksumTest, RootCoversLongLists) {
  std::vector<SegmentChecksum> checksums(5000, 7);
  const Digest good = RootOfChecksums(checksums);
  for (const size_t index : {0u, 63u, 64u, 4999u}) {
    checksums[index] ^= 1;
    EXPECT_NE(RootOfChecksums(checksums), good) << index;
    checksums[index] ^= 1;
  }
  checksums.pop_back();
  EXPECT_NE(RootOfChecksums(checksums), good);
}

}  // namespace
}  // namespace th
