#include "th/doctor/peer_answers.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "th/doctor/line_channel.h"
#include "th/doctor/peer_facts.h"
#include "th/doctor/sockets.h"
#include "th/transfer/monotonic_clock.h"

namespace th::doctor {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr absl::Duration kShort = absl::Milliseconds(50);

class PeerAnswersTest : public ::testing::Test {
 protected:
  void Start(const AnswerLimits& limits = {}) {
    PeerAnswersOptions options = {.sources = {.version = "v",
                                              .read_facts = [] { return HostFacts(); },
                                              .examine = [] { return std::vector<Finding>(); }},
                                  .limits = limits,
                                  .on_peer = [this](const AnsweredPeer& peer) { Note(peer); }};
    auto answers = PeerAnswers::Start({"127.0.0.1", "0"}, std::move(options));
    ASSERT_TRUE(answers.ok()) << answers.status();
    answers_ = *std::move(answers);
  }

  LineChannel Connected() {
    const SocketAddress address = *NumericSocketAddress("127.0.0.1", answers_->port());
    stream::Socket socket = MakeTcpSocket(address);
    EXPECT_EQ(Connect(socket.fd(), address, {.deadline = MonotonicNow() + kPatience}), 0);
    return LineChannel(std::move(socket));
  }
  // A connection that has been greeted; `token` is that of its session.
  LineChannel Greeted(std::string* token = nullptr) {
    LineChannel channel = Connected();
    const nlohmann::json answer = Ask(channel, Greeting());
    EXPECT_TRUE(CheckGreeting(answer).ok()) << answer;
    if (token != nullptr) *token = PeerText(answer, "token");
    return channel;
  }
  static nlohmann::json Ask(LineChannel& channel, const nlohmann::json& question) {
    EXPECT_TRUE(channel.Send(question, kPatience).ok());
    return channel.Receive(kPatience).value_or(nlohmann::json());
  }
  static void Write(const LineChannel& channel, const std::string& bytes) {
    EXPECT_EQ(send(channel.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  // The next peer that was reported.
  AnsweredPeer NextPeer() {
    absl::MutexLock lock(&mutex_);
    const auto any = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !peers_.empty(); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&any), kPatience));
    if (peers_.empty()) return {};
    AnsweredPeer peer = peers_.front();
    peers_.erase(peers_.begin());
    return peer;
  }

  std::unique_ptr<PeerAnswers> answers_;

 private:
  void Note(const AnsweredPeer& peer) {
    absl::MutexLock lock(&mutex_);
    peers_.push_back(peer);
  }

  absl::Mutex mutex_;
  std::vector<AnsweredPeer> peers_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(PeerAnswersTest, AnHttpClientIsToldWhatListensHere) {
  Start();
  LineChannel channel = Connected();
  Write(channel, "GET /metrics HTTP/1.1\r\nHost: node7\r\n\r\n");
  const auto answer = channel.Receive(kPatience);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(PeerText(*answer, "error"), HasSubstr("answers th doctor --peer alone"));
  const AnsweredPeer peer = NextPeer();
  EXPECT_THAT(peer.error, HasSubstr("GET /metrics"));
  EXPECT_EQ(peer.address, "127.0.0.1");
}

TEST_F(PeerAnswersTest, AConnectionThatSaysNothingIsNotReported) {
  Start();
  { const LineChannel probe = Connected(); }  // as th doctor --to makes one
  { const LineChannel channel = Greeted(); }
  const AnsweredPeer peer = NextPeer();
  EXPECT_TRUE(peer.spoke);
  EXPECT_EQ(peer.error, "");
}

TEST_F(PeerAnswersTest, ASilentConnectionIsGivenUpForTheNext) {
  Start({.greeting = kShort});
  const LineChannel silent = Connected();
  LineChannel next = Greeted();
  EXPECT_TRUE(Ask(next, {{"ask", kAskTime}}).contains("sent_us"));
}

TEST_F(PeerAnswersTest, AnotherProtocolIsToldBoth) {
  Start();
  nlohmann::json greeting = Greeting();
  greeting["protocol"] = 7;
  LineChannel channel = Connected();
  EXPECT_THAT(PeerText(Ask(channel, greeting), "error"), HasSubstr("protocol 7"));
}

TEST_F(PeerAnswersTest, WhatIsNoQuestionEndsTheSession) {
  Start();
  for (const char* line : {"[]\n", "{\"ask\": }\n", "\x01\n"}) {
    LineChannel channel = Greeted();
    Write(channel, line);
    const auto answer = channel.Receive(kPatience);
    ASSERT_TRUE(answer.ok()) << line;
    EXPECT_FALSE(PeerText(*answer, "error").empty()) << line;
    EXPECT_TRUE(absl::IsUnavailable(channel.Receive(kPatience).status())) << line;
  }
}

TEST_F(PeerAnswersTest, QuestionsOfALaterReleaseAreAnsweredWithAnError) {
  Start();
  LineChannel channel = Greeted();
  for (const nlohmann::json& ask : {nlohmann::json("later"), nlohmann::json(7)}) {
    EXPECT_THAT(PeerText(Ask(channel, {{"ask", ask}}), "error"), HasSubstr("unknown"));
  }
  EXPECT_TRUE(Ask(channel, {{"ask", kAskTime}}).contains("sent_us"));
  for (int i = 0; i < kMostQuestions; ++i) {
    const nlohmann::json answer = Ask(channel, {{"ask", absl::StrCat("later", i)}});
    if (answer.contains("magic")) return;  // its last words
  }
  ADD_FAILURE() << "it answers without end";
}

TEST_F(PeerAnswersTest, EachQuestionIsAnsweredABoundedNumberOfTimes) {
  Start();
  LineChannel channel = Greeted();
  for (int round = 0; round < kMostClockRounds; ++round) {
    ASSERT_TRUE(Ask(channel, {{"ask", kAskTime}}).contains("received_us"));
  }
  EXPECT_TRUE(Ask(channel, {{"ask", kAskChecks}}).contains("checks"));
  EXPECT_THAT(PeerText(Ask(channel, {{"ask", kAskChecks}}), "error"), HasSubstr("too often"));
  EXPECT_THAT(NextPeer().error, HasSubstr("too often"));
}

TEST_F(PeerAnswersTest, ItConnectsToNoHostButThePeers) {
  Start();
  const absl::StatusOr<stream::Socket> elsewhere =
      ListenOn(*NumericSocketAddress("127.0.0.2", 0), 1);
  ASSERT_TRUE(elsewhere.ok()) << elsewhere.status();
  const uint16_t port = LocalEnd(elsewhere->fd()).Port();
  LineChannel channel = Greeted();
  const nlohmann::json answer =
      Ask(channel,
          {{"ask", kAskConnect}, {"port", port}, {"host", "127.0.0.2"}, {"address", "127.0.0.2"}});
  EXPECT_EQ(answer["connected"], false);
  EXPECT_THAT(PeerText(answer, "error"), HasSubstr("refused"));
  EXPECT_EQ(AwaitReady(elsewhere->fd(), POLLIN, {.deadline = MonotonicNow()}), ETIMEDOUT);
}

TEST_F(PeerAnswersTest, APortThatIsNoneIsNotConnectedTo) {
  Start();
  for (const nlohmann::json& port :
       {nlohmann::json(), nlohmann::json(0), nlohmann::json(65536), nlohmann::json("22")}) {
    LineChannel channel = Greeted();
    EXPECT_EQ(Ask(channel, {{"ask", kAskConnect}, {"port", port}})["connected"], false);
  }
}

TEST_F(PeerAnswersTest, WithoutASecondConnectionThereIsNoRate) {
  Start({.second = kShort});
  LineChannel channel = Greeted();
  const nlohmann::json answer = Ask(channel, {{"ask", kAskReceive}});
  EXPECT_THAT(PeerText(answer, "error"), HasSubstr("no second connection came"));
}

TEST_F(PeerAnswersTest, AnotherPeerInTheMiddleIsToldToComeAgain) {
  Start();
  std::string token;
  LineChannel channel = Greeted(&token);
  ASSERT_TRUE(channel.Send({{"ask", kAskReceive}, {"duration_ms", 1}}, kPatience).ok());
  LineChannel other = Connected();
  EXPECT_THAT(PeerText(Ask(other, Greeting()), "error"), HasSubstr("try again"));
  {
    LineChannel second = Connected();
    nlohmann::json first = Greeting();
    first["token"] = token;
    EXPECT_EQ(Ask(second, first)["ready"], true);
  }
  const auto answer = channel.Receive(kPatience);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ((*answer)["bytes"], 0);
  EXPECT_THAT(PeerText(*answer, "error"), HasSubstr("closed"));
}

TEST_F(PeerAnswersTest, ItSendsNoLongerThanItsLimitsWhateverIsAsked) {
  Start({.bulk_duration = absl::Milliseconds(5), .bulk_stall = absl::Milliseconds(5)});
  std::string token;
  LineChannel channel = Greeted(&token);
  const nlohmann::json question = {
      {"ask", kAskSend}, {"duration_ms", 1'000'000}, {"stall_ms", 1'000'000}};
  ASSERT_TRUE(channel.Send(question, kPatience).ok());
  LineChannel second = Connected();
  nlohmann::json first = Greeting();
  first["token"] = token;
  EXPECT_TRUE(second.Send(first, kPatience).ok());  // reads nothing
  const auto answer = channel.Receive(kPatience);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(PeerText(*answer, "error"), "");
}

TEST_F(PeerAnswersTest, ItsEndEndsWhatIsUnderWay) {
  Start();
  LineChannel channel = Greeted();
  ASSERT_TRUE(channel.Send({{"ask", kAskSend}}, kPatience).ok());  // waits for a second connection
  answers_.reset();
  const auto answer = channel.Receive(kPatience);
  EXPECT_TRUE(!answer.ok() || answer->contains("error"));
}

TEST(PeerAnswersStartTest, AnAddressThatCannotBeListenedOnIsNamedWithAdvice) {
  const auto name = PeerAnswers::Start({"node7.invalid", "7099"}, {});
  EXPECT_TRUE(absl::IsInvalidArgument(name.status()));
  EXPECT_THAT(std::string(name.status().message()), HasSubstr("numeric address"));
  const absl::StatusOr<stream::Socket> taken = ListenOn(*NumericSocketAddress("127.0.0.1", 0), 1);
  ASSERT_TRUE(taken.ok());
  const uint16_t port = LocalEnd(taken->fd()).Port();
  const auto answers = PeerAnswers::Start({"127.0.0.1", absl::StrCat(port)}, {});
  EXPECT_TRUE(absl::IsUnavailable(answers.status()));
  EXPECT_THAT(std::string(answers.status().message()),
              HasSubstr(absl::StrCat("127.0.0.1:", port, ": Address already in use")));
}

}  // namespace
}  // namespace th::doctor
