#include "th/transfer/same_host/stream_copy.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

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

}  // namespace
}  // namespace th::same_host
