#include "th/scheduler/link_rate.h"

#include <optional>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace th {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'000'000);
constexpr auto kFaster = LinkRate::Above::kFaster;
constexpr auto kAlike = LinkRate::Above::kAlikeOrSlower;

TEST(LinkRateTest, ALinkWithoutALimitIsAsFastAsAny) {
  EXPECT_FALSE(IsSlower(std::nullopt, std::nullopt));
  EXPECT_FALSE(IsSlower(std::nullopt, 100.0));
  EXPECT_TRUE(IsSlower(100.0, std::nullopt));
}

TEST(LinkRateTest, LinksOfAboutTheSameRateAreAlike) {
  EXPECT_FALSE(IsSlower(100.0, 100.0));
  EXPECT_FALSE(IsSlower(100.0, 100.0 * kLinksAlike));
  EXPECT_TRUE(IsSlower(100.0, 101.0 * kLinksAlike));
  EXPECT_FALSE(IsSlower(101.0 * kLinksAlike, 100.0));
}

TEST(LinkRateTest, ALinkThatCarriesMoreThanItsLimitHasNone) {
  LinkRate link;
  EXPECT_FALSE(link.NoteReceived(100, kFaster, kNow));
  link.NoteLimited(100, kNow);
  EXPECT_FALSE(link.NoteReceived(100 * kLinksAlike, kFaster, kNow))
      << "as exact as a throughput is";
  EXPECT_EQ(link.limit(), 100.0);
  EXPECT_TRUE(link.NoteReceived(101 * kLinksAlike, kFaster, kNow));
  EXPECT_EQ(link.limit(), std::nullopt);
}

TEST(LinkRateTest, ALimitIsForgottenUnlessItIsNotedAgain) {
  LinkRate link;
  link.NoteLimited(100, kNow);
  link.NoteLimited(90, kNow + absl::Minutes(1));
  EXPECT_FALSE(link.ForgetOld(kNow + absl::Minutes(1) + kLinkRateLasts));
  EXPECT_EQ(link.limit(), 90.0);
  EXPECT_TRUE(link.ForgetOld(kNow + absl::Minutes(2) + kLinkRateLasts));
  EXPECT_EQ(link.limit(), std::nullopt);
  EXPECT_FALSE(link.ForgetOld(kNow + absl::Minutes(3) + kLinkRateLasts));
}

TEST(LinkRateTest, ALimitLastsAsLongAsTheLinkCarriesAboutThat) {
  LinkRate link;
  link.NoteLimited(100, kNow);
  EXPECT_FALSE(link.NoteReceived(100 / kLinksAlike, kAlike, kNow + kLinkRateLasts));
  EXPECT_FALSE(link.ForgetOld(kNow + 2 * kLinkRateLasts));
  EXPECT_FALSE(link.NoteReceived(99 / kLinksAlike, kAlike, kNow + 2 * kLinkRateLasts));
  EXPECT_TRUE(link.ForgetOld(kNow + 2 * kLinkRateLasts + absl::Seconds(1)));
}

TEST(LinkRateTest, OnlyAReaderBelowAFasterLinkProvesItsLimit) {
  LinkRate link;
  link.NoteLimited(100, kNow);
  link.NoteReceived(100, kAlike, kNow + absl::Seconds(5));
  EXPECT_EQ(link.UnprovedFor(kNow + absl::Seconds(9)), absl::Seconds(9));
  link.NoteReceived(100, kFaster, kNow + absl::Seconds(7));
  EXPECT_EQ(link.UnprovedFor(kNow + absl::Seconds(9)), absl::Seconds(2));
}

TEST(LinkRateTest, ALimitForATrialEndsWithIt) {
  LinkRate link;
  link.NoteForTrial(100, kNow + absl::Seconds(8));
  EXPECT_FALSE(link.NoteReceived(100, kFaster, kNow + absl::Seconds(7)));
  EXPECT_FALSE(link.ForgetOld(kNow + absl::Seconds(8)));
  EXPECT_TRUE(link.ForgetOld(kNow + absl::Seconds(9)));
  link.NoteForTrial(100, kNow + absl::Seconds(18));
  link.NoteLimited(100, kNow + absl::Seconds(11));
  EXPECT_FALSE(link.ForgetOld(kNow + absl::Seconds(19))) << "it was noted for good";
}

}  // namespace
}  // namespace th
