#include "th/weights/version.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;

TEST(VersionLabelTest, BearsPrintableText) {
  for (const std::string& text :
       {std::string("step-57"), std::string("57"), std::string("schritt-\xc3\xbc"),
        std::string("a/b:c#1"), std::string("Latest"), std::string("latest-fp8"),
        std::string(kMaxLabelBytes, 'x')}) {
    ASSERT_OK_AND_ASSIGN(const VersionLabel label, VersionLabel::Parse(text));
    EXPECT_EQ(label.text(), text);
  }
}

TEST(VersionLabelTest, RefusesNamingTheRule) {
  struct Case {
    std::string text;
    std::string message;
  };
  const Case cases[] = {
      {"", "is empty"},
      {"latest", "'latest' is reserved"},
      {"latest-1", "'latest-1' is reserved"},
      {"latest-0", "'latest-0' is reserved"},
      {"#2.17", "begins with '#'"},
      {"step 57", "contains white space"},
      {"step\xc2\xa0"
       "57",
       "contains white space"},
      {"step\n", "contains white space"},
      {"a\x01", "contains an unprintable character"},
      {"a\xe2\x80\xae", "contains an unprintable character"},
      {"a\xff", "is not UTF-8"},
      {std::string(kMaxLabelBytes + 1, 'x'), "has 129 bytes; at most 128"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(VersionLabel::Parse(c.text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
}

TEST(VersionLabelTest, StepIsItsDigits) {
  EXPECT_EQ(VersionLabel::FromStep(57).text(), "57");
  EXPECT_EQ(VersionLabel::FromStep(-1).text(), "-1");
  EXPECT_THAT(VersionLabel::Parse("57"), IsOkAndHolds(VersionLabel::FromStep(57)));
  EXPECT_EQ(VersionLabel::FromStep(std::numeric_limits<int64_t>::min()).text(),
            "-9223372036854775808");
}

TEST(VersionSelectorTest, ReadsWhatItWrites) {
  const VersionSelector selectors[] = {
      LatestVersion{}, LatestVersion{.back = 3}, VersionLabel::FromStep(57),
      VersionSequence::Of(Epoch(2), 17), VersionSequence(std::numeric_limits<uint64_t>::max())};
  for (const VersionSelector& selector : selectors) {
    EXPECT_THAT(ParseVersionSelector(ToString(selector)), IsOkAndHolds(selector))
        << ToString(selector);
  }
  EXPECT_EQ(ToString(VersionSelector(LatestVersion{})), "latest");
  EXPECT_EQ(ToString(VersionSelector(LatestVersion{.back = 3})), "latest-3");
  EXPECT_EQ(ToString(VersionSelector(VersionSequence::Of(Epoch(2), 17))), "#2.17");
}

TEST(VersionSelectorTest, CountsFromOneBeforeTheLatest) {
  EXPECT_THAT(ParseVersionSelector("latest-0"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'latest-0' is 'latest'")));
}

TEST(VersionSelectorTest, RefusesWhatIsNoSequence) {
  for (const char* text : {"#", "#2", "#2.", "#.17", "#2.17.1", "#+2.17", "# 2.17", "#02.17",
                           "#-1.0", "#4294967296.0", "#0.4294967296", "#0x2.1", "#0.0"}) {
    EXPECT_THAT(ParseVersionSelector(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sequence")))
        << text;
  }
}

TEST(VersionSelectorTest, RefusesWhatIsNoLabel) {
  EXPECT_THAT(ParseVersionSelector(""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ParseVersionSelector("a b"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(VersionInfoTest, ShowsLabelAndSequence) {
  VersionInfo info{.sequence = VersionSequence::Of(Epoch(2), 17)};
  EXPECT_EQ(info.ToString(), "#2.17");
  info.label = VersionLabel::FromStep(57);
  EXPECT_EQ(info.ToString(), "57 (#2.17)");
}

TEST(NameTest, SaysWhichNameIsWrongAndWhy) {
  EXPECT_OK(ValidateName("run", "r1"));
  EXPECT_OK(ValidateName("run", std::string(kMaxNameBytes, 'x')));
  EXPECT_THAT(ValidateName("run", ""),
              StatusIs(absl::StatusCode::kInvalidArgument, "run is empty"));
  EXPECT_THAT(ValidateName("group", "a b"),
              StatusIs(absl::StatusCode::kInvalidArgument, "group 'a b' contains white space"));
  EXPECT_THAT(ValidateName("group", std::string(kMaxNameBytes + 1, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 256")));
}

TEST(AttributesTest, AreLimitedInBytesOfKeysAndValues) {
  Attributes attributes = {{"step", std::string(kMaxAttributesBytes - 4, 'x')}};
  EXPECT_OK(ValidateAttributes(attributes));
  attributes["k"] = "";
  EXPECT_THAT(ValidateAttributes(attributes),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "attributes have 1048577 bytes; at most 1048576 are allowed"));
}

}  // namespace
}  // namespace th
