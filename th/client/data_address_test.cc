#include "th/client/data_address.h"

#include <string>
#include <utility>
#include <vector>

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
  EXPECT_THAT(ParseDataAddress("10.0.0.7:65536", {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has the port 65536")));
}

// As the system lists them.
std::vector<LocalAddress> Interfaces() {
  return {{"lo", "127.0.0.1"},      {"eth0", "192.168.1.7"},
          {"ib0", "10.1.2.3"},      {"lo", "::1"},
          {"eth0", "fe80::7%eth0"}, {"eth0", "fd00::7"},
          {"eth1", "fe80::8%eth1"}, {"eth2", "fe80::9%eth2"},
          {"eth2", "fd00:2::9"}};
}

TEST(DataAddressTest, ADataAddressHasAPortOrTheSystemsChoice) {
  const std::pair<const char*, const char*> cases[] = {{"10.0.0.7", "10.0.0.7:0"},
                                                       {"10.0.0.7:4711", "10.0.0.7:4711"},
                                                       {"0.0.0.0:0", "0.0.0.0:0"},
                                                       {"::1", "[::1]:0"},
                                                       {"[::1]", "[::1]:0"},
                                                       {"[::1]:65535", "[::1]:65535"},
                                                       {"10.0.0.7:4711-4720", "10.0.0.7:4711-4720"},
                                                       {"[::1]:1-2", "[::1]:1-2"}};
  for (const auto& [text, listen] : cases) {
    ASSERT_OK_AND_ASSIGN(const DataAddress address, ParseDataAddress(text, {}));
    EXPECT_EQ(address.ToString(), listen) << text;
  }
  for (const char* text :
       {"", "10.0.0.7:x", "10.0.0.7:65536", "999.1.1.1", "a b", ":0", "10.0.0.7:", "10.0.0.7:-1",
        "10.0.0.7:4720-4711", "10.0.0.7:0-9", "10.0.0.7:1-2-3", "10.0.0.7:1-65536"}) {
    EXPECT_THAT(ParseDataAddress(text, Interfaces()), StatusIs(absl::StatusCode::kInvalidArgument))
        << text;
  }
}

TEST(DataAddressTest, AnInterfaceOrANetworkStandsForAnAddressOfThisMachine) {
  const std::pair<const char*, const char*> cases[] = {
      {"eth0", "192.168.1.7:0"},           {"ib0:4711", "10.1.2.3:4711"},
      {"eth2:1-9", "[fd00:2::9]:1-9"},     {"10.0.0.0/8", "10.1.2.3:0"},
      {"192.168.1.6/31", "192.168.1.7:0"}, {"10.1.2.3/32:5", "10.1.2.3:5"},
      {"0.0.0.0/0", "127.0.0.1:0"},        {"fd00::/16", "[fd00::7]:0"},
      {"[fd00:2::/32]:7", "[fd00:2::9]:7"}};
  for (const auto& [text, listen] : cases) {
    ASSERT_OK_AND_ASSIGN(const DataAddress address, ParseDataAddress(text, Interfaces()));
    EXPECT_EQ(address.ToString(), listen) << text;
  }
  for (const char* text : {"eth1", "eth9", "moon", "172.16.0.0/12", "192.168.1.8/31"}) {
    EXPECT_THAT(ParseDataAddress(text, Interfaces()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("which has lo 127.0.0.1, eth0 192.168.1.7, ib0 10.1.2.3")))
        << text;
  }
  for (const char* text : {"10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "fd00::/129", "moon/8"}) {
    EXPECT_THAT(ParseDataAddress(text, Interfaces()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("10.1.0.0/16:4711-4720")))
        << text;
  }
}

TEST(DataAddressTest, LoopbackIsAmongTheLocalAddresses) {
  ASSERT_OK_AND_ASSIGN(const DataAddress address, ParseDataAddress("lo", LocalAddresses()));
  EXPECT_EQ(address.host, "127.0.0.1");
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
}

}  // namespace
}  // namespace th
