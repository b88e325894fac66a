#include "th/transfer/ibverbs/mapped_check.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th::ibverbs {
namespace {

using ::testing::HasSubstr;
using ::th::testing::IsOk;
using ::th::testing::StatusIs;

const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));

// Pages of memory that nobody has touched.
class Pages {
 public:
  explicit Pages(size_t count)
      : mapped_(count, true),
        begin_(static_cast<char*>(mmap(nullptr, count * kPage, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Pages() {
    for (size_t page = 0; page < mapped_.size(); ++page) {
      if (mapped_[page]) Unmap(page);  // what was unmapped may be somebody else's by now
    }
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  char* at(size_t page, size_t offset = 0) const { return begin_ + page * kPage + offset; }
  void Unmap(size_t page) {
    munmap(at(page), kPage);
    mapped_[page] = false;
  }
  MemoryRegion Region(size_t page, size_t offset, size_t bytes) const {
    return {.address = at(page, offset), .bytes = bytes};
  }

 private:
  std::vector<bool> mapped_;
  char* const begin_;
};

TEST(CheckMappedTest, EveryPageOfARangeCounts) {
  Pages pages(5);
  const std::vector<MemoryRegion> all = {pages.Region(0, 10, 5 * kPage - 20)};
  EXPECT_THAT(CheckMapped(all), IsOk());
  pages.Unmap(2);
  EXPECT_THAT(CheckMapped(all),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(absl::StrCat(
                           "0x", absl::Hex(reinterpret_cast<uintptr_t>(pages.at(0, 10)))))));
}

TEST(CheckMappedTest, PagesBetweenRangesDoNot) {
  Pages pages(5);
  pages.Unmap(2);
  EXPECT_THAT(CheckMapped({pages.Region(0, 0, 2 * kPage), pages.Region(3, 0, 2 * kPage)}), IsOk());
  EXPECT_THAT(CheckMapped({pages.Region(1, kPage - 1, 2)}),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(CheckMappedTest, NoPageIsTouched) {
  const Pages pages(5);
  unsigned char resident[5] = {1, 1, 1, 1, 1};
  EXPECT_THAT(CheckMapped({pages.Region(0, 0, 5 * kPage)}), IsOk());
  ASSERT_EQ(mincore(pages.at(0), 5 * kPage, resident), 0);
  for (const unsigned char page : resident) EXPECT_EQ(page & 1, 0);
}

TEST(CheckMappedTest, EmptyRegionsAndThoseOfDevicesAreNotAskedFor) {
  Pages pages(1);
  MemoryRegion device = pages.Region(0, 0, kPage);
  device.kind = MemoryKind::kDevice;
  const MemoryRegion empty = pages.Region(0, 0, 0);
  pages.Unmap(0);
  EXPECT_THAT(CheckMapped({device, empty}), IsOk());
}

}  // namespace
}  // namespace th::ibverbs
