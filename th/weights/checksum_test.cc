#include "th/weights/checksum.h"

#include <string>
#include <vector>

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

TEST(ChecksumTest, IsXxh3) {
  // The reference implementation's value for no bytes at seed 0.
  EXPECT_EQ(SumBytes("", 0), 0x2d06800538d394c2u);
}

TEST(ChecksumTest, IsTheSameForEveryInstructionSet) {
  for (const size_t bytes : {1u, 16u, 17u, 129u, 241u, 1025u, 100'000u, 1'000'003u}) {
    const std::string data = Ramp(bytes + 1);
    for (const char* at : {data.data(), data.data() + 1}) {
      EXPECT_EQ(SumBytes(at, bytes), XXH3_64bits(at, bytes)) << bytes;
    }
  }
}

TEST(ChecksumTest, DoesNotDependOnHowTheBytesAreCut) {
  // Lengths on either side of where XXH3 changes its method (16, 128, 240, 1024 and its blocks).
  for (const size_t bytes : {1u, 16u, 17u, 129u, 241u, 1025u, 100'000u}) {
    const std::string data = Ramp(bytes);
    SegmentHasher hasher;
    for (size_t begin = 0, piece = 1; begin < bytes; begin += piece, piece = 2 * piece + 1) {
      hasher.Update(data.data() + begin, std::min(piece, bytes - begin));
    }
    EXPECT_EQ(hasher.Finish(), SumBytes(data.data(), bytes)) << bytes;
  }
}

TEST(ChecksumTest, NoticesEveryFlippedBit) {
  std::string data = Ramp(4096);
  const SegmentSum good = SumBytes(data.data(), data.size());
  for (size_t bit = 0; bit < 8 * data.size(); bit += 97) {
    data[bit / 8] = static_cast<char>(data[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(SumBytes(data.data(), data.size()), good) << "bit " << bit;
    data[bit / 8] = static_cast<char>(data[bit / 8] ^ (1 << bit % 8));
  }
}

TEST(ChecksumTest, HasherStartsAgainAfterReset) {
  SegmentHasher hasher;
  hasher.Update("old", 3);
  hasher.Reset();
  hasher.Update("new", 3);
  EXPECT_EQ(hasher.Finish(), SumBytes("new", 3));
}

TEST(ChecksumTest, RootIsSha256OfLittleEndianSums) {
  const std::vector<SegmentSum> sums = {0x0102030405060708, 1};
  const std::string bytes("\x08\x07\x06\x05\x04\x03\x02\x01\x01\0\0\0\0\0\0\0", 16);
  EXPECT_EQ(RootOfSums(sums), Sha256(bytes));
  EXPECT_EQ(RootOfSums({}), Sha256(""));
}

TEST(ChecksumTest, RootCoversLongLists) {
  std::vector<SegmentSum> sums(5000, 7);
  const Digest good = RootOfSums(sums);
  for (const size_t index : {0u, 1023u, 1024u, 4999u}) {
    sums[index] ^= 1;
    EXPECT_NE(RootOfSums(sums), good) << index;
    sums[index] ^= 1;
  }
  sums.pop_back();
  EXPECT_NE(RootOfSums(sums), good);
}

}  // namespace
}  // namespace th
