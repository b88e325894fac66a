#include "th/demo/expected_checksums.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ShardChecksum Checksum(std::string rank, uint32_t shard, std::string checksum) {
  return {.rank = std::move(rank), .shard = shard, .checksum = std::move(checksum), .tensors = 10};
}

TEST(ExpectedChecksumsTest, ReadersWithTheTrainersSumsDoNotDiffer) {
  ExpectedChecksums truth;
  EXPECT_THAT(
      truth.Set("1", {Checksum("t/0", 0, "a"), Checksum("t/1", 1, "b"), Checksum("t/2", 0, "a")}),
      IsEmpty());
  EXPECT_THAT(truth.Compare("1", {Checksum("r/0", 0, "a"), Checksum("r/1", 1, "b")}), IsEmpty());
  EXPECT_EQ(truth.shards_compared(), 2u);
  EXPECT_EQ(truth.tensors_compared(), 20u);
}

TEST(ExpectedChecksumsTest, NamesAReaderThatDiffers) {
  ExpectedChecksums truth;
  truth.Set("1", {Checksum("t/0", 0, "a"), Checksum("t/1", 1, "b")});
  EXPECT_THAT(truth.Compare("1", {Checksum("r/0", 0, "a"), Checksum("r/1", 1, "a")}),
              ElementsAre(HasSubstr("r/1 differs")));
}

TEST(ExpectedChecksumsTest, TakesOldBytesUnderANewVersionAsDifferent) {
  ExpectedChecksums truth;
  truth.Set("1", {Checksum("t/0", 0, "a")});
  truth.Set("2", {Checksum("t/0", 0, "c")});
  EXPECT_THAT(truth.Compare("2", {Checksum("r/0", 0, "a")}),
              ElementsAre(HasSubstr("version 2: r/0")));
}

TEST(ExpectedChecksumsTest, NamesTrainerRanksThatDisagree) {
  ExpectedChecksums truth;
  EXPECT_THAT(truth.Set("1", {Checksum("t/0", 0, "a"), Checksum("t/2", 0, "x")}),
              ElementsAre(HasSubstr("t/2 and t/0")));
}

TEST(ExpectedChecksumsTest, ComparesWithNothingUnknown) {
  ExpectedChecksums truth;
  EXPECT_THAT(truth.Compare("9", {Checksum("r/0", 0, "a")}),
              ElementsAre(HasSubstr("no sum of shard 0")));
  EXPECT_EQ(truth.shards_compared(), 0u);
}

TEST(ExpectedChecksumsTest, AVersionThatIsPublishedAgainHasItsNewSums) {
  ExpectedChecksums truth;
  truth.Set("3", {Checksum("t/0", 0, "a")});
  EXPECT_THAT(truth.Set("3", {Checksum("t/0", 0, "b")}), IsEmpty());
  EXPECT_THAT(truth.Compare("3", {Checksum("r/0", 0, "b")}), IsEmpty());
}

}  // namespace
}  // namespace th
