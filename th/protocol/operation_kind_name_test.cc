#include "th/protocol/operation_kind_name.h"

#include "gtest/gtest.h"

namespace th {
namespace {

TEST(OperationKindNameTest, EveryKindIsNamedAsItsVerb) {
  EXPECT_EQ(OperationKindName(OperationKind::kPublish), "publish");
  EXPECT_EQ(OperationKindName(OperationKind::kUnpublish), "unpublish");
  EXPECT_EQ(OperationKindName(OperationKind::kUpdate), "update");
}

TEST(OperationKindNameTest, AValueThatIsNoKindIsUnknown) {
  EXPECT_EQ(OperationKindName(static_cast<OperationKind>(0)), "unknown");
  EXPECT_EQ(OperationKindName(static_cast<OperationKind>(4)), "unknown");
}

}  // namespace
}  // namespace th
