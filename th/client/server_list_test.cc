#include "th/client/server_list.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

// Long enough for a loaded machine to start a thread and read a file.
constexpr absl::Duration kPatience = absl::Seconds(30);

TEST(ServerListTest, OneAddressIsAList) {
  ASSERT_OK_AND_ASSIGN(ServerList servers, ServerList::Parse("a:1"));
  EXPECT_THAT(servers.all(), ElementsAre("a:1"));
  servers.MoveAfter({});
  EXPECT_EQ(servers.current(), "a:1");
}

TEST(ServerListTest, AddressesAreTriedInTurn) {
  ASSERT_OK_AND_ASSIGN(ServerList servers, ServerList::Parse("a:1,b:2,[::1]:3"));
  EXPECT_EQ(servers.current(), "a:1");
  for (const char* next : {"b:2", "[::1]:3", "a:1", "b:2"}) {
    servers.MoveAfter({.joined = false});
    EXPECT_EQ(servers.current(), next);
  }
}

TEST(ServerListTest, AFileServerThatHangsHoldsNobodyUp) {
  const std::string path = ::testing::TempDir() + "/hanging";
  std::ofstream(path) << "a:1\n";
  ASSERT_OK_AND_ASSIGN(ServerList servers, ServerList::Parse("file:" + path));
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);  // whoever opens it waits for a writer
  for (int i = 0; i < 3; ++i) {
    servers.ReadAgain();
    EXPECT_EQ(servers.current(), "a:1");
  }
  std::ofstream(path) << "b:2\n";
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (servers.current() == "a:1" && absl::Now() < deadline) servers.ReadAgain();
  EXPECT_EQ(servers.current(), "b:2");
}

TEST(ServerListTest, AFileServerThatHangsIsAwaitedForATime) {
  const std::string path = ::testing::TempDir() + "/hanging_at_first";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);  // whoever opens it waits for a writer
  EXPECT_THAT(AwaitServers("file:" + path, absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("was not read within 20ms")));
  std::ofstream(path) << "b:2\n";  // for the thread that is left behind
}

TEST(ServerListTest, AFileIsReadAgainAndFollowed) {
  const std::string path = ::testing::TempDir() + "/addresses", text = "file:" + path;
  std::ofstream(path) << "a:1\n";
  ASSERT_OK_AND_ASSIGN(ServerList servers, ServerList::Parse(text));
  EXPECT_EQ(servers.current(), "a:1");
  servers.ReadAgain(kPatience);
  EXPECT_EQ(servers.current(), "a:1");
  std::ofstream(path) << "b:2,c:3\n";
  servers.ReadAgain(kPatience);
  EXPECT_EQ(servers.current(), "b:2");
  servers.MoveAfter({.joined = false});
  EXPECT_EQ(servers.current(), "c:3");
  servers.ReadAgain(kPatience);  // the same list: on with the turn
  EXPECT_EQ(servers.current(), "c:3");
  for (const char* damaged : {"", "no address", "x:y:z"}) {
    std::ofstream(path) << damaged;
    servers.ReadAgain(kPatience);
    EXPECT_EQ(servers.current(), "c:3") << damaged;
  }
  std::filesystem::remove(path);
  servers.ReadAgain(kPatience);
  EXPECT_EQ(servers.current(), "c:3");
}

TEST(ServerListTest, AFileThatIsNotThereIsAwaited) {
  const std::string path = ::testing::TempDir() + "/later", text = "file:" + path;
  std::filesystem::remove(path);
  EXPECT_THAT(AwaitServers(text, absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(path)));
  std::thread server([&] {
    std::ofstream(path + ".new") << "a:1\n";
    std::filesystem::rename(path + ".new", path);
  });
  const absl::StatusOr<ServerList> servers = AwaitServers(text, absl::Seconds(30));
  server.join();
  ASSERT_OK(servers);
  EXPECT_EQ(servers->current(), "a:1");
}

TEST(ServerListTest, AFileThatIsTooLongIsNotReadInPart) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/too_long");
  std::ofstream(path) << "a:1," << std::string(kMaxServerFileBytes, ' ') << "b:2\n";
  EXPECT_THAT(ServerList::Parse(absl::StrCat("file:", path)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("more than 4096 bytes")));
}

TEST(ServerListTest, AFileNeedsAName) {
  EXPECT_OK(CheckServers("file:/not/there"));
  EXPECT_OK(CheckServers("a:1,b:2"));
  EXPECT_THAT(CheckServers("file:"), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(CheckServers("a"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ServerListTest, AServerThatWasJoinedIsTriedFirst) {
  ASSERT_OK_AND_ASSIGN(ServerList servers, ServerList::Parse("a:1,b:2"));
  servers.MoveAfter({.joined = false});
  servers.MoveAfter({.joined = true});
  EXPECT_EQ(servers.current(), "b:2");
}

TEST(ServerListTest, ARedirectIsFollowedAndLeft) {
  ASSERT_OK_AND_ASSIGN(ServerList servers, ServerList::Parse("a:1,b:2"));
  servers.MoveAfter({.redirect = "c:3"});
  EXPECT_EQ(servers.current(), "c:3");
  servers.MoveAfter({.joined = true});
  EXPECT_EQ(servers.current(), "c:3");
  servers.MoveAfter({.joined = false});
  EXPECT_EQ(servers.current(), "b:2");
}

TEST(ServerListTest, ARedirectThatIsNoAddressIsNotFollowed) {
  ASSERT_OK_AND_ASSIGN(ServerList servers, ServerList::Parse("a:1,b:2"));
  servers.MoveAfter({.redirect = "nonsense"});
  EXPECT_EQ(servers.current(), "b:2");
}

TEST(ServerListTest, ServersThatRedirectInACircleAreLeft) {
  ASSERT_OK_AND_ASSIGN(ServerList servers, ServerList::Parse("a:1,b:2"));
  for (size_t i = 0; i < kMaxRedirects; ++i) servers.MoveAfter({.redirect = "c:3"});
  EXPECT_EQ(servers.current(), "c:3");
  servers.MoveAfter({.redirect = "c:3"});
  EXPECT_EQ(servers.current(), "b:2");
}

TEST(ServerListTest, WhatIsNoListIsRefused) {
  for (const char* text : {"", ",", "a:1,", "a:1,b"}) {
    EXPECT_THAT(ServerList::Parse(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
  std::string many = "a:1";
  for (size_t i = 1; i <= kMaxServers; ++i) absl::StrAppend(&many, ",a:", i);
  EXPECT_THAT(ServerList::Parse(many),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 16")));
}

}  // namespace
}  // namespace th
