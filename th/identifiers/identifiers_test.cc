#include "th/identifiers/identifiers.h"

#include <sstream>
#include <type_traits>

#include "absl/container/flat_hash_set.h"
#include "gtest/gtest.h"

namespace th {
namespace {

static_assert(!std::is_convertible_v<WorkerId, AssignmentId>);
static_assert(!std::is_convertible_v<uint64_t, WorkerId>);
static_assert(!std::is_convertible_v<WorkerId, uint64_t>);

TEST(IdentifiersTest, NumbersCompareAndCount) {
  EXPECT_LT(WorkerId(1), WorkerId(2));
  EXPECT_EQ(WorkerId(1).Next(), WorkerId(2));
  EXPECT_EQ(WorkerId(), WorkerId(0));
}

TEST(IdentifiersTest, SequencesOfALaterEpochAreHigher) {
  const VersionSequence before = VersionSequence::Of(Epoch(2), 0xffffffff);
  const VersionSequence after = VersionSequence::Of(Epoch(3), 0);
  EXPECT_LT(before, after);
  EXPECT_EQ(before.epoch(), Epoch(2));
  EXPECT_EQ(before.number(), 0xffffffffu);
  EXPECT_EQ(after.ToString(), "3.0");
}

TEST(IdentifiersTest, ShowThemselvesInMessages) {
  std::ostringstream text;
  text << WorkerId(7) << " " << VersionSequence::Of(Epoch(2), 17);
  EXPECT_EQ(text.str(), "7 2.17");
  EXPECT_EQ((ModelKey{"r1", "qwen3"}.ToString()), "run=r1 model=qwen3");
  EXPECT_EQ((RankName{"rollout-3", Rank(1)}.ToString()), "rollout-3/1");
}

TEST(IdentifiersTest, ModelsOfTwoRunsAreTwoModels) {
  const ModelKey a{"r1", "qwen3"};
  const ModelKey b{"r2", "qwen3"};
  EXPECT_NE(a, b);
  EXPECT_EQ((absl::flat_hash_set<ModelKey>{a, b, a}.size()), 2u);
}

TEST(IdentifiersTest, BuffersOfTwoWorkersAreTwoBuffers) {
  const absl::flat_hash_set<BufferAddress> addresses = {
      {WorkerId(1), BufferId(1)}, {WorkerId(2), BufferId(1)}, {WorkerId(1), BufferId(2)}};
  EXPECT_EQ(addresses.size(), 3u);
}

}  // namespace
}  // namespace th
