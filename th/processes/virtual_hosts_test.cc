#include "th/processes/virtual_hosts.h"

#include <sched.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/processes/child_process.h"
#include "th/processes/raw_probe.h"
#include "th/processes/search_path.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr uint64_t kRate = 12'500'000;  // 100 Mbit/s

// On a thread that is in the namespace, and so are the threads that it starts.
void RunIn(int network_namespace, const std::function<void()>& step) {
  std::thread([&] {
    ASSERT_EQ(setns(network_namespace, CLONE_NEWNET), 0);
    step();
  }).join();
}

class VirtualHostsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto hosts = VirtualHosts::Create({.rates = {kRate, kRate}, .folder = ::testing::TempDir()});
    if (absl::IsFailedPrecondition(hosts.status())) GTEST_SKIP() << hosts.status().message();
    ASSERT_OK(hosts.status());
    hosts_ = *std::move(hosts);
  }

  // The output of `ip` on a host's interface.
  std::string InterfaceOf(size_t host) {
    const auto ip = FindTool("ip");
    EXPECT_OK(ip);
    auto shown = ChildProcess::Start({.name = "ip",
                                      .arguments = {*ip, "addr", "show", "eth0"},
                                      .network_namespace = hosts_->NamespaceOf(host)});
    EXPECT_OK(shown);
    EXPECT_OK((*shown)->AwaitEnd(kPatience));
    return absl::StrJoin((*shown)->ReadLines(), "\n");
  }

  // Seconds that `bytes` take from host 0 to host 1, the connection made at the start included.
  double SecondsFor(size_t bytes) {
    std::string content(bytes, 'x'), received(bytes, '?');
    const MemoryStream from({{.iov_base = content.data(), .iov_len = bytes}});
    const MemoryStream to({{.iov_base = received.data(), .iov_len = bytes}});
    std::unique_ptr<RawProbeSender> sender;
    RunIn(hosts_->NamespaceOf(0), [&] {
      auto started = RawProbeSender::Start(&from, {}, VirtualHosts::AddressOf(0));
      EXPECT_OK(started);
      sender = *std::move(started);
    });
    const absl::Time begin = MonotonicNow();
    RunIn(hosts_->NamespaceOf(1),
          [&] { EXPECT_OK(ReadRawProbe(to, sender->port(), 1, VirtualHosts::AddressOf(0))); });
    EXPECT_OK(sender->Await());
    EXPECT_EQ(received, content);
    return absl::ToDoubleSeconds(MonotonicNow() - begin);
  }

  std::unique_ptr<VirtualHosts> hosts_;
};

TEST_F(VirtualHostsTest, ReachEachOtherNoFasterThanTheirLinks) {
  EXPECT_THAT(InterfaceOf(1), HasSubstr("inet 10.77.0.2/24"));
  EXPECT_GE(SecondsFor(kRate / 4), 0.25 * 0.9);  // a first burst passes at once
}

TEST_F(VirtualHostsTest, ChangeTheirRate) {
  ASSERT_OK(hosts_->SetRate(1, kRate / 4));
  EXPECT_GE(SecondsFor(kRate / 4), 1.0 * 0.9);
  EXPECT_THAT(hosts_->SetRate(1, 0), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(VirtualHostsTest, LoseTheirCarrierWhenCutAndHaveItAgain) {
  EXPECT_THAT(InterfaceOf(1), Not(HasSubstr("NO-CARRIER")));
  ASSERT_OK(hosts_->Cut(1));
  EXPECT_THAT(InterfaceOf(1), HasSubstr("NO-CARRIER"));
  EXPECT_THAT(InterfaceOf(0), Not(HasSubstr("NO-CARRIER")));
  ASSERT_OK(hosts_->Restore(1));
  EXPECT_THAT(InterfaceOf(1), Not(HasSubstr("NO-CARRIER")));
  SecondsFor(1);
}

TEST_F(VirtualHostsTest, AreApartFromOtherNetworksWithTheSameAddresses) {
  ASSERT_OK_AND_ASSIGN(auto others,
                       VirtualHosts::Create({.rates = {kRate}, .folder = ::testing::TempDir()}));
  EXPECT_EQ(others->count(), 1u);
  SecondsFor(1);
}

TEST_F(VirtualHostsTest, ReachTheOtherSiteLaterAndNoFasterThanTheLinkBetween) {
  constexpr absl::Duration kLatency = absl::Milliseconds(40);
  ASSERT_OK_AND_ASSIGN(
      hosts_, VirtualHosts::Create({.rates = {kRate, kRate},
                                    .folder = ::testing::TempDir(),
                                    .second_site = SecondSite{
                                        .first_host = 1, .rate = kRate / 4, .latency = kLatency}}));
  EXPECT_GE(SecondsFor(1), 3 * absl::ToDoubleSeconds(kLatency)) << "connect, then the byte";
  EXPECT_GE(SecondsFor(kRate / 4), 1.0 * 0.9);
}

TEST(VirtualHostsOptionsTest, RefuseALongerWayThanCanBeHeld) {
  const auto hosts = VirtualHosts::Create(
      {.rates = {kRate, kRate},
       .folder = ::testing::TempDir(),
       .second_site = SecondSite{.first_host = 1, .rate = kRate, .latency = absl::Seconds(2)}});
  if (absl::IsFailedPrecondition(hosts.status())) GTEST_SKIP() << hosts.status().message();
  EXPECT_THAT(hosts, StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(VirtualHostsOptionsTest, RefuseNoHostTooManyAndRatesThatCannotBeShaped) {
  const std::vector<std::vector<uint64_t>> refused = {
      {}, std::vector<uint64_t>(kMaxVirtualHosts + 1, kRate), {0}, {kRate, kFastestLink + 1}};
  for (const std::vector<uint64_t>& rates : refused) {
    EXPECT_THAT(VirtualHosts::Create({.rates = rates, .folder = ::testing::TempDir()}),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace th
