// Sums, gather and scatter on the device against the processor's. Runs on the fake driver and on
// GPUs.
#include "th/memory/cuda/device_checksums.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/memory/cuda/cuda_test_fixture.h"
#include "th/memory/cuda/device_memory.h"
#include "th/memory/cuda/device_pieces.h"
#include "th/memory/cuda/piece_copier.h"
#include "th/weights/checksum.h"

namespace th {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using testing::StatusIs;

class DeviceChecksumsTest : public CudaTest {
 protected:
  // Pieces of these lengths in one allocation, with gaps of `gap` bytes.
  std::vector<DevicePiece> Pieces(DeviceMemory* memory, const std::vector<uint64_t>& lengths,
                                  uint64_t gap) {
    std::vector<DevicePiece> pieces;
    uint64_t at = gap;
    for (const uint64_t length : lengths) {
      pieces.push_back({memory, at, length});
      at += length + gap;
    }
    return pieces;
  }
  static std::vector<std::byte> Joined(const std::vector<std::byte>& memory,
                                       const std::vector<DevicePiece>& pieces) {
    std::vector<std::byte> joined;
    for (const DevicePiece& piece : pieces) {
      const auto begin = memory.begin() + static_cast<int64_t>(piece.offset);
      joined.insert(joined.end(), begin, begin + static_cast<int64_t>(piece.bytes));
    }
    return joined;
  }
  // All segments' sums on the device are those of the processor.
  void ExpectChecksums(const std::vector<std::byte>& bytes,
                       const std::vector<std::vector<DevicePiece>>& segments,
                       DeviceChecksums::Options options) {
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeviceChecksums> checksums,
                         DeviceChecksums::Create(device_, options));
    std::vector<SegmentChecksum> expected;
    for (const std::vector<DevicePiece>& segment : segments) {
      const std::vector<std::byte> joined = Joined(bytes, segment);
      expected.push_back(ChecksumBytes(joined.data(), joined.size()));
    }
    ASSERT_OK_AND_ASSIGN(const std::vector<SegmentChecksum> got, checksums->Checksum(segments));
    EXPECT_THAT(got, ElementsAreArray(expected));
  }
  // Options with which every segment below takes several rounds.
  static DeviceChecksums::Options Small() {
    return {.leaves = 3, .gathered_leaves = 2, .gathered_pieces = kLeafBytes + 5};
  }
};

TEST_F(DeviceChecksumsTest, SegmentsOfOnePieceHaveTheSumsOfTheProcessor) {
  const std::vector<std::byte> bytes = PatternBytes(12 * kLeafBytes + 300, 1);
  const DeviceBuffer buffer = Filled(bytes);
  const std::unique_ptr<DeviceMemory> memory = Register(buffer);
  const std::vector<std::vector<DevicePiece>> segments = {
      {{memory.get(), 0, 4 * kLeafBytes}},
      {{memory.get(), 4 * kLeafBytes,
        8 * kLeafBytes + 300}},  // goes on in memory; ends with a part of a leaf
      {{memory.get(), 1, 5 * kLeafBytes}},
      {{memory.get(), 3, 1}},
      {{memory.get(), 8, kLeafBytes - 1}},
      {{memory.get(), 16, kLeafBytes + 1}}};
  ExpectChecksums(bytes, segments, {});
  ExpectChecksums(bytes, segments, Small());
}

TEST_F(DeviceChecksumsTest, SegmentsOfTinyTensorsWithOddGapsHaveTheSumsOfTheProcessor) {
  std::vector<uint64_t> lengths;
  for (uint64_t i = 0; i < 600; ++i) lengths.push_back(i * 37 % 211);  // some of no bytes
  lengths.push_back(3 * kLeafBytes + 11);
  for (uint64_t i = 0; i < 100; ++i) lengths.push_back(1 + i);
  for (const uint64_t gap : {0, 1, 16}) {
    const std::vector<std::byte> bytes = PatternBytes(200'000, gap);
    const DeviceBuffer buffer = Filled(bytes);
    const std::unique_ptr<DeviceMemory> memory = Register(buffer);
    const std::vector<DevicePiece> pieces = Pieces(memory.get(), lengths, gap);
    const std::vector<std::vector<DevicePiece>> segments = {
        pieces,
        {pieces.begin() + 5, pieces.begin() + 300},
        {pieces.end() - 102, pieces.end() - 99}};
    ExpectChecksums(bytes, segments, {});
    ExpectChecksums(bytes, segments, Small());
  }
}

TEST_F(DeviceChecksumsTest, LeavesOfSingleBytesFitTheSmallestLists) {
  const std::vector<std::byte> bytes = PatternBytes(2 * kLeafBytes + 10, 3);
  const DeviceBuffer buffer = Filled(bytes);
  const std::unique_ptr<DeviceMemory> memory = Register(buffer);
  std::vector<DevicePiece> pieces;
  for (uint64_t at = kLeafBytes + 5; at > 0; --at) pieces.push_back({memory.get(), at, 1});
  ExpectChecksums(bytes, {pieces},
                  {.leaves = 1, .gathered_leaves = 1, .gathered_pieces = kLeafBytes});
}

TEST_F(DeviceChecksumsTest, NoSegmentsAndSegmentsOfNoBytesAreSummed) {
  const DeviceBuffer buffer = Filled(PatternBytes(100, 4));
  const std::unique_ptr<DeviceMemory> memory = Register(buffer);
  ExpectChecksums({}, {}, {});
  ExpectChecksums({}, {{}, {{memory.get(), 7, 0}}}, {});
}

TEST_F(DeviceChecksumsTest, MemoryOverManyMappingsIsSummed) {
  const MappedMemory mapped(device_, 2);
  const std::vector<std::byte> bytes = PatternBytes(mapped.bytes(), 5);
  WriteDevice(mapped.address(), bytes);
  const std::unique_ptr<DeviceMemory> memory = Register(mapped.pointer(), mapped.bytes());
  // One leaf lies across the two mappings.
  ExpectChecksums(bytes, {{{memory.get(), mapped.mapping_bytes() - 100, 2 * kLeafBytes}}}, {});
}

TEST_F(DeviceChecksumsTest, PiecesThatCannotBeReadAreRefused) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeviceChecksums> checksums,
                       DeviceChecksums::Create(device_, {}));
  absl::StatusOr<DeviceBuffer> buffer = DeviceBuffer::Allocate(device_, 100);
  ASSERT_OK(buffer);
  const std::unique_ptr<DeviceMemory> memory = Register(*buffer);
  EXPECT_THAT(
      checksums->Checksum({{{memory.get(), 90, 11}}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("registered memory of 100 bytes")));
  buffer = absl::CancelledError("freed");
  EXPECT_THAT(checksums->Checksum({{{memory.get(), 0, 10}}}),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(DeviceChecksums::Create(device_, {.gathered_pieces = 10}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(DeviceChecksumsTest, TinyTensorsAreGatheredAndScattered) {
  std::vector<uint64_t> lengths;
  for (uint64_t i = 0; i < 500; ++i) lengths.push_back(i % 100);
  const std::vector<std::byte> bytes = PatternBytes(80'000, 6);
  const DeviceBuffer buffer = Filled(bytes);
  const std::unique_ptr<DeviceMemory> memory = Register(buffer);
  const std::vector<DevicePiece> pieces = Pieces(memory.get(), lengths, 13);
  const std::vector<std::byte> joined = Joined(bytes, pieces);
  const DeviceBuffer packed_buffer = Filled(std::vector<std::byte>(joined.size() + 20));
  const std::unique_ptr<DeviceMemory> packed = Register(packed_buffer);
  for (const uint64_t at_once : {uint64_t{7}, uint64_t{65536}}) {
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PieceCopier> copier,
                         PieceCopier::Create(device_, {at_once}));
    ASSERT_OK(copier->Gather(pieces, {packed.get(), 10, joined.size()}));
    EXPECT_EQ(ReadDevice(packed_buffer.address() + 10, joined.size()), joined);
    const DeviceBuffer target = Filled(std::vector<std::byte>(bytes.size()));
    const std::unique_ptr<DeviceMemory> into = Register(target);
    ASSERT_OK(copier->Scatter({packed.get(), 10, joined.size()}, Pieces(into.get(), lengths, 13)));
    EXPECT_EQ(Joined(ReadDevice(target.address(), bytes.size()), pieces), joined);
  }
}

TEST_F(DeviceChecksumsTest, PiecesAndPackedRangeOfDifferentSizesAreRefused) {
  const DeviceBuffer buffer = Filled(PatternBytes(100, 7));
  const std::unique_ptr<DeviceMemory> memory = Register(buffer);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PieceCopier> copier, PieceCopier::Create(device_, {}));
  EXPECT_THAT(copier->Gather({{memory.get(), 0, 10}}, {memory.get(), 50, 11}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("10 bytes together")));
  EXPECT_OK(copier->Gather({}, {memory.get(), 50, 0}));
}

}  // namespace
}  // namespace th
