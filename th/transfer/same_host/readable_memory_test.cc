#include "th/transfer/same_host/readable_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th::same_host {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FindUnreadableTest : public ::testing::Test {
 protected:
  static constexpr size_t kPages = 5;

  FindUnreadableTest()
      : begin_(static_cast<char*>(mmap(nullptr, kPages * page_, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~FindUnreadableTest() override { munmap(begin_, kPages * page_); }
  // A page without permissions stands for what a driver maps: the kernel refuses to read both.
  void Forbid(size_t page) { ASSERT_EQ(mprotect(begin_ + page * page_, page_, PROT_NONE), 0); }
  MemoryRegion Pages(size_t first, size_t end) const {
    return {.address = begin_ + first * page_, .bytes = (end - first) * page_};
  }
  size_t ResidentPages() const {
    unsigned char resident[kPages] = {};
    EXPECT_EQ(mincore(begin_, kPages * page_, resident), 0);
    size_t count = 0;
    for (const unsigned char page : resident) count += page & 1;
    return count;
  }

  const size_t page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char* const begin_;
};

TEST_F(FindUnreadableTest, OrdinaryMemoryIsNot) {
  EXPECT_THAT(FindUnreadable(std::vector<MemoryRegion>{Pages(0, 5), {}}), IsEmpty());
}

// The ends can be read.
TEST_F(FindUnreadableTest, AMappingInTheMiddleIsFound) {
  Forbid(2);
  EXPECT_THAT(FindUnreadable(std::vector<MemoryRegion>{Pages(0, 2), Pages(1, 4), Pages(3, 5)}),
              ElementsAre(Pages(1, 4)));
}

TEST_F(FindUnreadableTest, SoAreTheEnds) {
  Forbid(0);
  Forbid(4);
  EXPECT_THAT(FindUnreadable(std::vector<MemoryRegion>{Pages(0, 2), Pages(1, 4), Pages(3, 5)}),
              ElementsAre(Pages(0, 2), Pages(3, 5)));
}

TEST_F(FindUnreadableTest, OnePageOfAMappingIsTouched) {
  ASSERT_EQ(ResidentPages(), 0);
  EXPECT_THAT(FindUnreadable(std::vector<MemoryRegion>{Pages(1, 3), Pages(3, 5), Pages(0, 5)}),
              IsEmpty());
  EXPECT_LE(ResidentPages(), 1);
}

TEST_F(FindUnreadableTest, MemoryOfDevicesIsNotTried) {
  Forbid(0);
  MemoryRegion device = Pages(0, 1);
  device.kind = MemoryKind::kDevice;
  EXPECT_THAT(FindUnreadable(std::vector<MemoryRegion>{device}), IsEmpty());
}

}  // namespace
}  // namespace th::same_host
