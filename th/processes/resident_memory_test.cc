#include "th/processes/resident_memory.h"

#include <unistd.h>

#include <memory>

#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using testing::IsOkAndHolds;
using testing::StatusIs;

TEST(ResidentMemoryTest, AddsAnonymousAndSharedPages) {
  EXPECT_THAT(ResidentBytesOfStatus(
                  "Name:\tth\nRssAnon:\t     100 kB\nRssFile:\t 7 kB\nRssShmem:\t  20 kB\n"),
              IsOkAndHolds(120u << 10));
}

TEST(ResidentMemoryTest, RefusesATextWithoutTheLines) {
  EXPECT_THAT(ResidentBytesOfStatus("Name: th\n"), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ResidentBytesOfStatus("RssAnon: many kB\nRssShmem: 0 kB\n"),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ResidentMemoryTest, SeesWhatThisProcessAllocates) {
  ASSERT_OK_AND_ASSIGN(const uint64_t before, ResidentBytes(getpid()));
  constexpr size_t kBytes = size_t{64} << 20;
  const std::unique_ptr<char[]> block(new char[kBytes]());
  ASSERT_EQ(block[kBytes - 1], 0);
  ASSERT_OK_AND_ASSIGN(const uint64_t after, ResidentBytes(getpid()));
  EXPECT_GE(after, before + kBytes / 2);
}

TEST(ResidentMemoryTest, KnowsNoProcessThatIsNotThere) {
  EXPECT_THAT(ResidentBytes(-5), StatusIs(absl::StatusCode::kNotFound));
}

TEST(ResidentMemoryTest, PagesThatAreMappedOfAnotherProcessAreCounted) {
  EXPECT_EQ(ReadOnlySharedBytesOfSmaps(
                "7f1-7f2 r--s 00000000 00:01 1042   /memfd:tensorhub-arena (deleted)\n"
                "Size:    2048 kB\nRss:     1024 kB\nPss:      512 kB\n"
                "7f3-7f4 rw-s 00000000 00:01 1043   /memfd:tensorhub-arena (deleted)\n"
                "Rss:      100 kB\n"
                "7f5-7f6 r--s 00000000 08:01 7      /usr/share/locale\n"
                "Rss:       10 kB\n"
                "7f7-7f8 r--s 00000000 00:01 1044   /memfd:tensorhub-arena (deleted)\n"
                "Rss:        1 kB\n"),
            1025u << 10);
  EXPECT_EQ(ReadOnlySharedBytesOfSmaps(""), 0);
}

}  // namespace
}  // namespace th
