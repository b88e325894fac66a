#include "th/simulator/scenarios/timeline_picture.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Every element has to be closed, in order; attributes are quoted and bare of '<'.
::testing::AssertionResult IsWellFormed(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
    const size_t end = xml.find('>', at);
    if (end == std::string::npos) return ::testing::AssertionFailure() << "a tag does not end";
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos) return ::testing::AssertionFailure() << tag;
    if (tag.front() == '?') continue;
    const std::string name =
        tag.substr(tag.front() == '/' ? 1 : 0, tag.find_first_of(" />", 1) - (tag.front() == '/'));
    if (tag.front() == '/') {
      if (open.empty() || open.back() != tag.substr(1)) {
        return ::testing::AssertionFailure() << tag << " closes nothing";
      }
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  if (!open.empty()) return ::testing::AssertionFailure() << open.back() << " stays open";
  return ::testing::AssertionSuccess();
}

size_t CountOf(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

ScenarioResult TwoReaders() {
  ScenarioResult result;
  result.scenario = "a<b>&\"c'\x01";
  result.versions.push_back({"step-1", absl::Seconds(1), 2, absl::Seconds(2), absl::Seconds(2)});
  RankResult rank;
  rank.name = "reader-1/0";
  rank.spans = {{"trainer/0", absl::Seconds(1), absl::Seconds(2)}};
  result.ranks.push_back(rank);
  rank.name = "reader-2/0";
  rank.spans = {{"reader-1/0", absl::Seconds(1.1), absl::Seconds(1.5)},
                {"trainer/0", absl::Seconds(1.5), absl::Seconds(2.5)}};
  result.ranks.push_back(rank);
  return result;
}

TEST(TimelinePictureTest, DrawsABarForEachSourceInTheColourOfItsGroup) {
  const std::string svg = TimelinePicture(TwoReaders());
  EXPECT_TRUE(IsWellFormed(svg));
  EXPECT_THAT(svg,
              HasSubstr("<title>reader-2/0 from reader-1/0: 1.100000 s to 1.500000 s</title>"));
  EXPECT_EQ(CountOf(svg, "<title>reader-"), 3u);
  // Trainer: one in the legend, two bars. reader-1: one and one.
  EXPECT_EQ(CountOf(svg, "hsl(210,"), 3u);
  EXPECT_EQ(CountOf(svg, "hsl(348,"), 2u);
  EXPECT_THAT(svg, HasSubstr("step-1 published"));
}

TEST(TimelinePictureTest, SourcesAtTheSameTimeShareTheRow) {
  ScenarioResult result = TwoReaders();
  EXPECT_EQ(CountOf(TimelinePicture(result), "height=\"4.5\""), 0u);
  result.ranks[1].spans[0].ended = absl::Seconds(2);
  EXPECT_EQ(CountOf(TimelinePicture(result), "height=\"4.5\""), 2u);
}

TEST(TimelinePictureTest, EscapesNames) {
  const std::string svg = TimelinePicture(TwoReaders());
  EXPECT_THAT(svg, HasSubstr("a&lt;b&gt;&amp;&quot;c&#39;\xef\xbf\xbd"));
  EXPECT_THAT(svg, Not(HasSubstr("\x01")));
}

TEST(TimelinePictureTest, SaysWhatItLeavesOut) {
  ScenarioResult result = TwoReaders();
  const RankResult rank = result.ranks[0];
  while (result.ranks.size() < kMaxTimelineRows + 3) result.ranks.push_back(rank);
  for (int i = 0; i < 40; ++i) {
    result.ranks[0].spans.push_back(
        {absl::StrCat("s-", i, "/0"), absl::Seconds(1), absl::Seconds(2)});
  }
  const std::string svg = TimelinePicture(result);
  EXPECT_TRUE(IsWellFormed(svg));
  EXPECT_THAT(svg, HasSubstr("the first 512 ranks; 3 more"));
  EXPECT_THAT(svg, HasSubstr("and 18 more sources"));
}

TEST(TimelinePictureTest, ARunWithoutABarIsAPictureToo) {
  const std::string svg = TimelinePicture({});
  EXPECT_TRUE(IsWellFormed(svg));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

}  // namespace
}  // namespace th
