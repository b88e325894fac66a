#include "th/protocol/membership_secret.h"

#include "gtest/gtest.h"

namespace th {
namespace {

ClusterKey KeyOf(uint8_t byte) {
  ClusterKey key;
  key.bytes.fill(byte);
  return key;
}

TEST(MembershipSecretTest, TheSameMembershipHasTheSameSecret) {
  EXPECT_TRUE(DeriveMembershipSecret(KeyOf(1), WorkerId(7), EpochId(3)) ==
              DeriveMembershipSecret(KeyOf(1), WorkerId(7), EpochId(3)));
}

TEST(MembershipSecretTest, AnotherKeyWorkerOrEpochHasAnotherSecret) {
  const MembershipSecret secret = DeriveMembershipSecret(KeyOf(1), WorkerId(7), EpochId(3));
  EXPECT_FALSE(secret == DeriveMembershipSecret(KeyOf(2), WorkerId(7), EpochId(3)));
  EXPECT_FALSE(secret == DeriveMembershipSecret(KeyOf(1), WorkerId(8), EpochId(3)));
  EXPECT_FALSE(secret == DeriveMembershipSecret(KeyOf(1), WorkerId(7), EpochId(4)));
  EXPECT_FALSE(secret == MembershipSecret{});
}

}  // namespace
}  // namespace th
