#include "th/processes/memory_probe.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

MemoryStream StreamOf(std::vector<std::string>& parts) {
  std::vector<iovec> pieces;
  for (std::string& part : parts) pieces.push_back({part.data(), part.size()});
  return MemoryStream(std::move(pieces));
}

TEST(MemoryProbeTest, ByAnyNumberOfThreadsAllBytesComeToTheirPlace) {
  std::vector<std::string> content;
  for (int i = 0; i < 300; ++i) content.emplace_back(1000 + 31 * i, static_cast<char>(i));
  const MemoryStream source = StreamOf(content);
  ASSERT_OK_AND_ASSIGN(const auto shared, SharedCopy::Of(source));
  for (const uint32_t threads : {1u, 2u, 7u}) {
    std::vector<std::string> received;
    received.emplace_back(source.bytes() - 77, '?');
    received.emplace_back(77, '?');
    ASSERT_OK_AND_ASSIGN(const MappedCopy mapped, MappedCopy::Open(shared->path(), source.bytes()));
    ASSERT_OK(mapped.CopyTo(StreamOf(received), threads));
    std::string expected;
    for (const std::string& part : content) expected += part;
    EXPECT_EQ(received[0] + received[1], expected) << threads;
  }
}

TEST(MemoryProbeTest, OtherSizesAndNoThreadsAreRefused) {
  std::vector<std::string> content = {"abc"}, longer = {"abcd"}, received = {"???"};
  const MemoryStream source = StreamOf(content);
  ASSERT_OK_AND_ASSIGN(const auto shared, SharedCopy::Of(source));
  EXPECT_THAT(MappedCopy::Open(shared->path(), 4).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("not of 4 bytes")));
  EXPECT_THAT(MappedCopy::Open("/proc/self/fd/none", 3).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/proc/self/fd/none")));
  ASSERT_OK_AND_ASSIGN(const MappedCopy mapped, MappedCopy::Open(shared->path(), 3));
  EXPECT_THAT(mapped.CopyTo(StreamOf(longer), 1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(mapped.CopyTo(StreamOf(received), 0), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace th
