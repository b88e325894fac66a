#include "th/monitoring/listen_address.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

struct GoodAddress {
  const char* text;
  const char* host;
  uint16_t port;
};

class GoodAddressTest : public ::testing::TestWithParam<GoodAddress> {};

TEST_P(GoodAddressTest, IsParsedAndPrintedBack) {
  ASSERT_OK_AND_ASSIGN(const ListenAddress address, ParseListenAddress(GetParam().text));
  EXPECT_EQ(address.host, GetParam().host);
  EXPECT_EQ(address.port, GetParam().port);
  EXPECT_EQ(address.ToString(), GetParam().text);
}

INSTANTIATE_TEST_SUITE_P(ListenAddress, GoodAddressTest,
                         ::testing::Values(GoodAddress{"127.0.0.1:7077", "127.0.0.1", 7077},
                                           GoodAddress{"0.0.0.0:0", "0.0.0.0", 0},
                                           GoodAddress{"localhost:65535", "localhost", 65535},
                                           GoodAddress{"[::1]:80", "::1", 80}));

class BadAddressTest : public ::testing::TestWithParam<const char*> {};

TEST(ListenAddressTest, EveryAddressOfANameHasTheSamePort) {
  ASSERT_OK_AND_ASSIGN(const std::vector<BoundSocket> sockets,
                       BindAndListenEverywhere({"localhost", 0}));
  ASSERT_FALSE(sockets.empty());
  for (const BoundSocket& socket : sockets) {
    EXPECT_GT(socket.port, 0);
    EXPECT_EQ(socket.port, sockets.front().port);
    close(socket.fd);
  }
}

TEST(ListenAddressTest, APortThatIsTakenIsAnErrorEverywhere) {
  ASSERT_OK_AND_ASSIGN(const BoundSocket taken, BindAndListen({"127.0.0.1", 0}));
  EXPECT_THAT(BindAndListenEverywhere({"127.0.0.1", taken.port}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("127.0.0.1")));
  close(taken.fd);
}

TEST_P(BadAddressTest, IsRefusedWithAnExample) {
  EXPECT_THAT(ParseListenAddress(GetParam()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("127.0.0.1:7077")));
}

INSTANTIATE_TEST_SUITE_P(ListenAddress, BadAddressTest,
                         ::testing::Values("", "7077", ":7077", "host", "host:", "host:65536",
                                           "host:-1", "host:port", "::1:80", "[::1:80", "[]:80"));

TEST(BindAndListenTest, TheSystemChoosesAPort) {
  ASSERT_OK_AND_ASSIGN(const BoundSocket bound, BindAndListen({"127.0.0.1", 0}));
  EXPECT_NE(bound.port, 0);
  close(bound.fd);
}

TEST(BindAndListenTest, ATakenPortIsNamed) {
  ASSERT_OK_AND_ASSIGN(const BoundSocket bound, BindAndListen({"127.0.0.1", 0}));
  EXPECT_THAT(BindAndListen({"127.0.0.1", bound.port}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("already in use"), HasSubstr("choose another port"))));
  close(bound.fd);
}

TEST(BindAndListenTest, AForeignAddressIsNamedWithWhatToDo) {
  // TEST-NET-1 belongs to nobody.
  EXPECT_THAT(BindAndListen({"192.0.2.1", 0}).status().message(),
              AllOf(HasSubstr("192.0.2.1:0"), HasSubstr("name one of its own")));
}

}  // namespace
}  // namespace th
