#include "th/protocol/answer.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

VersionInfo Version(const std::string& label, uint32_t number) {
  return {.sequence = VersionSequence::Of(Epoch(1), number),
          .label = VersionLabel::Parse(label).value()};
}

TEST(AnswerTest, APublishIsAnsweredByItsOwnLabel) {
  StartOperation asked{.kind = OperationKind::kPublish};
  asked.label = VersionLabel::Parse("step-2").value();
  EXPECT_THAT(WhyNoAnswer(asked, Version("step-2", 2)), IsEmpty());
  EXPECT_THAT(WhyNoAnswer(asked, Version("step-1", 1)),
              AllOf(HasSubstr("step-1"), HasSubstr("'step-2' was published")));
}

TEST(AnswerTest, ADerivedFormIsAnsweredByTheVersionThatItDerivesFrom) {
  StartOperation asked{.kind = OperationKind::kPublish};
  asked.derived_from = VersionSequence::Of(Epoch(1), 2);
  EXPECT_THAT(WhyNoAnswer(asked, Version("step-2", 2)), IsEmpty());
  EXPECT_THAT(WhyNoAnswer(asked, Version("step-1", 1)), HasSubstr("a form of another version"));
}

TEST(AnswerTest, AnUpdateIsAnsweredByWhatItsSelectorMayName) {
  StartOperation asked{.kind = OperationKind::kUpdate};
  EXPECT_THAT(WhyNoAnswer(asked, Version("step-1", 1)), IsEmpty()) << "latest may be anything";
  asked.selector = VersionLabel::Parse("step-2").value();
  EXPECT_THAT(WhyNoAnswer(asked, Version("step-2", 7)), IsEmpty());
  EXPECT_THAT(WhyNoAnswer(asked, Version("step-1", 1)), HasSubstr("step-2 was asked for"));
  asked.selector = VersionSequence::Of(Epoch(1), 2);
  EXPECT_THAT(WhyNoAnswer(asked, Version("step-2", 2)), IsEmpty());
  EXPECT_THAT(WhyNoAnswer(asked, Version("step-1", 1)), HasSubstr("#1.2 was asked for"));
}

TEST(AnswerTest, AnUnpublishNamesWhateverWasThere) {
  EXPECT_THAT(WhyNoAnswer({.kind = OperationKind::kUnpublish}, Version("step-1", 1)), IsEmpty());
}

TEST(AnswerTest, AnEndThatIsForgottenIsToldFromOneThatIsKnown) {
  EXPECT_TRUE(SaysForgotten(absl::AbortedError(absl::StrCat("its result ", kForgotten))));
  EXPECT_FALSE(SaysForgotten(absl::AbortedError("a rank was replaced")));
  EXPECT_FALSE(SaysForgotten(absl::UnavailableError("what was there is forgotten")));
  EXPECT_FALSE(SaysForgotten(absl::OkStatus()));
}

TEST(AnswerTest, AnEndThatDidNothingForOneRankIsToldFromOneOfTheWholeGroup) {
  EXPECT_TRUE(SaysNothingDoneForRank(absl::AbortedError(
      absl::StrCat("the result names another version; ", kNothingDoneForRank, ", ask again"))));
  EXPECT_FALSE(SaysNothingDoneForRank(absl::AbortedError("a rank was replaced")));
  EXPECT_FALSE(SaysNothingDoneForRank(absl::UnavailableError(kNothingDoneForRank)));
  EXPECT_FALSE(SaysNothingDoneForRank(absl::OkStatus()));
}

}  // namespace
}  // namespace th
