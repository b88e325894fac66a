#include "th/bench/link_classes.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

TEST(LinkClassesTest, AreReadInTheirOrderAndCounted) {
  ASSERT_OK_AND_ASSIGN(const std::vector<LinkClass> classes,
                       ParseLinkClasses({"250mbit*2", "1gbit*6", "500mbit"}));
  ASSERT_EQ(classes.size(), 3u);
  EXPECT_EQ(classes[0].rate, "250mbit");
  EXPECT_EQ(classes[0].bytes_per_second, 31'250'000u);
  EXPECT_EQ(classes[0].hosts, 2u);
  EXPECT_EQ(classes[2].hosts, 1u) << "a rate alone is that of one host";
  EXPECT_EQ(HostsOf(classes), 9u);
  EXPECT_EQ(FastestOf(classes).rate, "1gbit");
}

TEST(LinkClassesTest, RefuseWhatIsNoRateOrNoNumberOfHostsAndSayHowToWriteIt) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"", "like 250mbit*2"},
      {"6*1gbit", "like 250mbit*2"},
      {"1gbit*", "like 250mbit*2"},
      {"1gbit*0", "a fan-out has 1 to 64 readers, not 0"},
      {"1gbit*-1", "a fan-out has 1 to 64 readers, not -1"},
      {"1gbit*65", "a fan-out has 1 to 64 readers, not 65"},
      {"1gbit*4294967297", "a fan-out has 1 to 64 readers"},
      {"1gbit*2*2", "no number of hosts after the *"},
      {"1gbit*two", "no number of hosts after the *"},
      {"none*2", "1mbit to 10gbit"},
      {"5*2", "1mbit to 10gbit"},
      {"100gbit*2", "1mbit to 10gbit"}};
  for (const auto& [text, says] : refused) {
    EXPECT_THAT(ParseLinkClass(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(says)))
        << text;
  }
}

TEST(LinkClassesTest, RefuseARateThatStandsTwiceInWhateverUnit) {
  EXPECT_THAT(ParseLinkClasses({"1gbit*2", "1000mbit*3"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("all hosts of a rate")));
}

TEST(LinkClassesTest, RefuseAListOfNothing) {
  EXPECT_THAT(ParseLinkClasses({}), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace th
