#include "th/cli/rollback_outcome.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::th::testing::StatusIs;

const ModelKey kKey{.run = "r1", .model = "m"};

VersionInfo Info(uint32_t number) {
  return {.sequence = VersionSequence::Of(Epoch(1), number),
          .label = VersionLabel::FromStep(number)};
}

// Versions 1 to `newest`; those after `withdrawn_after` are withdrawn.
Catalog Versions(uint32_t newest, uint32_t withdrawn_after) {
  CatalogModel model{.key = kKey};
  for (uint32_t number = newest; number > 0; --number) {
    model.versions.push_back(
        {.info = Info(number), .published = true, .withdrawn = number > withdrawn_after});
  }
  return {.models = {{.key = {.run = "r1", .model = "other"}, .versions = model.versions}, model}};
}

TEST(RollBackOutcomeTest, NamesWhatWasWithdrawn) {
  const RollBackOutcome outcome = OutcomeOf(Versions(4, 3), Versions(4, 1), kKey, Info(1));
  EXPECT_THAT(outcome.withdrawn, ElementsAre("3 (#1.3)", "2 (#1.2)"));
  EXPECT_EQ(TextOf(outcome, kKey, Info(1)),
            "run=r1 model=m is back at version 1 (#1.1); withdrawn: 3 (#1.3), 2 (#1.2)");
}

TEST(RollBackOutcomeTest, SaysThatThereWasNothingToWithdraw) {
  const RollBackOutcome outcome = OutcomeOf(Versions(3, 2), Versions(3, 2), kKey, Info(2));
  EXPECT_THAT(outcome.withdrawn, IsEmpty());
  EXPECT_THAT(TextOf(outcome, kKey, Info(2)), HasSubstr("nothing was withdrawn"));
}

TEST(RollBackOutcomeTest, SaysThatTheKeyRanBeforeWhereLaterVersionsStay) {
  const RollBackOutcome outcome = OutcomeOf(Versions(3, 3), Versions(3, 3), kKey, Info(1));
  EXPECT_THAT(outcome.withdrawn, IsEmpty());
  EXPECT_THAT(TextOf(outcome, kKey, Info(1)),
              AllOf(HasSubstr("nothing was done"), HasSubstr("3 (#1.3), 2 (#1.2) came later")));
}

TEST(RollBackOutcomeTest, AVersionThatCameMeanwhileIsNone) {
  EXPECT_THAT(OutcomeOf(Versions(2, 2), Versions(3, 3), kKey, Info(2)).standing, IsEmpty());
}

TEST(RollBackKeyTest, TheResultOfAnotherVersionsKeyIsRefused) {
  EXPECT_OK(CheckKeyIsOfThis(Info(1).label, Info(1), "k"));
  EXPECT_OK(CheckKeyIsOfThis(Info(1).sequence, Info(1), "k"));
  EXPECT_OK(CheckKeyIsOfThis(LatestVersion{.back = 1}, Info(1), "k"));
  for (const VersionSelector& other :
       {VersionSelector(Info(2).label), VersionSelector(Info(2).sequence)}) {
    EXPECT_THAT(CheckKeyIsOfThis(other, Info(1), "k"),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("--key k"), HasSubstr("to 1 (#1.1): nothing was done"))));
  }
}

TEST(RollBackOutcomeTest, AVersionThatNobodyHoldsIsToldApart) {
  Catalog catalog;
  CatalogModel& model = catalog.models.emplace_back();
  model.key = {"r1", "qwen3"};
  CatalogVersion& version = model.versions.emplace_back();
  version.info.sequence = VersionSequence(7);
  EXPECT_FALSE(IsHeld(catalog, model.key, VersionSequence(7)));
  version.replicas.emplace_back();
  EXPECT_TRUE(IsHeld(catalog, model.key, VersionSequence(7)));
  EXPECT_FALSE(IsHeld(catalog, model.key, VersionSequence(8)));
}

}  // namespace
}  // namespace th
