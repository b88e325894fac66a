#include "th/client/memory_claims.h"

#include <utility>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

constexpr BufferId kBuffer(1), kOther(2);

TEST(MemoryClaimsTest, AClaimedBufferIsClosedToVerbsUntilItIsReleased) {
  MemoryClaims claims;
  claims.Claim(kBuffer, ClaimFor::kSnapshot);
  EXPECT_THAT(claims.CheckAwake(kBuffer),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("snapshot")));
  EXPECT_OK(claims.CheckAwake(kOther));
  EXPECT_TRUE(claims.HasAnyFor(ClaimFor::kSnapshot));
  EXPECT_FALSE(claims.HasAnyFor(ClaimFor::kReset));
  claims.Release(kBuffer);
  EXPECT_OK(claims.CheckAwake(kBuffer));
  EXPECT_FALSE(claims.HasAnyFor(ClaimFor::kSnapshot));
}

TEST(MemoryClaimsTest, WhoIsRefusedHearsWhatTheOtherThreadDoes) {
  const std::pair<ClaimFor, const char*> kTexts[] = {
      {ClaimFor::kRebind, "changing the buffer's memory"},
      {ClaimFor::kSleep, "changing the buffer's memory"},
      {ClaimFor::kWake, "changing the buffer's memory"},
      {ClaimFor::kReset, "resetting"},
      {ClaimFor::kWithdraw, "ending"},
  };
  for (const auto& [purpose, text] : kTexts) {
    MemoryClaims claims;
    claims.Claim(kBuffer, purpose);
    EXPECT_THAT(claims.CheckUnclaimed(kBuffer),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(text)));
  }
}

TEST(MemoryClaimsTest, AnAsleepBufferIsClosedToVerbsAndMayBeClaimed) {
  MemoryClaims claims;
  claims.FallAsleep(kBuffer);
  EXPECT_TRUE(claims.IsAsleep(kBuffer));
  EXPECT_THAT(claims.CheckAwake(kBuffer),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Wake")));
  EXPECT_OK(claims.CheckUnclaimed(kBuffer));
  claims.Wake(kBuffer);
  EXPECT_OK(claims.CheckAwake(kBuffer));
}

TEST(MemoryClaimsTest, ABufferThatHasEndedLeavesNothing) {
  MemoryClaims claims;
  claims.FallAsleep(kBuffer);
  claims.Claim(kBuffer, ClaimFor::kWithdraw);
  claims.Forget(kBuffer);
  EXPECT_OK(claims.CheckAwake(kBuffer));
}

}  // namespace
}  // namespace th
