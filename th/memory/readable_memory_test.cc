#include "th/memory/readable_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::HasSubstr;

// Some pages, private or of a file.
class Pages {
 public:
  explicit Pages(size_t count, int fd = -1)
      : bytes_(count * kPage),
        at_(static_cast<char*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                                    fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0))) {
    EXPECT_NE(at_, MAP_FAILED);
  }
  ~Pages() { munmap(at_, bytes_); }
  char* page(size_t index) const { return at_ + index * kPage; }

  static constexpr size_t kPage = 4096;

 private:
  const size_t bytes_;
  char* const at_;
};

TEST(ReadableMemoryTest, WhatTheProcessHasCanBeRead) {
  const Pages pages(3);
  std::vector<char> heap(100'000);
  char stack[10] = {};
  static const char constant[] = "in the program's own file";
  EXPECT_FALSE(FindUnreadable({{pages.page(0), 3 * Pages::kPage},
                               {heap.data(), heap.size()},
                               {stack, sizeof(stack)},
                               {constant, sizeof(constant)},
                               {nullptr, 0}})
                   .has_value());
}

TEST(ReadableMemoryTest, AProtectedPageInTheMiddleIsFound) {
  const Pages pages(3);
  ASSERT_EQ(mprotect(pages.page(1), Pages::kPage, PROT_NONE), 0);
  const std::optional<UnreadableRange> found =
      FindUnreadable({{pages.page(0), Pages::kPage}, {pages.page(0), 3 * Pages::kPage}});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->index, 1u);
  EXPECT_THAT(found->why, HasSubstr("PROT_NONE"));
  EXPECT_THAT(found->why, HasSubstr("byte 4096 of 12288"));
}

TEST(ReadableMemoryTest, MemoryThatWasGivenBackIsFound) {
  const Pages pages(3);
  ASSERT_EQ(munmap(pages.page(2), Pages::kPage), 0);
  const std::optional<UnreadableRange> found = FindUnreadable({{pages.page(1) + 5, Pages::kPage}});
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(found->why, HasSubstr("nothing is mapped at"));
  EXPECT_THAT(found->why, HasSubstr("byte 4091 of 4096"));
}

TEST(ReadableMemoryTest, AFileThatShrankIsFoundInTheFirstRangeThatLostBytes) {
  std::string path = ::testing::TempDir() + "/shrinks-XXXXXX";
  const int fd = mkstemp(path.data());
  ASSERT_GE(fd, 0);
  ASSERT_EQ(ftruncate(fd, 4 * Pages::kPage), 0);
  const Pages pages(4, fd);
  const std::vector<MemoryRange> ranges = {{pages.page(0), Pages::kPage},
                                           {pages.page(1), 2 * Pages::kPage},
                                           {pages.page(3), Pages::kPage}};
  EXPECT_FALSE(FindUnreadable(ranges).has_value());
  ASSERT_EQ(ftruncate(fd, 2 * Pages::kPage), 0);
  const std::optional<UnreadableRange> found = FindUnreadable(ranges);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->index, 1u);
  EXPECT_THAT(found->why, HasSubstr("has become shorter"));
  close(fd);
  unlink(path.c_str());
}

}  // namespace
}  // namespace th
