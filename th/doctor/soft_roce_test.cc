// The doctor in a machine with real RDMA devices: the kernel has to show them as the facts expect
// it to. Runs in //testing/rxe_machine.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/doctor/doctor.h"

namespace th::doctor {
namespace {

using ::testing::HasSubstr;

TEST(SoftRoceTest, DevicesPortsGidsAndMtuAreFound) {
  const struct {
    std::string check, found;
  } kExpected[] = {{"rdma-devices", "rxe0, rxe1"},
                   {"rdma-library", "a provider for each device"},
                   {"rdma-access", "may open"},
                   {"rdma-ports", "rxe1 port 1 ACTIVE"},
                   {"rdma-gids", "rxe1 port 1 0000:0000:0000:0000:0000:ffff:0a00:0002"},
                   {"rdma-mtu", "4096 bytes on rxe0 (nic0 has MTU 9000)"},
                   {"locked-memory", "no limit"}};
  const std::vector<Finding> findings = Examine({});
  for (const auto& expected : kExpected) {
    bool there = false;
    for (const Finding& finding : findings) {
      if (finding.check != expected.check) continue;
      there = true;
      EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.check << ": " << finding.found;
      EXPECT_THAT(finding.found, HasSubstr(expected.found)) << finding.check;
    }
    EXPECT_TRUE(there) << expected.check;
  }
}

}  // namespace
}  // namespace th::doctor
