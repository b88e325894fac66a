#include "th/command_line/quantity.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IsOkAndHolds;
using ::testing::Pair;
using testing::StatusIs;

struct Case {
  std::string text;
  uint64_t value;
};

TEST(ParseByteSizeTest, TakesEveryDocumentedUnitInAnyCase) {
  const std::vector<Case> cases = {{"0", 0},
                                   {"12B", 12},
                                   {"4096 b", 4096},
                                   {"1k", 1024},
                                   {"1KiB", 1024},
                                   {"1kb", 1000},
                                   {"3M", 3u << 20},
                                   {"3MiB", 3u << 20},
                                   {"250MB", 250'000'000},
                                   {"4GiB", uint64_t{4} << 30},
                                   {"4gib", uint64_t{4} << 30},
                                   {"1.5GiB", uint64_t{3} << 29},
                                   {"2GB", 2'000'000'000},
                                   {"1 TiB", uint64_t{1} << 40},
                                   {"1TB", 1'000'000'000'000},
                                   {" 7 MB ", 7'000'000},
                                   {"0.5b", 0}};
  for (const Case& c : cases) EXPECT_THAT(ParseByteSize(c.text), IsOkAndHolds(c.value)) << c.text;
}

TEST(ParseByteSizeTest, RefusesWhatIsNoSizeAndSaysHowToWriteIt) {
  for (const char* text : {"", "GiB", "-1", "4 apples", "1..5GiB", "4GiB/s", "1gbit", "1e30GiB",
                           "99999999999999TiB", "none"}) {
    EXPECT_THAT(ParseByteSize(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                              AllOf(HasSubstr(text), HasSubstr("4GiB"))))
        << text;
  }
}

// Whoever writes 20 means gigabytes, and whoever writes 4096 means bytes.
TEST(ParseByteSizeTest, ABareNumberIsRefusedWithAnExample) {
  for (const char* text : {"20", "4096", "1.5", " 7 "}) {
    EXPECT_THAT(ParseByteSize(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("has no unit"), HasSubstr("write it like 4GiB"))))
        << text;
  }
}

TEST(ParseRateTest, TakesBytesAndBits) {
  const std::vector<Case> cases = {{"none", 0},
                                   {"None", 0},
                                   {"250MB/s", 250'000'000},
                                   {"250MB", 250'000'000},
                                   {"100MiB/S", 100u << 20},
                                   {"1gbit", 125'000'000},
                                   {"1Gbit/s", 125'000'000},
                                   {"2.5gbit", 312'500'000},
                                   {"800kbit", 100'000},
                                   {"8bit", 1}};
  for (const Case& c : cases) EXPECT_THAT(ParseRate(c.text), IsOkAndHolds(c.value)) << c.text;
}

TEST(ParseRateTest, RefusesARateOfNothingAndWhatIsNoRate) {
  for (const char* text : {"0", "0MB/s", "1bit", "fast", "", "/s", "1gbit/h"}) {
    EXPECT_THAT(ParseRate(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1gbit")))
        << text;
  }
}

TEST(ParseRateTest, ABareNumberIsRefusedWithAnExample) {
  for (const char* text : {"5", "5/s", "0.5"}) {
    EXPECT_THAT(ParseRate(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("has no unit"), HasSubstr("write it like 250MB/s"))))
        << text;
  }
}

TEST(ParseTimeSpanTest, TakesUnitsAndZero) {
  EXPECT_THAT(ParseTimeSpan("0"), IsOkAndHolds(absl::ZeroDuration()));
  EXPECT_THAT(ParseTimeSpan("500ms"), IsOkAndHolds(absl::Milliseconds(500)));
  EXPECT_THAT(ParseTimeSpan("1.5h"), IsOkAndHolds(absl::Minutes(90)));
  EXPECT_THAT(ParseTimeSpan(" 1h30m "), IsOkAndHolds(absl::Minutes(90)));
}

TEST(ParseTimeSpanTest, RefusesABareNumberAndWhatIsNoDuration) {
  for (const char* text : {"60", "0.5", "1e3"}) {
    EXPECT_THAT(ParseTimeSpan(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("has no unit"), HasSubstr("write it like 500ms, 30s"))))
        << text;
  }
  for (const char* text : {"", "soon", "-1s", "inf", "nan", "2d", "5 s"}) {
    EXPECT_THAT(ParseTimeSpan(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                              AllOf(HasSubstr(text), HasSubstr("is no duration"))))
        << text;
  }
}

TEST(ParseAttributesTest, SplitsAtTheFirstEqualsSign) {
  EXPECT_THAT(
      ParseAttributes({"step=57", "formula=a=b", "empty="}),
      IsOkAndHolds(ElementsAre(Pair("empty", ""), Pair("formula", "a=b"), Pair("step", "57"))));
}

TEST(ParseAttributesTest, RefusesAPairWithoutKeyAndAKeyGivenTwice) {
  EXPECT_THAT(ParseAttributes({"step"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"step\"")));
  EXPECT_THAT(ParseAttributes({"=57"}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ParseAttributes({"a=1", "a=2"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("twice")));
}

TEST(ParseAttributesTest, RefusesMoreThanAVersionCarries) {
  EXPECT_THAT(ParseAttributes({"a=" + std::string(kMaxAttributesBytes, 'x')}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(FormatBytesTest, GivesThreeDigitsAndAUnit) {
  const std::vector<Case> cases = {{"0 B", 0},
                                   {"999 B", 999},
                                   {"1.00 kB", 1000},
                                   {"45.4 MB", 45'434'188},
                                   {"999 kB", 999'400},
                                   {"1.00 MB", 999'600},
                                   {"100 MB", 99'960'000},
                                   {"10.0 MB", 9'996'000},
                                   {"4.29 GB", uint64_t{4} << 30},
                                   {"2000 TB", 2'000'000'000'000'000}};
  for (const Case& c : cases) EXPECT_EQ(FormatBytes(c.value), c.text) << c.value;
}

TEST(FormatRateTest, NamesTheMissingCap) {
  EXPECT_EQ(FormatRate(0), "no cap");
  EXPECT_EQ(FormatRate(15'000'000), "15.0 MB/s");
}

}  // namespace
}  // namespace th
