#include "th/monitoring/host_name.h"

#include <fstream>

#include "gtest/gtest.h"

namespace th {
namespace {

TEST(HostNameTest, IsTheKernels) {
  std::string name;
  ASSERT_TRUE(std::ifstream("/proc/sys/kernel/hostname") >> name);
  EXPECT_EQ(HostName(), name);
}

}  // namespace
}  // namespace th
