#include "th/bench/fanout_figures.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

FanoutReader Reader(const std::string& name, double seconds, const std::string& source) {
  return {.name = name, .seconds = seconds, .sources = {{source, 1000}}};
}

FanoutMeasurement Measured() {
  FanoutMeasurement measured{
      .classes = {{.rate = "1gbit", .readers = 2, .flow_seconds = {1.0, 1.2, 0.9}}},
      .holder_rate = "1gbit",
      .bytes = 1000,
      .verified = true,
      .congestion_control = "cubic"};
  FanoutArm ours{.name = "ours"}, direct{.name = "direct"};
  for (const double last : {1.2, 1.5, 1.1}) {
    ours.rounds.push_back({.readers = {Reader("reader-1/0", 1.0, "trainer-1/0"),
                                       Reader("reader-2/0", last, "reader-1/0")},
                           .holder_bytes_sent = last > 1.4 ? 1050u : 1000u});
    direct.rounds.push_back({.readers = {Reader("reader-1/0", 2.4, "trainer-1/0"),
                                         Reader("reader-2/0", 2.3, "trainer-1/0")},
                             .holder_bytes_sent = 2000});
  }
  measured.arms = {ours, direct};
  return measured;
}

// One fast reader, two slow ones.
FanoutMeasurement MeasuredOverUnequalLinks() {
  FanoutMeasurement measured{
      .classes = {{.rate = "1gbit", .readers = 1, .flow_seconds = {1.0, 1.0, 1.0}},
                  {.rate = "250mbit", .readers = 2, .flow_seconds = {4.0, 4.0, 5.0}}},
      .holder_rate = "1gbit",
      .bytes = 1000,
      .verified = true,
      .congestion_control = "cubic"};
  FanoutArm ours{.name = "ours"};
  for (const double last : {4.4, 4.0, 6.0}) {
    ours.rounds.push_back({.readers = {Reader("reader-1/0", 1.5, "trainer-1/0"),
                                       Reader("reader-2/0", last, "reader-1/0"),
                                       Reader("reader-3/0", 3.0, "reader-1/0")},
                           .holder_bytes_sent = 1000u});
  }
  measured.arms = {ours};
  return measured;
}

TEST(FanoutFiguresTest, TakeTheMedianOfTheLastReaderAndTheMostCopies) {
  const FanoutMeasurement measured = Measured();
  const FanoutFigures ours = FiguresOf(measured, measured.arms[0]);
  EXPECT_DOUBLE_EQ(IdealSeconds(measured), 1.0);
  EXPECT_DOUBLE_EQ(ours.seconds, 1.2);
  EXPECT_DOUBLE_EQ(ours.ratio, 1.2);
  EXPECT_DOUBLE_EQ(ours.copies_sent, 1.05);
  EXPECT_THAT(ours.per_reader_seconds, ElementsAre(1.0, 1.2));
  EXPECT_DOUBLE_EQ(FiguresOf(measured, measured.arms[1]).seconds, 2.4);
}

TEST(FanoutFiguresTest, BearNoRoundAtAll) {
  const FanoutMeasurement nothing{.classes = {{.rate = "1gbit", .readers = 1}},
                                  .arms = {{.name = "ours"}}};
  const FanoutFigures figures = FiguresOf(nothing, nothing.arms[0]);
  EXPECT_DOUBLE_EQ(figures.seconds, 0);
  EXPECT_DOUBLE_EQ(figures.ratio, 0);
  EXPECT_DOUBLE_EQ(figures.copies_sent, 0);
  EXPECT_EQ(ToJson(nothing)["ours_seconds"], 0);
  EXPECT_EQ(ToJson(nothing)["ours_classes"][0]["ratio"], 0);
}

TEST(FanoutFiguresTest, TakeEachClassesSlowestReaderOverItsOwnFlow) {
  const FanoutMeasurement measured = MeasuredOverUnequalLinks();
  const auto classes = ClassFiguresOf(measured, measured.arms[0]);
  ASSERT_EQ(classes.size(), 2u);
  EXPECT_DOUBLE_EQ(classes[0].seconds, 1.5);
  EXPECT_DOUBLE_EQ(classes[0].ratio, 1.5);
  EXPECT_DOUBLE_EQ(classes[1].seconds, 4.4);
  EXPECT_DOUBLE_EQ(classes[1].ratio, 1.1);
  EXPECT_THAT(classes[1].seconds_of_rounds, ElementsAre(4.4, 4.0, 6.0));
}

TEST(FanoutFiguresTest, MeasureTheLastReaderAgainstAFlowOverTheSlowestLink) {
  const FanoutMeasurement measured = MeasuredOverUnequalLinks();
  EXPECT_DOUBLE_EQ(IdealSeconds(measured), 4.0);
  EXPECT_DOUBLE_EQ(FiguresOf(measured, measured.arms[0]).ratio, 1.1);
}

TEST(FanoutJsonTest, HasAnArmsKeysUnderItsName) {
  const nlohmann::json json = ToJson(Measured());
  EXPECT_EQ(json["hosts"], 2);
  EXPECT_EQ(json["rate"], "1gbit");
  EXPECT_EQ(json["bytes"], 1000);
  EXPECT_EQ(json["rounds"], 3);
  EXPECT_EQ(json["verified"], true);
  EXPECT_EQ(json["ideal_seconds"], 1.0);
  EXPECT_EQ(json["ours_seconds"], 1.2);
  EXPECT_EQ(json["ours_ratio"], 1.2);
  EXPECT_EQ(json["ours_copies_sent"], 1.05);
  EXPECT_EQ(json["ours_per_reader_seconds"].size(), 2u);
  EXPECT_EQ(json["ours_sources"]["reader-2/0"]["reader-1/0"], 1000);
  EXPECT_EQ(json["direct_seconds"], 2.4);
  EXPECT_EQ(json["direct_copies_sent"], 2.0);
  EXPECT_DOUBLE_EQ(json["direct_over_ours"], 2.0);
  EXPECT_FALSE(json.contains("ours_over_ours"));
  EXPECT_FALSE(json.contains("noticed_seconds"));
  EXPECT_EQ(json["classes"].size(), 1u);
  EXPECT_EQ(json["direct_classes"][0]["slowest_reader_seconds"], 2.4);
}

TEST(FanoutJsonTest, HasEachClassAndNoRateOfAll) {
  const nlohmann::json json = ToJson(MeasuredOverUnequalLinks());
  EXPECT_EQ(json["hosts"], 3);
  EXPECT_FALSE(json.contains("rate"));
  EXPECT_EQ(json["classes"][1]["rate"], "250mbit");
  EXPECT_EQ(json["classes"][1]["hosts"], 2);
  EXPECT_EQ(json["classes"][1]["flow_seconds"], 4.0);
  EXPECT_EQ(json["classes"][1]["flow_seconds_of_rounds"].size(), 3u);
  EXPECT_EQ(json["ours_classes"][1]["rate"], "250mbit");
  EXPECT_EQ(json["ours_classes"][1]["slowest_reader_seconds"], 4.4);
  EXPECT_EQ(json["ours_classes"][1]["slowest_reader_seconds_of_rounds"].size(), 3u);
  EXPECT_DOUBLE_EQ(json["ours_classes"][1]["ratio"], 1.1);
}

TEST(FanoutJsonTest, TellsTheWorstDisturbedRoundAgainstTheUndisturbedMedian) {
  FanoutMeasurement measured = Measured();
  measured.disturbance = "stop";
  measured.disturbed = {{.victim = "reader-1/0",
                         .at_fraction = 0.5,
                         .noticed_seconds = 0.4,
                         .others_seconds = 1.7,
                         .others = {Reader("reader-2/0", 1.7, "trainer-1/0")}},
                        {.noticed_seconds = 0.3, .others_seconds = 1.9, .reread_bytes = 7}};
  const nlohmann::json json = ToJson(measured);
  EXPECT_EQ(json["disturb"], "stop");
  EXPECT_EQ(json["noticed_seconds"], 0.4);
  EXPECT_NEAR(json["delay_seconds"], 0.7, 1e-9);
  EXPECT_EQ(json["reread_bytes"], 7);
  EXPECT_EQ(json["noticed_seconds_of_rounds"].size(), 2u);
  EXPECT_EQ(json["disturbed_victims"][0], "reader-1/0");
  EXPECT_EQ(json["disturbed_sources"][0]["reader-2/0"]["trainer-1/0"], 1000);
  EXPECT_THAT(TextOf(measured), HasSubstr("stop of a reader"));
}

TEST(FanoutJsonTest, AnEarlierEndThanUndisturbedIsNoDelay) {
  FanoutMeasurement measured = Measured();
  measured.disturbance = "leave";
  measured.disturbed = {{.others_seconds = 1.0}};
  EXPECT_EQ(DisturbanceOf(measured).delay_seconds, 0);
}

TEST(FanoutTextTest, ShowsThePeersBesideOurs) {
  const std::string text = TextOf(Measured());
  EXPECT_THAT(text, HasSubstr("one plain TCP flow (ideal)"));
  EXPECT_THAT(text, HasSubstr("ours"));
  EXPECT_THAT(text, HasSubstr("direct"));
  EXPECT_THAT(text, HasSubstr("1.20"));
  EXPECT_THAT(text, HasSubstr("with a link of 1gbit"));
  EXPECT_THAT(text, Not(HasSubstr("OVER FLOW"))) << "all links are alike";
}

TEST(FanoutTextTest, ShowsEachClassBesideItsFlow) {
  const std::string text = TextOf(MeasuredOverUnequalLinks());
  EXPECT_THAT(text, HasSubstr("links of 1gbit (1), 250mbit (2)"));
  EXPECT_THAT(text, HasSubstr("(ideal, 250mbit)"));
  EXPECT_THAT(text, HasSubstr("OVER FLOW"));
  EXPECT_THAT(text, ContainsRegex("ours +1gbit +1 +1.500 s +1.000 s +1.50"));
  EXPECT_THAT(text, ContainsRegex("ours +250mbit +2 +4.400 s +4.000 s +1.10"));
}

}  // namespace
}  // namespace th
