#include "th/client/applied.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const VersionInfo kOld{.sequence = VersionSequence(1),
                       .label = VersionLabel::Parse("step-1").value()};
const VersionInfo kNew{.sequence = VersionSequence(2),
                       .label = VersionLabel::Parse("step-2").value()};

CatalogReplica Replica(std::string group, std::string state,
                       BufferRole role = BufferRole::kPrimary) {
  return {.group = std::move(group),
          .role = role,
          .state = std::move(state),
          .ranks = {{.bytes = 100, .bytes_held = 100}, {.bytes = 100, .bytes_held = 20}}};
}

CatalogModel Model() {
  return {.versions = {{.info = kNew,
                        .replicas = {Replica("trainer", "published"), Replica("a", "complete"),
                                     Replica("b", "filling"),
                                     Replica("c", "complete", BufferRole::kStaged)}},
                       {.info = kOld, .replicas = {Replica("c", "complete")}}},
          .idle = {Replica("d", "")}};
}

std::vector<std::string> Why(const AppliedResult& result) {
  std::vector<std::string> texts;
  for (const AppliedResult::Lacking& each : result.lacking) {
    texts.push_back(each.group + " " + each.why);
  }
  return texts;
}

TEST(AppliedTest, WhoHoldsTheVersionWholeHasAppliedIt) {
  const CatalogModel model = Model();
  const AppliedResult result = FindApplied(&model, /*recovering=*/false, kNew, {"a", "trainer"});
  EXPECT_TRUE(result.all());
  EXPECT_THAT(result.applied, ElementsAre("a", "trainer"));
  EXPECT_EQ(result.version, kNew);
}

TEST(AppliedTest, EachOtherGroupIsNamedWithWhatItHasInstead) {
  const CatalogModel model = Model();
  const AppliedResult result =
      FindApplied(&model, /*recovering=*/false, kNew, {"b", "a", "c", "d", "e"});
  EXPECT_FALSE(result.all());
  EXPECT_THAT(result.applied, ElementsAre("a"));
  EXPECT_THAT(Why(result),
              ElementsAre("b is filling, 120 of 200 bytes", "c holds " + kOld.ToString(),
                          "d holds nothing", "e has not joined"));
}

TEST(AppliedTest, AGroupWithASecondBufferThatFillsIsNotDone) {
  CatalogModel model = Model();
  model.versions[0].replicas.push_back(Replica("a", "filling"));
  EXPECT_THAT(FindApplied(&model, /*recovering=*/false, kNew, {"a"}).applied, IsEmpty());
}

TEST(AppliedTest, WhileRanksMayComeBackToTheServerNobodyIsKnownToHaveIt) {
  const CatalogModel model = Model();
  const AppliedResult result = FindApplied(&model, /*recovering=*/true, kNew, {"a", "b"});
  EXPECT_THAT(result.applied, IsEmpty());
  EXPECT_THAT(Why(result), ElementsAre(HasSubstr("a is not known to hold it on all ranks"),
                                       "b is filling, 120 of 200 bytes"));
}

TEST(AppliedTest, WithoutTheModelNobodyHasIt) {
  EXPECT_THAT(Why(FindApplied(nullptr, /*recovering=*/false, kNew, {"a"})),
              ElementsAre("a has not joined"));
}

}  // namespace
}  // namespace th
