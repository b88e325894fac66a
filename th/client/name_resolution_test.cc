#include "th/client/name_resolution.h"

#include <sys/socket.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/synchronization/barrier.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

TEST(NameResolutionTest, ANumericHostAsksNobody) {
  const HostResolver nobody = [](const HostPort&, const addrinfo&, addrinfo**) {
    ADD_FAILURE();
    return EAI_FAIL;
  };
  EXPECT_OK(ResolveHost({"127.0.0.1", "7"}, SOCK_STREAM, absl::ZeroDuration(), nobody).status());
  EXPECT_OK(ResolveHost({"::1", "7"}, SOCK_STREAM, absl::ZeroDuration(), nobody).status());
}

TEST(NameResolutionTest, TheResolversAnswerIsHandedOn) {
  const HostResolver knows = [](const HostPort& target, const addrinfo& hints, addrinfo** found) {
    EXPECT_EQ(target.host, "somewhere");
    return getaddrinfo("127.0.0.1", target.port.c_str(), &hints, found);
  };
  ASSERT_OK_AND_ASSIGN(const Addresses found, ResolveHost({"somewhere", "7"}, SOCK_STREAM,
                                                          absl::InfiniteDuration(), knows));
  EXPECT_EQ(found->ai_family, AF_INET);
  const HostResolver does_not = [](const HostPort&, const addrinfo&, addrinfo**) {
    return EAI_NONAME;
  };
  EXPECT_THAT(
      ResolveHost({"nowhere", "7"}, SOCK_STREAM, absl::InfiniteDuration(), does_not).status(),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("not known")));
}

TEST(NameResolutionTest, AResolverThatDoesNotAnswerHoldsUpNobodyForLong) {
  const auto end = std::make_shared<absl::Notification>();
  const HostResolver hangs = [end](const HostPort&, const addrinfo&, addrinfo**) {
    end->WaitForNotification();
    return EAI_AGAIN;
  };
  for (int i = 0; i < kMaxLookUpsLeftBehind; ++i) {
    EXPECT_THAT(ResolveHost({"nowhere", "7"}, SOCK_STREAM, absl::ZeroDuration(), hangs).status(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has not answered within 0")));
  }
  EXPECT_THAT(ResolveHost({"nowhere", "7"}, SOCK_STREAM, absl::ZeroDuration(), hangs).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("have not been answered yet")));
  end->Notify();
  // Those that have ended do not count any more.
  const HostResolver does_not = [](const HostPort&, const addrinfo&, addrinfo**) {
    return EAI_NONAME;
  };
  absl::Status status;
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!absl::StrContains(status.message(), "not known") && absl::Now() < deadline) {
    status = ResolveHost({"nowhere", "7"}, SOCK_STREAM, absl::Seconds(30), does_not).status();
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("not known")));
}

TEST(NameResolutionTest, LookUpsThatAreWaitedForAreNotCountedAsLeftBehind) {
  constexpr int kLookUps = kMaxLookUpsLeftBehind + 1;
  absl::Barrier* all_ask = new absl::Barrier(kLookUps);
  const HostResolver together = [all_ask](const HostPort&, const addrinfo&, addrinfo**) {
    if (all_ask->Block()) delete all_ask;
    return EAI_NONAME;
  };
  std::vector<std::thread> callers;
  callers.reserve(kLookUps);
  for (int i = 0; i < kLookUps; ++i) {
    callers.emplace_back([&] {
      EXPECT_THAT(ResolveHost({"nowhere", "7"}, SOCK_STREAM, absl::Seconds(30), together).status(),
                  StatusIs(absl::StatusCode::kUnavailable, HasSubstr("not known")));
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace th
