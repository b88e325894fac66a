#include "th/client/data_address.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;

TEST(DataAddressTest, ParsesHostsAndPorts) {
  struct Case {
    const char* text;
    const char* host;
    const char* port;
  };
  for (const Case& each :
       {Case{"10.0.0.1:7077", "10.0.0.1", "7077"}, Case{"head-node:1", "head-node", "1"},
        Case{"[::1]:65535", "::1", "65535"}}) {
    ASSERT_OK_AND_ASSIGN(const HostPort parsed, ParseHostPort(each.text));
    EXPECT_EQ(parsed.host, each.host);
    EXPECT_EQ(parsed.port, each.port);
  }
}

TEST(DataAddressTest, RefusesWhatIsNoHostAndPort) {
  for (const char* text : {"", "host", ":7077", "host:", "host:0", "host:65536", "host:x", "::1:70",
                           "[]:70", "host:-1"}) {
    EXPECT_THAT(ParseHostPort(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

TEST(DataAddressTest, APortThatCannotBeIsNamed) {
  EXPECT_THAT(ParseHostPort("host:99999"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("has the port 99999: ports are 1 to 65535")));
  EXPECT_THAT(ParseDataAddress("10.0.0.7:65536"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has the port 65536")));
}

TEST(DataAddressTest, ADataAddressHasAPortOrTheSystemsChoice) {
  const std::pair<const char*, const char*> cases[] = {
      {"10.0.0.7", "10.0.0.7:0"}, {"10.0.0.7:4711", "10.0.0.7:4711"},
      {"0.0.0.0:0", "0.0.0.0:0"}, {"::1", "[::1]:0"},
      {"[::1]", "[::1]:0"},       {"[::1]:65535", "[::1]:65535"}};
  for (const auto& [text, listen] : cases) {
    EXPECT_THAT(ParseDataAddress(text), IsOkAndHolds(listen)) << text;
  }
  for (const char* text : {"", "moon", "10.0.0.7:x", "10.0.0.7:65536", "999.1.1.1", "a b", ":0",
                           "10.0.0.7:", "10.0.0.7:-1"}) {
    EXPECT_THAT(ParseDataAddress(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

TEST(DataAddressTest, WhoReachesALoopbackServerComesByLoopback) {
  EXPECT_THAT(LocalAddressTowards("127.0.0.1:9", absl::Seconds(30)), IsOkAndHolds("127.0.0.1"));
}

TEST(DataAddressTest, ANameThatCannotBeResolvedIsNamed) {
  const auto address = LocalAddressTowards("no-such-host.invalid:9", absl::Seconds(30));
  EXPECT_THAT(address, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(address.status().message()), HasSubstr("no-such-host.invalid"));
}

TEST(DataAddressTest, ThisMachineHasOneIdentity) {
  EXPECT_FALSE(MachineIdentity().empty());
  EXPECT_EQ(MachineIdentity(), MachineIdentity());
  EXPECT_FALSE(HostName().empty());
}

}  // namespace
}  // namespace th
