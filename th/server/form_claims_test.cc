#include "th/server/form_claims.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;

constexpr absl::Duration kClaim = absl::Minutes(5);

class FormClaimsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::string> Choose(const std::string& group, absl::Duration claim = kClaim) {
    return Choose(form_, group, claim);
  }
  absl::StatusOr<std::string> Choose(const FormOfVersion& form, const std::string& group,
                                     absl::Duration claim = kClaim) {
    return claims_.Choose(form, group, claim, now_,
                          [this](const ModelKey& key, const std::string& asked) {
                            return key == form_.key && !gone_.contains(asked);
                          });
  }

  const FormOfVersion form_{{"r1", "m"}, VersionSequence(7), "engine"};
  FormClaims claims_;
  std::set<std::string> gone_;
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
};

TEST_F(FormClaimsTest, TheFirstThatAsksMakesTheForm) {
  EXPECT_THAT(Choose("b"), IsOkAndHolds("b"));
  EXPECT_THAT(Choose("a"), IsOkAndHolds("b"));
  EXPECT_THAT(Choose("b"), IsOkAndHolds("b"));
}

TEST_F(FormClaimsTest, EachFormOfEachVersionIsByItself) {
  EXPECT_THAT(Choose("a"), IsOkAndHolds("a"));
  FormOfVersion other = form_;
  other.form = "engine-fp8";
  EXPECT_THAT(Choose(other, "b"), IsOkAndHolds("b"));
  other = form_;
  other.version = VersionSequence(8);
  EXPECT_THAT(Choose(other, "b"), IsOkAndHolds("b"));
}

TEST_F(FormClaimsTest, AGroupThatIsGoneMakesNothing) {
  EXPECT_THAT(Choose("a"), IsOkAndHolds("a"));
  gone_.insert("a");
  EXPECT_THAT(Choose("b"), IsOkAndHolds("b"));
  gone_.erase("a");
  EXPECT_THAT(Choose("a"), IsOkAndHolds("b"));
}

TEST_F(FormClaimsTest, AClaimEndsWithItsTime) {
  EXPECT_THAT(Choose("a"), IsOkAndHolds("a"));
  now_ += kClaim - absl::Nanoseconds(1);
  EXPECT_THAT(Choose("b"), IsOkAndHolds("a"));
  now_ += absl::Nanoseconds(1);
  EXPECT_THAT(Choose("b"), IsOkAndHolds("b"));
}

TEST_F(FormClaimsTest, WhoAsksAgainHasItsTimeFromThenOn) {
  EXPECT_THAT(Choose("a"), IsOkAndHolds("a"));
  now_ += kClaim / 2;
  EXPECT_THAT(Choose("a"), IsOkAndHolds("a"));
  now_ += kClaim / 2;
  EXPECT_THAT(Choose("b"), IsOkAndHolds("a"));
}

TEST_F(FormClaimsTest, ZeroGivesItBackAndTakesNobodyElses) {
  EXPECT_THAT(Choose("a"), IsOkAndHolds("a"));
  EXPECT_THAT(Choose("b", absl::ZeroDuration()), IsOkAndHolds("a"));
  EXPECT_THAT(Choose("a", absl::ZeroDuration()), IsOkAndHolds("a"));
  EXPECT_EQ(claims_.size(), 0u);
  EXPECT_THAT(Choose("b"), IsOkAndHolds("b"));
}

TEST_F(FormClaimsTest, NoClaimIsForEver) {
  EXPECT_THAT(Choose("a", absl::InfiniteDuration()), IsOkAndHolds("a"));
  now_ += kLongestFormClaim;
  EXPECT_THAT(Choose("b"), IsOkAndHolds("b"));
}

TEST_F(FormClaimsTest, ThereAreNoMoreThanTheLimitAndOldOnesMakeRoom) {
  FormOfVersion form = form_;
  for (size_t i = 0; i < kMaxFormClaims; ++i) {
    form.form = absl::StrCat("form-", i);
    ASSERT_THAT(Choose(form, "a"), IsOkAndHolds("a"));
  }
  EXPECT_THAT(Choose("a"), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(Choose(form, "b"), IsOkAndHolds("a")) << "who only asks needs no room";
  now_ += kClaim;
  EXPECT_THAT(Choose("a"), IsOkAndHolds("a"));
  EXPECT_EQ(claims_.size(), 1u);
}

TEST_F(FormClaimsTest, WhatIsOfferedIsNoClaimAnyMore) {
  EXPECT_THAT(Choose("a"), IsOkAndHolds("a"));
  claims_.Drop(form_);
  EXPECT_EQ(claims_.size(), 0u);
}

}  // namespace
}  // namespace th
