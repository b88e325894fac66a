#include "th/simulator/scenarios/scenario_line.h"

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::absl::StatusCode;
using ::testing::HasSubstr;
using ::th::testing::IsOk;
using ::th::testing::StatusIs;

ScenarioLine Line(const std::string& text) {
  return ScenarioLine("f", 7, text, {{"nic", "25GB/s"}, {"n", "3"}});
}

TEST(ScenarioLineTest, ReadsWordsAndFieldsWithTheirUnits) {
  ScenarioLine line =
      Line("  hosts h-1 \t up=25GB/s down=8Gbps size=1.5KiB t=250ms p=10% n=16 # fast");
  EXPECT_EQ(line.Word("statement"), "hosts");
  EXPECT_EQ(line.Name("name"), "h-1");
  EXPECT_FALSE(line.HasWord());
  EXPECT_DOUBLE_EQ(line.Rate("up"), 25e9);
  EXPECT_DOUBLE_EQ(line.Rate("down"), 1e9);
  EXPECT_EQ(line.Bytes("size"), 1536u);
  EXPECT_EQ(line.Time("t"), absl::Milliseconds(250));
  EXPECT_DOUBLE_EQ(line.Fraction("p"), 0.1);
  EXPECT_EQ(line.Count("n", 16), 16u);
  EXPECT_THAT(line.Finish(), IsOk());
}

TEST(ScenarioLineTest, AFieldThatIsNotThereHasItsOtherValue) {
  ScenarioLine line = Line("");
  EXPECT_TRUE(line.blank());
  EXPECT_EQ(line.Count("n", 9, 4), 4u);
  EXPECT_EQ(line.Time("t", absl::Seconds(2)), absl::Seconds(2));
  EXPECT_EQ(line.Text("on", "x"), "x");
  EXPECT_THAT(line.Finish(), IsOk());
}

TEST(ScenarioLineTest, AVariableStandsForItsValue) {
  ScenarioLine line = Line("up=$nic $n");
  EXPECT_DOUBLE_EQ(line.Rate("up"), 25e9);
  EXPECT_EQ(line.CountWord("count", 9), 3u);
  EXPECT_THAT(line.Finish(), IsOk());
}

TEST(ScenarioLineTest, SaysTheFirstThingThatIsWrongWithItsLine) {
  ScenarioLine line = Line("a=x b=y");
  line.Time("a");
  line.Time("b");
  const absl::Status status = line.Finish();
  EXPECT_THAT(status, StatusIs(StatusCode::kInvalidArgument));
  EXPECT_EQ(status.message(), "f:7: a 'x' is not a number with a unit");
}

struct Wrong {
  std::string text;
  std::function<void(ScenarioLine&)> read;
  std::string says;
};

TEST(ScenarioLineTest, RefusesWhatIsNoValue) {
  const Wrong cases[] = {
      {"t=5", [](ScenarioLine& l) { l.Time("t"); }, "t '5' needs a unit: us, ms, s, min, h"},
      {"t=5m", [](ScenarioLine& l) { l.Time("t"); }, "unknown unit 'm'"},
      {"t=5000000h", [](ScenarioLine& l) { l.Time("t"); }, "too long"},
      {"t=1.2.3s", [](ScenarioLine& l) { l.Time("t"); }, "not a number"},
      {"t=-1s", [](ScenarioLine& l) { l.Time("t"); }, "not a number"},
      {"t=nan", [](ScenarioLine& l) { l.Time("t"); }, "not a number"},
      {"b=5", [](ScenarioLine& l) { l.Bytes("b"); }, "needs a unit: B, KB"},
      {"b=0B", [](ScenarioLine& l) { l.Bytes("b"); }, "at least 1B"},
      {"b=99999999TB", [](ScenarioLine& l) { l.Bytes("b"); }, "too large"},
      {"r=5GB", [](ScenarioLine& l) { l.Rate("r"); }, "unknown unit 'GB'"},
      {"r=0GB/s", [](ScenarioLine& l) { l.Rate("r"); }, "at least 1B/s"},
      {"p=101%", [](ScenarioLine& l) { l.Fraction("p"); }, "more than 100%"},
      {"p=0.5", [](ScenarioLine& l) { l.Fraction("p"); }, "needs a unit: %"},
      {"n=0", [](ScenarioLine& l) { l.Count("n", 5); }, "from 1 to 5"},
      {"n=6", [](ScenarioLine& l) { l.Count("n", 5); }, "from 1 to 5"},
      {"n=x", [](ScenarioLine& l) { l.Count("n", 5); }, "n 'x' is not a whole number"},
      {"n=99999999999999999999", [](ScenarioLine& l) { l.Count("n", 5); }, "from 1 to 5"},
      {"", [](ScenarioLine& l) { l.Count("n", 5); }, "the key 'n' is missing"},
      {"", [](ScenarioLine& l) { l.Word("the name"); }, "the name is missing"},
      {"a/b", [](ScenarioLine& l) { l.Name("the name"); }, "is not a name"},
      {"on=", [](ScenarioLine& l) { l.Text("on"); }, "'on' is empty"},
      {"x",
       [](ScenarioLine& l) {
         l.Choice("the event", {"a", "b"});
       },
       "'x' is unknown; known: a, b"},
      {"role=x",
       [](ScenarioLine& l) {
         l.Choice("role", {"a", "b"}, {});
       },
       "known: a, b"},
      {"a=1 a=2", [](ScenarioLine&) {}, "the key 'a' is given twice"},
      {"a=1", [](ScenarioLine& l) { l.Text("on", "x"); }, "the key 'a' is unknown; known: on"},
      {"word", [](ScenarioLine&) {}, "'word' is too much here"},
      {"a=$b", [](ScenarioLine& l) { l.Text("a"); }, "nothing is let be '$b'"},
      {"a/b=1", [](ScenarioLine& l) { l.AllFields(); }, "is not a name"},
  };
  for (const Wrong& wrong : cases) {
    ScenarioLine line = Line(wrong.text);
    wrong.read(line);
    EXPECT_THAT(std::string(line.Finish().message()), HasSubstr(wrong.says)) << wrong.text;
    EXPECT_THAT(std::string(line.Finish().message()), HasSubstr("f:7: ")) << wrong.text;
  }
}

}  // namespace
}  // namespace th
