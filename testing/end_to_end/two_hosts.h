// A fixture of two virtual hosts that a fast network joins. Its tests are skipped where there are
// no virtual hosts.
#ifndef TESTING_END_TO_END_TWO_HOSTS_H_
#define TESTING_END_TO_END_TWO_HOSTS_H_

#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/processes/virtual_hosts.h"

namespace th::testing {

class TwoHostsTest : public ::testing::Test {
 protected:
  // A derived SetUp goes on only if `hosts_` is there after this.
  void SetUp() override {
    const char* folder = getenv("TEST_TMPDIR");
    auto hosts = VirtualHosts::Create(
        {.rates = {kFastestLink, kFastestLink}, .folder = folder == nullptr ? "/tmp" : folder});
    if (absl::StartsWith(hosts.status().message(), kNoVirtualHosts)) {
      GTEST_SKIP() << hosts.status().message();
    }
    ASSERT_OK(hosts.status());
    hosts_ = *std::move(hosts);
  }

  std::unique_ptr<VirtualHosts> hosts_;
};

}  // namespace th::testing

#endif  // TESTING_END_TO_END_TWO_HOSTS_H_
