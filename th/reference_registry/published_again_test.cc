// A label that is published again where nobody can tell whether the bytes are the same: they have
// no checksums, or the checksums of the version before were never known and cannot be any more.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;

VersionSelector Named(const std::string& label) {
  return VersionSelector(*VersionLabel::Parse(label));
}

// ---- layouts without checksums

ShardLayout Unchecksummed(const std::string& tensor = "w") {
  return LayoutNamed(tensor, 4, ChecksumAlgorithm::kNone);
}

class UnchecksummedTest : public ::testing::Test {
 protected:
  UnchecksummedTest() {
    trainer_.JoinAndRegister();
    trainer_.Publish("step-1");
    published_ = trainer_.Finished();
    version_ = published_.version;
  }
  OperationFinished PublishSecond() {
    second_.JoinAndRegister();
    second_.Publish("step-1");
    return second_.Finished();
  }
  void UnpublishFirst() {
    trainer_.Unpublish();
    trainer_.Done();
    ASSERT_OK(trainer_.Finished().status);
  }
  void Receive(TestRank& rank) {
    rank.JoinAndRegister();
    rank.Update();
    rank.FillWhole();
    ASSERT_OK(rank.Finished().status);
  }

  RegistryHarness hub_;
  TestRank trainer_{hub_, "trainer", 0, 1, Unchecksummed()};
  TestRank second_{hub_, "second", 0, 1, Unchecksummed()};
  TestRank reader_{hub_, "rollout", 0, 1, Unchecksummed()};
  OperationFinished published_;
  VersionInfo version_;
};

TEST_F(UnchecksummedTest, AFurtherPublicationOfALabelIsRefused) {
  EXPECT_THAT(PublishSecond().status,
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("label 'step-1' belongs to step-1 (#1.1)"),
                             HasSubstr("rank second/0 has no checksums"),
                             HasSubstr("publish under another label"))));
  reader_.JoinAndRegister();
  reader_.Update();
  EXPECT_EQ(reader_.Fill().buffer, trainer_.address());
}

TEST_F(UnchecksummedTest, OfTwoGroupsThatPublishOneLabelAtOnceTheLaterIsRefused) {
  std::vector<TestRank> group;
  TestRank single(hub_, "single", 0, 1, Unchecksummed());
  for (uint32_t rank = 0; rank < 2; ++rank) {
    group.emplace_back(hub_, "group", rank, 2, Unchecksummed());
  }
  JoinAndRegister(group);
  single.JoinAndRegister();
  group[0].Publish("step-2");
  single.Publish("step-2");
  ASSERT_OK(single.Finished().status);
  group[1].Publish("step-2");
  for (TestRank& rank : group) {
    EXPECT_THAT(rank.Finished().status, StatusIs(absl::StatusCode::kAlreadyExists));
  }
}

TEST_F(UnchecksummedTest, RanksOfOneGroupPublishTogether) {
  std::vector<TestRank> group;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    group.emplace_back(hub_, "group", rank, 2, Unchecksummed());
  }
  JoinAndRegister(group);
  for (TestRank& rank : group) rank.Publish("step-2");
  for (TestRank& rank : group) EXPECT_OK(rank.Finished().status);
}

// The memory may have been written since.
TEST_F(UnchecksummedTest, WhoUnpublishedItIsRefusedWhileOthersHoldIt) {
  Receive(reader_);
  UnpublishFirst();
  trainer_.Publish("step-1");
  EXPECT_THAT(trainer_.Finished().status, StatusIs(absl::StatusCode::kAlreadyExists));
  trainer_.Publish("step-2");
  EXPECT_OK(trainer_.Finished().status);
}

TEST_F(UnchecksummedTest, WhatNobodyHoldsAnyMoreIsAnotherVersion) {
  UnpublishFirst();
  trainer_.Publish("step-1");
  const OperationFinished again = trainer_.Finished();
  ASSERT_OK(again.status);
  EXPECT_GT(again.version.sequence, version_.sequence);
  EXPECT_THAT(hub_.registry().Resolve(TestModel(), Named("step-1")), IsOkAndHolds(again.version));
}

TEST_F(UnchecksummedTest, AFormThatAnotherGroupHoldsIsRefused) {
  TestRank twin(hub_, "twin", 0, 1, Unchecksummed());
  std::vector<TestRank> derived;
  for (TestRank* rank : {&reader_, &twin}) {
    Receive(*rank);
    TestRank copy = *rank;
    copy.buffer = BufferId(2);
    copy.buffer_name = copy.form = "fused";
    copy.layout = Unchecksummed("fused");
    copy.number = OperationNumber();
    ASSERT_OK(copy.Register());
    derived.push_back(copy);
  }
  const auto publish = [&](TestRank& rank) {
    StartOperation request = rank.PublishRequest("step-1");
    request.label = VersionLabel();
    request.derived_from = version_.sequence;
    rank.Start(request);
    return rank.Finished();
  };
  ASSERT_OK(publish(derived[0]).status);
  EXPECT_THAT(publish(derived[1]).status, StatusIs(absl::StatusCode::kAlreadyExists,
                                                   HasSubstr("rank twin/0 has no checksums")));
  derived[0].Unpublish();
  derived[0].Done();
  ASSERT_OK(derived[0].Finished().status);
  EXPECT_EQ(publish(derived[1]).version.sequence, version_.sequence) << "nobody holds it";
}

// A reader has it already, and its publisher did not hear that it is published.
class UnchecksummedRestartTest : public UnchecksummedTest {
 protected:
  UnchecksummedRestartTest() {
    Receive(reader_);
    hub_.Restart();
  }
  bool ReaderResumes() {
    AnnouncedBuffer announced = reader_.Holding(version_, false, "");
    announced.held->root = Digest();
    return reader_.Resume({announced});
  }
  void TrainerAsksAgain() {
    StartOperation again = trainer_.PublishRequest("step-1");
    again.key.number = trainer_.number;
    trainer_.Start(again);
  }
};

TEST_F(UnchecksummedRestartTest, APublisherThatAsksAgainGetsItsVersion) {
  ASSERT_TRUE(trainer_.Resume({trainer_.Announced()}));
  TrainerAsksAgain();
  ASSERT_TRUE(ReaderResumes());
  hub_.Advance(RegistryLimits().recovery_window);
  EXPECT_EQ(trainer_.Finished().version, version_);
  reader_.Say(Leave{});
  TestRank late(hub_, "late", 0, 1, Unchecksummed());
  late.JoinAndRegister();
  late.Update();
  EXPECT_EQ(late.Fill().buffer, trainer_.address());
}

TEST_F(UnchecksummedRestartTest, AnotherProcessIsRefused) {
  ASSERT_TRUE(ReaderResumes());
  second_.JoinAndRegister();
  second_.Publish("step-1");
  hub_.Advance(RegistryLimits().recovery_window);
  EXPECT_THAT(second_.Finished().status, StatusIs(absl::StatusCode::kAlreadyExists));
}

// It lived in the earlier epoch too, and might ask again for its own.
TEST_F(UnchecksummedTest, AGroupThatComesBackIsRefusedWhereThePublisherHas) {
  second_.JoinAndRegister();
  hub_.Restart();
  AnnouncedBuffer held = trainer_.Holding(version_, true, "");
  held.held->root = Digest();
  ASSERT_TRUE(trainer_.Resume({held}));
  ASSERT_TRUE(second_.Resume({second_.Announced()}));
  second_.Publish("step-1");
  hub_.Advance(RegistryLimits().recovery_window);
  EXPECT_THAT(second_.Finished().status, StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST_F(UnchecksummedRestartTest, APublisherThatComesBackWithItKeepsIt) {
  AnnouncedBuffer held = trainer_.Holding(version_, true, "");
  held.held->root = Digest();
  ASSERT_TRUE(ReaderResumes());
  ASSERT_TRUE(trainer_.Resume({held}));
  EXPECT_TRUE(trainer_.HearsNone<PublicationRefused>());
}

// ---- checksums that were never known

class NeverSealedTest : public ::testing::Test {
 protected:
  NeverSealedTest() {
    for (TestRank* rank : {&trainer_, &second_, &reader_}) rank->JoinAndRegister();
    trainer_.Publish("step-1");
    version_ = trainer_.Finished().version;
  }
  void ExpectAnother(const OperationFinished& again) {
    ASSERT_OK(again.status);
    EXPECT_GT(again.version.sequence, version_.sequence);
    EXPECT_THAT(hub_.registry().Resolve(TestModel(), Named("step-1")), IsOkAndHolds(again.version));
  }

  RegistryHarness hub_;
  TestRank trainer_{hub_, "trainer", 0, 1};
  TestRank second_{hub_, "second", 0, 1};
  TestRank reader_{hub_, "rollout", 0, 1};
  VersionInfo version_;
};

TEST_F(NeverSealedTest, WhatNobodyHoldsAnyMoreIsAnotherVersion) {
  trainer_.Say(Leave{});
  second_.Publish("step-1");
  ExpectAnother(second_.Finished());
}

TEST_F(NeverSealedTest, WhatItsPublisherLetGoIsAnotherVersion) {
  trainer_.Unpublish();
  trainer_.Done();
  ASSERT_OK(trainer_.Finished().status);
  trainer_.Publish("step-1");
  ExpectAnother(trainer_.Finished());
}

// Segments of the one must not be completed with those of the other.
TEST_F(NeverSealedTest, WhatAReaderHasAPartOfIsAnotherVersion) {
  reader_.Update();
  reader_.Fill();
  trainer_.Say(Leave{});
  ASSERT_THAT(reader_.Finished().status, StatusIs(absl::StatusCode::kUnavailable));
  second_.Publish("step-1");
  ExpectAnother(second_.Finished());
  reader_.Update();
  EXPECT_GT(reader_.Heard<OperationResolved>().version.sequence, version_.sequence);
}

TEST_F(NeverSealedTest, WhatItsPublisherLeavesWhileAnotherBeginsIsAnotherVersion) {
  std::vector<TestRank> group;
  for (uint32_t rank = 0; rank < 2; ++rank) group.emplace_back(hub_, "group", rank, 2);
  JoinAndRegister(group);
  group[0].Publish("step-1");
  trainer_.Say(Leave{});
  group[1].Publish("step-1");
  ExpectAnother(group[0].Finished());
  EXPECT_OK(group[1].Finished().status);
}

TEST_F(NeverSealedTest, WhatItsPublisherStillSumsIsTheSame) {
  second_.Publish("step-1");
  EXPECT_EQ(second_.Finished().version, version_);
}

TEST_F(NeverSealedTest, WhatWasSealedIsComparedThoughNobodyHoldsIt) {
  trainer_.Seal(version_.sequence, "step-1");
  trainer_.Say(Leave{});
  second_.Publish("step-1");
  EXPECT_EQ(second_.Finished().version, version_);
  second_.Seal(version_.sequence, "other bytes");
  EXPECT_THAT(second_.Heard<PublicationRefused>().status,
              StatusIs(absl::StatusCode::kAlreadyExists));
}

// Its publisher may yet come back with it.
TEST_F(NeverSealedTest, AfterARestartItIsWaitedFor) {
  reader_.Update();
  reader_.Fill();
  hub_.Restart();
  ASSERT_TRUE(reader_.Resume({reader_.Filling(version_, {trainer_.address()})}));
  TestRank again(hub_, "second", 0, 1);
  again.JoinAndRegister();
  again.Publish("step-1");
  hub_.Advance(RegistryLimits().recovery_window);
  EXPECT_TRUE(again.HearsNone<OperationFinished>());
  PassAlive(hub_, {&reader_, &again}, RegistryLimits().lease);
  ExpectAnother(again.Finished());
}

TEST_F(NeverSealedTest, APublisherThatAsksAgainAfterARestartGetsItsVersion) {
  reader_.Update();
  reader_.Fill();
  hub_.Restart();
  ASSERT_TRUE(reader_.Resume({reader_.Filling(version_, {trainer_.address()})}));
  ASSERT_TRUE(trainer_.Resume({trainer_.Announced()}));
  StartOperation again = trainer_.PublishRequest("step-1");
  again.key.number = trainer_.number;
  trainer_.Start(again);
  hub_.Advance(RegistryLimits().recovery_window);
  EXPECT_EQ(trainer_.Finished().version, version_);
}

// A rank with a part of the first may come back before anybody who holds the second.
TEST_F(NeverSealedTest, AfterARestartTheLaterVersionHasTheLabel) {
  trainer_.Say(Leave{});
  second_.Publish("step-1");
  const VersionInfo later = second_.Finished().version;
  TestRank newest(hub_, "newest", 0, 1);
  newest.JoinAndRegister();
  newest.Publish("step-2");
  ASSERT_OK(newest.Finished().status);
  hub_.Restart();
  ASSERT_TRUE(reader_.Resume({reader_.Filling(version_, {})}));
  ASSERT_TRUE(second_.Resume({second_.Holding(later, true, "step-1")}));
  EXPECT_TRUE(second_.HearsNone<PublicationRefused>());
  hub_.Advance(RegistryLimits().recovery_window);
  EXPECT_THAT(hub_.registry().Resolve(TestModel(), Named("step-1")), IsOkAndHolds(later));
}

}  // namespace
}  // namespace th
