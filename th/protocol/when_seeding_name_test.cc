#include "th/protocol/when_seeding_name.h"

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

TEST(WhenSeedingNameTest, EveryWordIsReadAsWhatItNames) {
  for (const WhenSeeding known : {WhenSeeding::kWait, WhenSeeding::kSkip, WhenSeeding::kCopy}) {
    ASSERT_OK_AND_ASSIGN(const WhenSeeding read, ParseWhenSeeding(WhenSeedingName(known)));
    EXPECT_EQ(read, known);
  }
  EXPECT_EQ(WhenSeedingName(WhenSeeding::kSkip), "skip");
}

TEST(WhenSeedingNameTest, AnotherWordIsRefusedAndTheWordsAreNamed) {
  for (const char* word : {"", "Wait", "unknown", "skips"}) {
    EXPECT_THAT(ParseWhenSeeding(word),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("wait, skip, copy")))
        << word;
  }
}

TEST(WhenSeedingNameTest, AValueThatIsNoneIsUnknown) {
  EXPECT_EQ(WhenSeedingName(static_cast<WhenSeeding>(0)), "unknown");
}

}  // namespace
}  // namespace th
