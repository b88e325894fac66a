#include "th/doctor/peer_probe.h"

#include <poll.h>
#include <sys/socket.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "th/doctor/line_channel.h"
#include "th/doctor/peer_answers.h"
#include "th/doctor/peer_facts.h"
#include "th/doctor/sockets.h"
#include "th/transfer/monotonic_clock.h"

namespace th::doctor {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using Outcome = PeerFacts::Outcome;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr absl::Duration kShort = absl::Milliseconds(50);

PeerProbeOptions QuickOptions() {
  return {.version = "0.1.0 (commit a)",
          .connect_timeout = kPatience,
          .answer_timeout = kPatience,
          .checks_timeout = kPatience,
          .bulk = {.duration = kShort, .stall = kPatience}};
}

// A peer of loopback that does what a test wants.
class ScriptedPeer {
 public:
  using Script = std::function<void(ScriptedPeer&)>;

  explicit ScriptedPeer(Script script) {
    absl::StatusOr<stream::Socket> listener = ListenOn(*NumericSocketAddress("127.0.0.1", 0), 8);
    EXPECT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    thread_ = std::thread([this, script] { script(*this); });
  }
  ~ScriptedPeer() { thread_.join(); }

  stream::Socket Next() {
    EXPECT_EQ(AwaitReady(listener_.fd(), POLLIN, {.deadline = MonotonicNow() + kPatience}), 0);
    return Accept(listener_.fd());
  }
  PeerTarget target() const {
    return {
        .name = "the-peer:7099", .address = "127.0.0.1", .port = LocalEnd(listener_.fd()).Port()};
  }

 private:
  stream::Socket listener_;
  std::thread thread_;
};

// Sends the bytes once the probe has said something, and closes when the probe has closed.
ScriptedPeer::Script Saying(const std::string& bytes) {
  return [bytes](ScriptedPeer& peer) {
    LineChannel channel(peer.Next());
    EXPECT_TRUE(channel.Receive(kPatience).ok());
    EXPECT_EQ(send(channel.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    while (!absl::IsUnavailable(channel.Receive(kPatience).status())) {
    }
  };
}

nlohmann::json GreetingWithToken() {
  nlohmann::json greeting = Greeting();
  greeting["token"] = "t";
  greeting["host"] = "node7";
  return greeting;
}

TEST(PeerProbeTest, APairIsExamined) {
  absl::Notification answered;
  AnsweredPeer answered_peer;
  PeerAnswersOptions answers = {
      .sources = {.version = "0.1.0 (commit b)",
                  .read_facts =
                      [] {
                        HostFacts facts;
                        facts.tcp.congestion_control = "cubic";
                        facts.net_device_mtu = {{"lo", 65536}};
                        return facts;
                      },
                  .examine =
                      [] {
                        return std::vector<Finding>{{.check = "gpus",
                                                     .verdict = Verdict::kProblem,
                                                     .found = "found",
                                                     .means = "means",
                                                     .advice = "advice"}};
                      }},
      .on_peer = [&](const AnsweredPeer& peer) {
        answered_peer = peer;
        answered.Notify();
      }};
  const auto listening = PeerAnswers::Start({"127.0.0.1", "0"}, answers);
  ASSERT_TRUE(listening.ok()) << listening.status();
  const PeerFacts peer =
      ProbePeer({.name = "the-peer:7099", .address = "127.0.0.1", .port = (*listening)->port()},
                QuickOptions());
  EXPECT_EQ(peer.outcome, Outcome::kComplete) << peer.error;
  EXPECT_EQ(peer.target, "the-peer:7099");
  EXPECT_EQ(peer.own_version, "0.1.0 (commit a)");
  EXPECT_EQ(peer.version, "0.1.0 (commit b)");
  EXPECT_EQ(peer.congestion_control, "cubic");
  EXPECT_EQ(peer.net_device, "lo");
  EXPECT_EQ(peer.mtu, 65536u);
  ASSERT_TRUE(peer.clock_ahead_us.has_value());
  EXPECT_LE(std::abs(*peer.clock_ahead_us), peer.clock_error_us + 1);  // it is the same clock
  ASSERT_TRUE(peer.way_back.has_value());
  EXPECT_TRUE(peer.way_back->connected) << peer.way_back->error;
  EXPECT_EQ(peer.way_back->address, "127.0.0.1");
  EXPECT_EQ(peer.way_back->seen_as, "127.0.0.1");
  for (const auto& rate : {peer.rate_there, peer.rate_back}) {
    ASSERT_TRUE(rate.has_value());
    EXPECT_EQ(rate->error, "");
    EXPECT_FALSE(rate->stalled);
    EXPECT_GT(rate->bytes, 0u);
    EXPECT_GE(rate->microseconds, absl::ToInt64Microseconds(kShort));
  }
  ASSERT_TRUE(peer.findings.has_value());
  ASSERT_THAT(*peer.findings, SizeIs(1));
  EXPECT_EQ((*peer.findings)[0].advice, "advice");
  answered.WaitForNotification();
  EXPECT_EQ(answered_peer.error, "");
  EXPECT_EQ(answered_peer.address, "127.0.0.1");
  EXPECT_EQ(answered_peer.version, "0.1.0 (commit a)");
}

TEST(PeerProbeTest, WhatIsNoDoctorIsShown) {
  const struct {
    std::string bytes, shown;
  } kCases[] = {{"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 400"},
                {std::string("\0\0\x12\x04\0\0\0\0\0", 9), "\\x12"},
                {"SSH-2.0-OpenSSH_9.2p1\r\n", "SSH-2.0"},
                {"{\"state\": 1}\n", "does not begin an examination"}};
  for (const auto& each : kCases) {
    ScriptedPeer scripted(Saying(each.bytes));
    const PeerFacts peer = ProbePeer(scripted.target(), QuickOptions());
    EXPECT_EQ(peer.outcome, Outcome::kNoDoctor) << each.shown;
    EXPECT_THAT(peer.error, HasSubstr(each.shown));
    EXPECT_FALSE(peer.greeted);
  }
}

TEST(PeerProbeTest, ALineWithoutAnEndIsNoDoctor) {
  ScriptedPeer scripted([](ScriptedPeer& peer) {
    LineChannel channel(peer.Next());
    EXPECT_TRUE(channel.Receive(kPatience).ok());
    // The probe closes before all of it is sent.
    (void)channel.Send({{"a", std::string(8 * LineChannel::kMaxLineBytes, 'x')}}, kPatience);
  });
  EXPECT_EQ(ProbePeer(scripted.target(), QuickOptions()).outcome, Outcome::kNoDoctor);
}

TEST(PeerProbeTest, APeerThatClosesAtOnceIsNoDoctor) {
  ScriptedPeer scripted([](ScriptedPeer& peer) { peer.Next(); });
  EXPECT_EQ(ProbePeer(scripted.target(), QuickOptions()).outcome, Outcome::kNoDoctor);
}

TEST(PeerProbeTest, ASilentPeerIsGivenUp) {
  ScriptedPeer scripted([](ScriptedPeer& peer) {
    LineChannel channel(peer.Next());
    EXPECT_TRUE(channel.Receive(kPatience).ok());
    EXPECT_TRUE(absl::IsUnavailable(channel.Receive(kPatience).status()));  // the probe closes
  });
  PeerProbeOptions options = QuickOptions();
  options.answer_timeout = kShort;
  EXPECT_EQ(ProbePeer(scripted.target(), options).outcome, Outcome::kSilent);
}

TEST(PeerProbeTest, ANewerProtocolIsNamed) {
  nlohmann::json greeting = Greeting();
  greeting["protocol"] = 7;
  greeting["error"] = "too old";
  ScriptedPeer scripted(Saying(greeting.dump() + "\n"));
  const PeerFacts peer = ProbePeer(scripted.target(), QuickOptions());
  EXPECT_EQ(peer.outcome, Outcome::kOtherProtocol);
  EXPECT_THAT(peer.error, HasSubstr("protocol 7"));
}

TEST(PeerProbeTest, ThePeersOwnReasonIsShownMadePrintable) {
  nlohmann::json words = Greeting();
  words["error"] = "try again\x1b[2J";
  ScriptedPeer scripted(Saying(words.dump() + "\n"));
  const PeerFacts peer = ProbePeer(scripted.target(), QuickOptions());
  EXPECT_EQ(peer.outcome, Outcome::kRefused);
  EXPECT_EQ(peer.error, "it says: try again?[2J");
}

TEST(PeerProbeTest, APeerThatClosesInTheMiddleBrokeOff) {
  ScriptedPeer scripted([](ScriptedPeer& peer) {
    LineChannel channel(peer.Next());
    EXPECT_TRUE(channel.Receive(kPatience).ok());
    EXPECT_TRUE(channel.Send(GreetingWithToken(), kPatience).ok());
    EXPECT_TRUE(channel.Receive(kPatience).ok());
  });
  const PeerFacts peer = ProbePeer(scripted.target(), QuickOptions());
  EXPECT_EQ(peer.outcome, Outcome::kBrokeOff);
  EXPECT_TRUE(peer.greeted);
  EXPECT_EQ(peer.host, "node7");
  EXPECT_FALSE(peer.way_back.has_value());
}

TEST(PeerProbeTest, NobodyAtThePortIsNotReached) {
  const absl::StatusOr<stream::Socket> bound = ListenOn(*NumericSocketAddress("127.0.0.1", 0), 1);
  ASSERT_TRUE(bound.ok());
  PeerTarget target = {.name = "x", .address = "127.0.0.1", .port = LocalEnd(bound->fd()).Port()};
  shutdown(bound->fd(), SHUT_RDWR);  // it listens no more, and keeps the port
  EXPECT_EQ(ProbePeer(target, QuickOptions()).outcome, Outcome::kNotReached);
  target.address = "";
  EXPECT_EQ(ProbePeer(target, QuickOptions()).outcome, Outcome::kNotReached);
}

// Answers all questions, and stands still where bytes should pass.
void StandStill(ScriptedPeer& peer) {
  LineChannel channel(peer.Next());
  EXPECT_TRUE(channel.Receive(kPatience).ok());
  EXPECT_TRUE(channel.Send(GreetingWithToken(), kPatience).ok());
  for (;;) {
    const absl::StatusOr<nlohmann::json> question = channel.Receive(kPatience);
    if (!question.ok()) return;
    const std::string ask = PeerText(*question, "ask");
    nlohmann::json answer = {{"received_us", -5}, {"checks", "none"}};
    if (ask == kAskConnect) answer = {{"connected", false}, {"error", "Connection\ttimed out"}};
    if (ask == kAskReceive || ask == kAskSend) {
      LineChannel second(peer.Next());
      const absl::StatusOr<nlohmann::json> first = second.Receive(kPatience);
      EXPECT_EQ(PeerText(first.value_or(nlohmann::json()), "token"), "t");
      EXPECT_TRUE(second.Send({{"ready", true}}, kPatience).ok());
      answer = RateAsJson({.stalled = true});
      // The one that receives nothing closes; the one that sends nothing waits for that.
      if (ask == kAskSend) {
        EXPECT_FALSE(second.Receive(kPatience).ok());
      }
    }
    EXPECT_TRUE(channel.Send(answer, kPatience).ok());
  }
}

TEST(PeerProbeTest, BulkDataThatStandsStillIsNoticedWhileQuestionsAreAnswered) {
  ScriptedPeer scripted(StandStill);
  PeerProbeOptions options = QuickOptions();
  options.bulk.stall = kShort;
  const PeerFacts peer = ProbePeer(scripted.target(), options);
  EXPECT_EQ(peer.outcome, Outcome::kComplete) << peer.error;
  for (const auto& rate : {peer.rate_there, peer.rate_back}) {
    ASSERT_TRUE(rate.has_value());
    EXPECT_TRUE(rate->stalled);
    EXPECT_EQ(rate->error, "");
  }
  EXPECT_FALSE(peer.clock_ahead_us.has_value());
  ASSERT_TRUE(peer.way_back.has_value());
  EXPECT_FALSE(peer.way_back->connected);
  EXPECT_EQ(peer.way_back->error, "Connection?timed out");
  EXPECT_FALSE(peer.findings.has_value());
}

TEST(PeerProbeTest, ABackPortThatIsTakenIsNamed) {
  ScriptedPeer scripted(StandStill);
  PeerProbeOptions options = QuickOptions();
  options.bulk.stall = kShort;
  options.back_port = scripted.target().port;
  const PeerFacts peer = ProbePeer(scripted.target(), options);
  ASSERT_TRUE(peer.way_back.has_value());
  EXPECT_EQ(peer.way_back->port, 0);
  EXPECT_THAT(peer.way_back->error, HasSubstr("already in use"));
}

}  // namespace
}  // namespace th::doctor
