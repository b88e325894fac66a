#include "th/transfer/same_host/stream_copy.h"

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "th/weights/checksum.h"

namespace th::same_host {
namespace {

// Every alignment of both ends, sizes around each of its limits, and not a byte beside them.
TEST(StreamCopyTest, CopiesWhatMemcpyCopies) {
  std::string from(40'000, '\0');
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 131 + i / 251);
  for (const size_t bytes : {0, 1, 63, 64, 65, 4095, 4096, 4097, 4160, 4223, 16'384, 30'001}) {
    for (size_t to_offset = 0; to_offset < 66; to_offset += 3) {
      for (const size_t from_offset : {0, 1, 8, 63, 64}) {
        std::string to(from.size(), '!');
        StreamCopy(&to[to_offset], &from[from_offset], bytes);
        ASSERT_EQ(to.substr(to_offset, bytes), from.substr(from_offset, bytes))
            << bytes << " bytes to " << to_offset << " from " << from_offset;
        ASSERT_EQ(to.substr(0, to_offset), std::string(to_offset, '!'));
        ASSERT_EQ(to.substr(to_offset + bytes), std::string(to.size() - to_offset - bytes, '!'));
      }
    }
  }
}

// Memory in pieces with a byte behind each, which nobody is to write.
struct Apart {
  Apart(size_t bytes, size_t most, std::mt19937& random) : memory(2 * bytes + 2, '!') {
    for (size_t done = 0, at = 0; done < bytes;) {
      const size_t length = std::min<size_t>(random() % most + 1, bytes - done);
      pieces.push_back({&memory[at], length});
      at += length + 1;
      done += length;
    }
  }
  std::string Content() const {
    std::string content;
    for (const iovec& piece : pieces) {
      content.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    }
    return content;
  }
  bool OthersAreUntouched() const {
    return std::all_of(pieces.begin(), pieces.end(), [](const iovec& piece) {
      return static_cast<const char*>(piece.iov_base)[piece.iov_len] == '!';
    });
  }

  std::string memory;
  std::vector<iovec> pieces;
};

// `memory` cut into pieces of 0 to `most` bytes.
std::vector<iovec> Pieces(std::string& memory, size_t most, std::mt19937& random) {
  std::vector<iovec> pieces;
  for (size_t at = 0; at < memory.size();) {
    const size_t bytes = std::min<size_t>(random() % (most + 1), memory.size() - at);
    pieces.push_back({&memory[at], bytes});
    at += bytes;
  }
  return pieces;
}

TEST(StreamCopyTest, PiecesArriveAndAreSummedAsOneSegment) {
  std::mt19937 random(7);
  SegmentHasher hasher;
  for (const size_t bytes : {1, 8191, 8192, 8193, 16'384, 70'000, 262'144}) {
    std::string from(bytes, '\0');
    for (char& each : from) each = static_cast<char>(random());
    for (const size_t most_from : {100, 5'000, 300'000}) {
      for (const size_t most_into : {77, 20'000, 300'000}) {
        const Apart copied(bytes, most_into, random), checksummed(bytes, most_into, random);
        const std::vector<iovec> source = Pieces(from, most_from, random);
        StreamCopyPieces(source, copied.pieces);
        EXPECT_EQ(copied.Content(), from);
        EXPECT_TRUE(copied.OthersAreUntouched());
        EXPECT_EQ(StreamCopyAndChecksum(source, checksummed.pieces, &hasher),
                  ChecksumBytes(from.data(), from.size()))
            << bytes << " bytes in pieces of up to " << most_from;
        EXPECT_EQ(checksummed.Content(), from);
        EXPECT_TRUE(checksummed.OthersAreUntouched());
      }
    }
  }
}

TEST(StreamCopyTest, ASegmentWithoutBytesHasTheSumOfNone) {
  SegmentHasher hasher;
  EXPECT_EQ(StreamCopyAndChecksum({}, {}, &hasher), ChecksumBytes(nullptr, 0));
}

}  // namespace
}  // namespace th::same_host
