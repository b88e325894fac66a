#include "th/doctor/line_channel.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th::doctor {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr absl::Duration kShort = absl::Milliseconds(20);

// A channel, and the other end of its connection.
struct ChannelPair {
  ChannelPair() {
    std::array<int, 2> ends = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    channel_.emplace(stream::Socket(ends[0]));
    other_ = stream::Socket(ends[1]);
  }
  void Write(const std::string& bytes) {
    EXPECT_EQ(write(other_.fd(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  void CloseOther() { other_ = stream::Socket(); }

  std::optional<LineChannel> channel_;
  stream::Socket other_;
};

class LineChannelTest : public ::testing::Test, protected ChannelPair {};

TEST_F(LineChannelTest, ObjectsComeInTheirOrder) {
  LineChannel other(std::move(other_));
  ASSERT_OK(other.Send({{"a", 1}}, kPatience));
  ASSERT_OK(other.Send({{"b", "\xff"}}, kPatience));  // no UTF-8: replaced
  ASSERT_OK_AND_ASSIGN(const nlohmann::json first, channel_->Receive(kPatience));
  EXPECT_EQ(first, (nlohmann::json{{"a", 1}}));
  ASSERT_OK_AND_ASSIGN(const nlohmann::json second, channel_->Receive(kPatience));
  EXPECT_EQ(second["b"], "\xef\xbf\xbd");
  EXPECT_TRUE(channel_->heard());
  EXPECT_FALSE(other.heard());
}

TEST_F(LineChannelTest, SilenceEndsWithTheTimeout) {
  EXPECT_THAT(channel_->Receive(kShort), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(LineChannelTest, AnEndThatClosesIsUnavailable) {
  CloseOther();
  EXPECT_THAT(channel_->Receive(kPatience),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("closed")));
  EXPECT_THAT(channel_->Send({{"a", 1}}, kPatience), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(LineChannelTest, WhatIsNoObjectIsShown) {
  for (const std::string garbage :
       {"SSH-2.0-OpenSSH_9.2\r\n", "{\"a\": }\n", "[1]\n", "7\n", "{}x\n", "{\"a\": \"\xff\"}\n"}) {
    ChannelPair pair;
    pair.Write(garbage);
    EXPECT_THAT(pair.channel_->Receive(kPatience),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no line")))
        << garbage;
  }
}

TEST_F(LineChannelTest, AForeignProtocolIsNoticedAtItsFirstByte) {
  Write(std::string("\0\0\x12\x04", 4));  // as a gRPC server begins
  EXPECT_THAT(channel_->Receive(kPatience),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\\x00")));
}

TEST_F(LineChannelTest, AnUnfinishedLineIsShown) {
  Write("{\"magic\"");
  EXPECT_THAT(channel_->Receive(kShort),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("{\"magic\"")));
  CloseOther();
  EXPECT_THAT(channel_->Receive(kPatience),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("{\"magic\"")));
}

TEST_F(LineChannelTest, ALineWithoutAnEndIsCutOff) {
  LineChannel other(std::move(other_));
  std::thread sender([&other] {
    (void)other.Send({{"a", std::string(2 * LineChannel::kMaxLineBytes, 'x')}}, kPatience);
  });
  EXPECT_THAT(channel_->Receive(kPatience), StatusIs(absl::StatusCode::kInvalidArgument));
  channel_.reset();  // the sender's wait ends
  sender.join();
}

TEST_F(LineChannelTest, NestingIsBounded) {
  Write("{\"a\": " + std::string(20'000, '[') + std::string(20'000, ']') + "}\n");
  EXPECT_THAT(channel_->Receive(kPatience), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(LineChannelTest, AnEndThatReadsNothingIsNotWaitedForForever) {
  EXPECT_THAT(channel_->Send({{"a", std::string(8 << 20, 'x')}}, kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(LineChannelTest, TheStopEndsAWait) {
  const stream::Socket stop(eventfd(1, EFD_CLOEXEC));
  LineChannel stopped(std::move(other_), stop.fd());
  EXPECT_THAT(stopped.Receive(kPatience), StatusIs(absl::StatusCode::kCancelled));
}

}  // namespace
}  // namespace th::doctor
