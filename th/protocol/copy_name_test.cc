#include "th/protocol/copy_name.h"

#include "gtest/gtest.h"

namespace th {
namespace {

TEST(CopyNameTest, TellsWhatItIsOfAndForWhichOperation) {
  const VersionSequence version = VersionSequence::Of(Epoch(1), 2);
  EXPECT_EQ(
      CopyName("weights", CopyFor::kRetention, version, GroupGeneration(3), OperationNumber(4)),
      "weights.offload-4294967298.3.4");
  EXPECT_EQ(CopyName("weights", CopyFor::kSite, version, GroupGeneration(3), OperationNumber(4)),
            "weights.seed-4294967298.3.4");
}

}  // namespace
}  // namespace th
