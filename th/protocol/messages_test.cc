#include "th/protocol/messages.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;

struct AgreementCase {
  const char* name;
  uint32_t own_min, own_max, peer_min, peer_max;
  uint32_t agreed;  // 0: none
};

class AgreeOnVersionTest : public ::testing::TestWithParam<AgreementCase> {};

TEST_P(AgreeOnVersionTest, TakesTheHighestThatBothSpeak) {
  const AgreementCase& c = GetParam();
  const ProtocolHello own{.min_version = c.own_min, .max_version = c.own_max};
  const ProtocolHello peer{.min_version = c.peer_min, .max_version = c.peer_max};
  if (c.agreed != 0) {
    EXPECT_THAT(AgreeOnVersion(own, peer), IsOkAndHolds(c.agreed));
    EXPECT_THAT(AgreeOnVersion(peer, own), IsOkAndHolds(c.agreed));
    return;
  }
  const auto range = [](uint32_t min, uint32_t max) {
    return HasSubstr(absl::StrCat("versions ", min, " to ", max));
  };
  EXPECT_THAT(AgreeOnVersion(own, peer),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(range(c.own_min, c.own_max), range(c.peer_min, c.peer_max))));
}

INSTANTIATE_TEST_SUITE_P(Ranges, AgreeOnVersionTest,
                         ::testing::Values(AgreementCase{"Equal", 1, 1, 1, 1, 1},
                                           AgreementCase{"NewerPeerKnowsOurs", 1, 1, 1, 2, 1},
                                           AgreementCase{"BothNewer", 1, 3, 2, 5, 3},
                                           AgreementCase{"PeerTooNew", 1, 1, 2, 3, 0},
                                           AgreementCase{"PeerTooOld", 4, 5, 1, 3, 0},
                                           AgreementCase{"PeerSaysNothing", 1, 1, 0, 0, 0},
                                           AgreementCase{"PeerRangeInverted", 1, 9, 5, 3, 0}),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(AgreeOnVersionTest, NamesThePeersSoftware) {
  const ProtocolHello own{.min_version = 1, .max_version = 1, .software = "tensorhub 0.1"};
  const ProtocolHello peer{.min_version = 7, .max_version = 8, .software = "tensorhub 9"};
  EXPECT_THAT(AgreeOnVersion(own, peer),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("(tensorhub 9)")));
}

TEST(OperationKeyTest, OrdersByBufferThenNumber) {
  const OperationKey first{BufferId(1), OperationNumber(9)};
  const OperationKey second{BufferId(2), OperationNumber(1)};
  EXPECT_LT(first, second);
  EXPECT_EQ(first, (OperationKey{BufferId(1), OperationNumber(9)}));
}

TEST(OperationKindNameTest, EveryKindIsNamedAsItsVerb) {
  EXPECT_EQ(OperationKindName(OperationKind::kPublish), "publish");
  EXPECT_EQ(OperationKindName(OperationKind::kUnpublish), "unpublish");
  EXPECT_EQ(OperationKindName(OperationKind::kUpdate), "update");
}

TEST(OperationKindNameTest, AValueThatIsNoKindIsUnknown) {
  EXPECT_EQ(OperationKindName(static_cast<OperationKind>(0)), "unknown");
  EXPECT_EQ(OperationKindName(static_cast<OperationKind>(4)), "unknown");
}

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
