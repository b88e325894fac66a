#include "th/doctor/route_facts.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th::doctor {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::th::testing::StatusIs;
using Outcome = RouteFacts::Outcome;

// A port of loopback that is bound, and listens if asked.
class LocalPort {
 public:
  explicit LocalPort(bool listens) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    if (listens) {
      EXPECT_EQ(listen(fd_, 1), 0);
    }
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    number_ = absl::StrCat(ntohs(address.sin_port));
  }
  ~LocalPort() { close(fd_); }
  const std::string& number() const { return number_; }

 private:
  int fd_;
  std::string number_;
};

TEST(RouteFactsTest, AConnectionShowsItsWay) {
  const LocalPort port(/*listens=*/true);
  const RouteFacts route = ProbeRoute({"127.0.0.1", port.number()}, absl::Seconds(10));
  EXPECT_EQ(route.outcome, Outcome::kConnected) << route.error;
  EXPECT_EQ(route.target, "127.0.0.1:" + port.number());
  EXPECT_EQ(route.peer_address, "127.0.0.1");
  EXPECT_EQ(route.source_address, "127.0.0.1");
  EXPECT_EQ(route.net_device, "lo");
  EXPECT_GT(route.path_mtu, 1000u);
}

TEST(RouteFactsTest, AClosedPortIsRefused) {
  const LocalPort port(/*listens=*/false);
  const RouteFacts route = ProbeRoute({"127.0.0.1", port.number()}, absl::Seconds(10));
  EXPECT_EQ(route.outcome, Outcome::kRefused);
  EXPECT_THAT(route.error, HasSubstr("refused"));
  EXPECT_EQ(route.peer_address, "127.0.0.1");
}

TEST(RouteFactsTest, ANameThatNobodyKnowsIsUnknown) {
  const RouteFacts route = ProbeRoute({"no-such-host.invalid", "1"}, absl::Seconds(10));
  EXPECT_EQ(route.outcome, Outcome::kUnknownHost);
  EXPECT_THAT(route.error, Not(IsEmpty()));
}

TEST(RouteFactsTest, HostsAndPortsAreParsed) {
  const struct {
    std::string text, host, port;
  } kGood[] = {{"node7:7077", "node7", "7077"},
               {"10.0.0.1:1", "10.0.0.1", "1"},
               {"[fd00::7]:65535", "fd00::7", "65535"}};
  for (const auto& each : kGood) {
    ASSERT_OK_AND_ASSIGN(const HostAndPort parsed, ParseHostAndPort(each.text));
    EXPECT_EQ(parsed.host, each.host);
    EXPECT_EQ(parsed.port, each.port);
  }
  for (const char* wrong : {"", "node7", ":7077", "node7:", "node7:0", "node7:65536", "node7:http",
                            "fd00::7:1", "[]:1", "node7:-1", "node7:+1"}) {
    EXPECT_THAT(ParseHostAndPort(wrong),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("HOST:PORT")))
        << wrong;
  }
}

TEST(RouteFactsTest, AnAddressToListenOnMayLeaveOutHostAndPort) {
  ASSERT_OK_AND_ASSIGN(const HostAndPort all, ParseListenAddress(":0"));
  EXPECT_EQ(all.host, kAnyHost);
  EXPECT_EQ(all.port, "0");
  ASSERT_OK_AND_ASSIGN(const HostAndPort v6, ParseListenAddress("[::]:7099"));
  EXPECT_EQ(v6.host, "::");
  EXPECT_EQ(v6.port, "7099");
  for (const char* wrong : {"", "10.0.0.2", "10.0.0.2:", ":65536", "::1:7099", "[]:1"}) {
    EXPECT_THAT(ParseListenAddress(wrong),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[HOST]:PORT")))
        << wrong;
  }
}

}  // namespace
}  // namespace th::doctor
