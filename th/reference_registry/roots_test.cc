// Some workers are believed about a shard's root after a restart of the server, others are not.
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
  AnnouncedBuffer unchecksummed = liar_.Holding(version_, true, "");
  unchecksummed.held->root.reset();
  ASSERT_TRUE(liar_.Resume({unchecksummed}));
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

// The announcement of a worker that has kept the receipt that it was given.
AnnouncedBuffer With(AnnouncedBuffer holding, const std::optional<RootReceipt>& receipt) {
  holding.held->receipt = receipt;
  return holding;
}

TEST_F(TwoRootsTest, EveryPublisherHearsTheRootAndItsReceipt) {
  const RootKnown of_trainer = trainer_.Heard<RootKnown>();
  EXPECT_EQ(of_trainer.shard.root, RootNamed("step-1"));
  ASSERT_TRUE(of_trainer.receipt.has_value());
  EXPECT_EQ(of_trainer.receipt->root, RootNamed("step-1"));
  EXPECT_TRUE(liar_.Heard<RootKnown>().receipt == of_trainer.receipt);
}

TEST_F(TwoRootsTest, ThePublishersReceiptMakesTheRootKnownAtOnce) {
  const std::optional<RootReceipt> receipt = trainer_.Heard<RootKnown>().receipt;
  hub_.Restart();
  ASSERT_TRUE(trainer_.Resume({With(trainer_.Holding(version_, true, "step-1"), receipt)}));
  LateAsks();
  const OperationResolved resolved = late_.Heard<OperationResolved>();
  EXPECT_EQ(resolved.root, RootNamed("step-1"));
  EXPECT_TRUE(resolved.receipt == receipt);
}

TEST_F(TwoRootsTest, AReceiptOutdoesThePublisherThatCameBeforeIt) {
  const std::optional<RootReceipt> receipt = trainer_.Heard<RootKnown>().receipt;
  hub_.Restart();
  ASSERT_TRUE(LiarResumes());
  ASSERT_TRUE(trainer_.Resume({With(trainer_.Holding(version_, true, "step-1"), receipt)}));
  EXPECT_EQ(liar_.Heard<PublicationRefused>().version, version_.sequence);
  EXPECT_TRUE(trainer_.HearsNone<PublicationRefused>());
}

TEST_F(TwoRootsTest, APublisherThatDiffersFromItsOwnReceiptIsRefusedThoughItComesAlone) {
  const std::optional<RootReceipt> receipt = liar_.Heard<RootKnown>().receipt;
  hub_.Restart();
  ASSERT_TRUE(liar_.Resume({With(liar_.Holding(version_, true, "a lie"), receipt)}));
  EXPECT_EQ(liar_.Heard<PublicationRefused>().version, version_.sequence);
  AdoptionEnds({&liar_});
  ASSERT_TRUE(ReaderResumes());
  EXPECT_TRUE(rollout_.HearsNone<PublicationRefused>());
}

TEST_F(TwoRootsTest, APublisherThatSumsAfterTheRestartIsComparedWithItsReceipt) {
  const std::optional<RootReceipt> receipt = liar_.Heard<RootKnown>().receipt;
  hub_.Restart();
  AnnouncedBuffer unchecksummed = With(liar_.Holding(version_, true, ""), receipt);
  unchecksummed.held->root.reset();
  ASSERT_TRUE(liar_.Resume({unchecksummed}));
  EXPECT_TRUE(liar_.HearsNone<PublicationRefused>());
  LateAsks();
  EXPECT_EQ(late_.Heard<OperationResolved>().root, RootNamed("step-1"));
  late_.Ready();
  EXPECT_TRUE(late_.Heard<AssignSources>().sources.empty());
  liar_.Seal(version_.sequence, "a lie");
  EXPECT_EQ(liar_.Heard<PublicationRefused>().version, version_.sequence);
}

TEST_F(TwoRootsTest, AReceiptThatNoServerOfThisStateMadeProvesNothing) {
  RootReceipt forged = *liar_.Heard<RootKnown>().receipt;
  forged.root = RootNamed("a lie");
  hub_.Restart();
  ASSERT_TRUE(liar_.Resume({With(liar_.Holding(version_, true, "a lie"), forged)}));
  LateAsks();
  EXPECT_EQ(late_.Heard<OperationResolved>().root, std::nullopt);
  ASSERT_TRUE(ReaderResumes());
  EXPECT_EQ(liar_.Heard<PublicationRefused>().version, version_.sequence);
}

TEST_F(TwoRootsTest, WhoComesBackWithoutAReceiptIsGivenOne) {
  const std::optional<RootReceipt> receipt = trainer_.Heard<RootKnown>().receipt;
  hub_.Restart();
  ASSERT_TRUE(trainer_.Resume({With(trainer_.Holding(version_, true, "step-1"), receipt)}));
  EXPECT_TRUE(rollout_.HearsNone<RootKnown>());
  ASSERT_TRUE(ReaderResumes());
  EXPECT_TRUE(rollout_.Heard<RootKnown>().receipt == receipt);
}

// The server knows itself who published in this epoch.
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

// Each of the two groups has one worker that is older than its counterpart of the other.
TEST(TwoPublishersTest, OneOfThemDecidesAboutAllShards) {
  RegistryHarness hub;
  std::vector<TestRank> first = MakeGroup(hub, "first", 2);
  std::vector<TestRank> other = MakeGroup(hub, "other", 2);
  for (TestRank* rank : {&first[0], &other[1], &other[0], &first[1]}) rank->JoinAndRegister();
  for (std::vector<TestRank>* group : {&first, &other}) {
    for (TestRank& rank : *group) rank.Publish("step-1");
  }
  const VersionInfo version = first[0].Finished().version;
  hub.Restart();
  for (TestRank& rank : first) ASSERT_TRUE(rank.Resume({rank.Holding(version, true, "mine")}));
  for (TestRank& rank : other) ASSERT_TRUE(rank.Resume({rank.Holding(version, true, "theirs")}));
  for (int i = 0; i < 3; ++i) {
    for (TestRank& rank : first) rank.Say(Heartbeat{});
    for (TestRank& rank : other) rank.Say(Heartbeat{});
    hub.Advance(absl::Seconds(2));
  }
  for (TestRank& rank : first) EXPECT_TRUE(rank.HearsNone<PublicationRefused>());
  for (TestRank& rank : other) EXPECT_FALSE(rank.HearsNone<PublicationRefused>());
}

// It is a further publisher, whichever of the two processes is older.
TEST(TwoPublishersTest, WhoPublishesItAfterTheRestartDecidesNothing) {
  RegistryHarness hub;
  TestRank late(hub, "late", 0, 1);
  late.JoinAndRegister();
  TestRank trainer(hub, "trainer", 0, 1);
  trainer.JoinAndRegister();
  trainer.Publish("step-1");
  const VersionInfo version = trainer.Finished().version;
  hub.Restart();
  ASSERT_TRUE(late.Resume({late.Announced()}));
  ASSERT_TRUE(trainer.Resume({trainer.Holding(version, true, "step-1")}));
  hub.Advance(RegistryLimits().recovery_window);
  late.Publish("step-1");
  ASSERT_EQ(late.Finished().version.sequence, version.sequence);
  late.Seal(version.sequence, "a lie");
  for (int i = 0; i < 3; ++i) {
    for (TestRank* rank : {&late, &trainer}) rank->Say(Heartbeat{});
    hub.Advance(absl::Seconds(2));
  }
  EXPECT_TRUE(trainer.HearsNone<PublicationRefused>());
  EXPECT_EQ(late.Heard<PublicationRefused>().version, version.sequence);
}

}  // namespace
}  // namespace th
