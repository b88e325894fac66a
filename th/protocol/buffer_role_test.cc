#include "th/protocol/buffer_role.h"

#include <iterator>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace th {
namespace {

constexpr BufferRole kAllRoles[] = {BufferRole::kPrimary, BufferRole::kOffload,
                                    BufferRole::kSiteCopy, BufferRole::kStaged,
                                    BufferRole::kStreaming};

TEST(BufferRoleTest, EveryRoleHasANameOfItsOwn) {
  std::set<std::string> names, keys;
  for (const BufferRole role : kAllRoles) {
    names.emplace(BufferRoleName(role));
    keys.emplace(BufferRoleKey(role));
  }
  EXPECT_EQ(names.size(), std::size(kAllRoles));
  EXPECT_EQ(keys.size(), std::size(kAllRoles));
}

TEST(BufferRoleTest, OnlyWhatTheSessionMakesIsTemporary) {
  EXPECT_FALSE(IsTemporary(BufferRole::kPrimary));
  EXPECT_FALSE(IsTemporary(BufferRole::kStreaming));
  EXPECT_TRUE(IsTemporary(BufferRole::kOffload));
  EXPECT_TRUE(IsTemporary(BufferRole::kSiteCopy));
  EXPECT_TRUE(IsTemporary(BufferRole::kStaged));
}

TEST(BufferRoleTest, AStagedCopyHasNoOffloadLimitAndComesAgainUnderItsName) {
  EXPECT_FALSE(IsHostCopy(BufferRole::kStaged));
  EXPECT_FALSE(HasNameOfItsOwn(BufferRole::kStaged));
  EXPECT_FALSE(HasNameOfItsOwn(BufferRole::kPrimary));
  EXPECT_TRUE(HasNameOfItsOwn(BufferRole::kSiteCopy));
  EXPECT_TRUE(HasNameOfItsOwn(BufferRole::kStreaming));
}

}  // namespace
}  // namespace th
