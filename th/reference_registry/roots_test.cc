// Who is believed about a shard's root after a restart of the server.
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

// Beside the trainer another publisher of step-1 whose bytes differ, and which has not heard what
// came of that, when the server dies.
class TwoRootsTest : public ::testing::Test {
 protected:
  TwoRootsTest()
      : trainer_(Trainer(hub_, "step-1")),
        rollout_(Rollout(hub_, "rollout")),
        liar_(hub_, "liar", 0, 1),
        late_(hub_, "late", 0, 1) {
    rollout_.Update();
    rollout_.FillWhole();
    version_ = rollout_.Finished().version;
    liar_.JoinAndRegister();
    liar_.Publish("step-1");
    EXPECT_EQ(liar_.Finished().version, version_);
  }

  bool TrainerResumes() { return trainer_.Resume({trainer_.Holding(version_, true, "step-1")}); }
  bool LiarResumes() { return liar_.Resume({liar_.Holding(version_, true, "a lie")}); }
  bool ReaderResumes() { return rollout_.Resume({rollout_.Holding(version_, false, "step-1")}); }
  void LateAsks() {
    late_.JoinAndRegister();
    late_.Update();
    hub_.Advance(RegistryLimits().recovery_window);
  }
  void AdoptionEnds(const std::vector<TestRank*>& alive) {
    for (int i = 0; i < 3; ++i) {
      for (TestRank* rank : alive) rank->Say(Heartbeat{});
      hub_.Advance(absl::Seconds(2));
    }
  }

  RegistryHarness hub_;
  TestRank trainer_;
  TestRank rollout_;
  TestRank liar_;
  TestRank late_;
  VersionInfo version_;
};

TEST_F(TwoRootsTest, WhatAReaderWasToldOutdoesAPublisherThatComesFirst) {
  hub_.Restart();
  ASSERT_TRUE(LiarResumes());
  EXPECT_TRUE(liar_.HearsNone<PublicationRefused>());
  ASSERT_TRUE(ReaderResumes());
  EXPECT_EQ(liar_.Heard<PublicationRefused>().version, version_.sequence);
  ASSERT_TRUE(TrainerResumes());
  EXPECT_TRUE(rollout_.HearsNone<PublicationRefused>());
  EXPECT_TRUE(trainer_.HearsNone<PublicationRefused>());
  LateAsks();
  EXPECT_EQ(late_.Heard<OperationResolved>().root, RootNamed("step-1"));
}

TEST_F(TwoRootsTest, APublisherThatSumsAfterTheRestartIsOutdoneToo) {
  hub_.Restart();
  AnnouncedBuffer unsummed = liar_.Holding(version_, true, "");
  unsummed.held->root.reset();
  ASSERT_TRUE(liar_.Resume({unsummed}));
  liar_.Seal(version_.sequence, "a lie");
  ASSERT_TRUE(ReaderResumes());
  EXPECT_EQ(liar_.Heard<PublicationRefused>().version, version_.sequence);
  EXPECT_TRUE(rollout_.HearsNone<PublicationRefused>());
}

TEST_F(TwoRootsTest, APublishersWordIsToldToNobodyWhileReadersMayComeBack) {
  hub_.Restart();
  ASSERT_TRUE(LiarResumes());
  LateAsks();
  EXPECT_EQ(late_.Heard<OperationResolved>().root, std::nullopt);
  late_.Ready();
  EXPECT_TRUE(late_.HearsNone<RootKnown>());
  ASSERT_TRUE(ReaderResumes());
  EXPECT_EQ(late_.Heard<RootKnown>().shard.root, RootNamed("step-1"));
}

TEST_F(TwoRootsTest, APublishersWordCountsOnceNobodyMayComeBack) {
  hub_.Restart();
  ASSERT_TRUE(TrainerResumes());
  LateAsks();
  late_.Fill();
  EXPECT_TRUE(late_.HearsNone<RootKnown>());
  AdoptionEnds({&trainer_, &late_});
  EXPECT_EQ(late_.Heard<RootKnown>().shard.root, RootNamed("step-1"));
}

TEST_F(TwoRootsTest, TheCopyThatAPublisherMadeOfItsOwnBufferIsOutdoneToo) {
  hub_.Restart();
  AnnouncedBuffer copy = liar_.Holding(version_, false, "a lie");
  copy.buffer = BufferId(2);
  copy.buffer_name = "weights.offload-1.1.2";
  copy.role = BufferRole::kOffload;
  ASSERT_TRUE(liar_.Resume({liar_.Announced(), copy}));
  ASSERT_TRUE(ReaderResumes());
  EXPECT_EQ(liar_.Heard<PublicationRefused>().buffer, copy.buffer);
  EXPECT_TRUE(rollout_.HearsNone<PublicationRefused>());
}

TEST_F(TwoRootsTest, ACopyAloneTellsTheRootOnceNobodyMayComeBack) {
  ASSERT_OK(hub_.Command({"pin", PinVersion{version_.label, "test"}}).status);
  hub_.Restart();
  AnnouncedBuffer copy = trainer_.Holding(version_, false, "step-1");
  copy.buffer = BufferId(2);
  copy.buffer_name = "weights.offload-1.1.2";
  copy.role = BufferRole::kOffload;
  ASSERT_TRUE(trainer_.Resume({trainer_.Announced(), copy}));
  LateAsks();
  EXPECT_EQ(late_.Fill().buffer.buffer, copy.buffer);
  AdoptionEnds({&trainer_, &late_});
  EXPECT_EQ(late_.Heard<RootKnown>().shard.root, RootNamed("step-1"));
}

// Who published in this epoch the server knows itself.
TEST_F(TwoRootsTest, ARankThatDidNotPublishInThisEpochIsNoPublisher) {
  TestRank trainer(hub_, "trainer-2", 0, 1), reader(hub_, "reader", 0, 1);
  trainer.JoinAndRegister();
  trainer.Publish("step-2");
  const VersionInfo version = trainer.Finished().version;
  reader.JoinAndRegister();
  ASSERT_TRUE(reader.Resume({reader.Holding(version, /*publisher=*/true, "a lie")}));
  EXPECT_EQ(reader.Heard<PublicationRefused>().version, version.sequence);
  trainer.Seal(version.sequence, "step-2");
  EXPECT_TRUE(trainer.HearsNone<PublicationRefused>());
  LateAsks();
  EXPECT_EQ(late_.Heard<OperationResolved>().root, RootNamed("step-2"));
}

TEST_F(TwoRootsTest, OfTwoPublishersAloneTheOlderWorkerIsBelieved) {
  hub_.Restart();
  ASSERT_TRUE(LiarResumes());
  ASSERT_TRUE(TrainerResumes());
  AdoptionEnds({&trainer_, &liar_});
  EXPECT_EQ(liar_.Heard<PublicationRefused>().version, version_.sequence);
  EXPECT_TRUE(trainer_.HearsNone<PublicationRefused>());
}

}  // namespace
}  // namespace th
