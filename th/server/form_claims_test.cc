#include "th/server/form_claims.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace th {
namespace {

constexpr absl::Duration kClaim = absl::Minutes(5);

class FormClaimsTest : public ::testing::Test {
 protected:
  std::string Choose(const std::string& group, absl::Duration claim = kClaim) {
    return Choose(form_, group, claim);
  }
  std::string Choose(const FormOfVersion& form, const std::string& group,
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
  EXPECT_EQ(Choose("b"), "b");
  EXPECT_EQ(Choose("a"), "b");
  EXPECT_EQ(Choose("b"), "b");
}

TEST_F(FormClaimsTest, EachFormOfEachVersionIsByItself) {
  EXPECT_EQ(Choose("a"), "a");
  FormOfVersion other = form_;
  other.form = "engine-fp8";
  EXPECT_EQ(Choose(other, "b"), "b");
  other = form_;
  other.version = VersionSequence(8);
  EXPECT_EQ(Choose(other, "b"), "b");
}

TEST_F(FormClaimsTest, AGroupThatIsGoneMakesNothing) {
  EXPECT_EQ(Choose("a"), "a");
  gone_.insert("a");
  EXPECT_EQ(Choose("b"), "b");
  gone_.erase("a");
  EXPECT_EQ(Choose("a"), "b");
}

TEST_F(FormClaimsTest, AClaimEndsWithItsTime) {
  EXPECT_EQ(Choose("a"), "a");
  now_ += kClaim - absl::Nanoseconds(1);
  EXPECT_EQ(Choose("b"), "a");
  now_ += absl::Nanoseconds(1);
  EXPECT_EQ(Choose("b"), "b");
}

TEST_F(FormClaimsTest, WhoAsksAgainHasItsTimeFromThenOn) {
  EXPECT_EQ(Choose("a"), "a");
  now_ += kClaim / 2;
  EXPECT_EQ(Choose("a"), "a");
  now_ += kClaim / 2;
  EXPECT_EQ(Choose("b"), "a");
}

TEST_F(FormClaimsTest, ZeroGivesItBackAndTakesNobodyElses) {
  EXPECT_EQ(Choose("a"), "a");
  EXPECT_EQ(Choose("b", absl::ZeroDuration()), "a");
  EXPECT_EQ(Choose("a", absl::ZeroDuration()), "a");
  EXPECT_EQ(claims_.size(), 0u);
  EXPECT_EQ(Choose("b"), "b");
}

TEST_F(FormClaimsTest, NoClaimIsForEver) {
  EXPECT_EQ(Choose("a", absl::InfiniteDuration()), "a");
  now_ += kLongestFormClaim;
  EXPECT_EQ(Choose("b"), "b");
}

TEST_F(FormClaimsTest, BeyondTheLimitFormsAreMadeUnclaimedAndOldOnesMakeRoom) {
  FormOfVersion form = form_;
  for (size_t i = 0; i < kMaxFormClaims; ++i) {
    form.form = absl::StrCat("form-", i);
    ASSERT_EQ(Choose(form, "a"), "a");
  }
  EXPECT_EQ(Choose("b"), "b");
  EXPECT_EQ(Choose("c"), "c") << "nobody is known to make it";
  EXPECT_EQ(claims_.size(), kMaxFormClaims);
  EXPECT_EQ(Choose(form, "b"), "a") << "what is claimed is";
  gone_.insert("a");
  EXPECT_EQ(Choose("b"), "b");
  EXPECT_EQ(Choose("c"), "b");
  EXPECT_EQ(claims_.size(), 1u);
}

TEST_F(FormClaimsTest, AGroupThatMakesTheNextVersionMakesTheOneBeforeNoMore) {
  EXPECT_EQ(Choose("a"), "a");
  FormOfVersion next = form_;
  next.version = VersionSequence(8);
  EXPECT_EQ(Choose(next, "a"), "a");
  EXPECT_EQ(Choose("b"), "b");
  EXPECT_EQ(Choose(next, "b"), "a");
  EXPECT_EQ(Choose("a"), "b") << "b waits for the next one, and makes this one";
}

TEST_F(FormClaimsTest, WhatIsOfferedIsNoClaimAnyMore) {
  EXPECT_EQ(Choose("a"), "a");
  claims_.Drop(form_);
  EXPECT_EQ(claims_.size(), 0u);
}

}  // namespace
}  // namespace th
