#include "th/doctor/peer_facts.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th::doctor {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::th::testing::StatusIs;

TEST(PeerFactsTest, TextsAreMadePrintableAndCut) {
  EXPECT_EQ(MadePrintable("node7"), "node7");
  EXPECT_EQ(MadePrintable("\x1b[31mred\n\xff\xe2\x80\xae"), "?[31mred???");
  EXPECT_EQ(MadePrintable("caf\xc3\xa9"), "caf\xc3\xa9");
  const std::string cut = MadePrintable(std::string(10'000, 'x'));
  EXPECT_THAT(cut, SizeIs(kMaxPeerText + 3));
  EXPECT_THAT(cut, EndsWith("..."));
}

TEST(PeerFactsTest, ValuesOfAnotherTypeAreAbsent) {
  const nlohmann::json line = {{"text", 5}, {"number", "5"}, {"below", -1}, {"half", 0.5}};
  EXPECT_EQ(PeerText(line, "text"), "");
  EXPECT_EQ(PeerText(line, "none"), "");
  EXPECT_EQ(PeerText(nlohmann::json::array(), "text"), "");
  for (const char* key : {"number", "below", "half", "none"}) {
    EXPECT_EQ(PeerNumber(line, key, 100), std::nullopt) << key;
  }
  EXPECT_EQ(PeerNumber({{"n", 7u}}, "n", 7), 7);
  EXPECT_EQ(PeerNumber({{"n", 8u}}, "n", 7), std::nullopt);
  EXPECT_EQ(PeerNumber({{"n", UINT64_MAX}}, "n", INT64_MAX), std::nullopt);
}

TEST(PeerFactsTest, AGreetingNamesMagicAndProtocol) {
  EXPECT_OK(CheckGreeting(Greeting()));
  nlohmann::json newer = Greeting();
  newer["protocol"] = kProtocol + 1;
  EXPECT_THAT(CheckGreeting(newer),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("protocol 2")));
  nlohmann::json other = Greeting();
  other["magic"] = "other";
  EXPECT_THAT(CheckGreeting(other), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(CheckGreeting({{"magic", kMagic}}), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(PeerFactsTest, FindingsKeepTheirWords) {
  const Finding problem = {.check = "gpus",
                           .verdict = Verdict::kProblem,
                           .found = "8 GPUs",
                           .means = "no library",
                           .advice = "install it"};
  const nlohmann::json line = {
      {"checks", {FindingAsJson(problem), {{"check", "later"}, {"verdict", "dire"}}, 7}}};
  const auto findings = ReadFindings(line);
  ASSERT_TRUE(findings.has_value());
  ASSERT_THAT(*findings, SizeIs(3));
  EXPECT_EQ(FindingAsJson((*findings)[0]), FindingAsJson(problem));
  EXPECT_EQ((*findings)[1].verdict, Verdict::kNote);  // a verdict of a later release
  EXPECT_EQ((*findings)[2].check, "");
  EXPECT_FALSE(ReadFindings({{"checks", 7}}).has_value());
  EXPECT_THAT(*ReadFindings({{"checks", std::vector<int>(10'000)}}), SizeIs(kMaxPeerFindings));
}

TEST(PeerFactsTest, RatesKeepTheirNumbers) {
  const RateFacts rate = ReadRate(RateAsJson(
      {.bytes = 1'000'000, .microseconds = 1000, .waited_us = 7, .stalled = true, .error = "why"}));
  EXPECT_EQ(rate.bytes, 1'000'000u);
  EXPECT_EQ(rate.microseconds, 1000);
  EXPECT_EQ(rate.waited_us, 7);
  EXPECT_TRUE(rate.stalled);
  EXPECT_EQ(rate.error, "why");
  EXPECT_THAT(ReadRate({{"bytes", -1}}).error, HasSubstr("no result"));
}

TEST(PeerClockTest, TheShortestRoundTripCounts) {
  PeerFacts peer;
  // The peer is 5000 us ahead; the second exchange waited 800 us on the way back.
  EstimateClock({{.asked_us = 0, .received_us = 5100, .answered_us = 5110, .heard_us = 210},
                 {.asked_us = 1000, .received_us = 6100, .answered_us = 6110, .heard_us = 2010}},
                &peer);
  EXPECT_EQ(peer.clock_ahead_us, 5000);
  EXPECT_EQ(peer.clock_error_us, 100);
}

TEST(PeerClockTest, SamplesThatCannotBeTrueDoNotCount) {
  PeerFacts peer;
  EstimateClock(
      {{.asked_us = 1000, .received_us = 5, .answered_us = 6, .heard_us = 10},  // set back
       {.asked_us = 1, .received_us = -1, .answered_us = -1, .heard_us = 2},    // absent
       {.asked_us = 1, .received_us = 9, .answered_us = 2, .heard_us = 3},
       {.asked_us = 1, .received_us = 0, .answered_us = INT64_MAX, .heard_us = 3}},
      &peer);
  EXPECT_EQ(peer.clock_ahead_us, std::nullopt);
  EstimateClock({}, &peer);
  EXPECT_EQ(peer.clock_ahead_us, std::nullopt);
}

}  // namespace
}  // namespace th::doctor
