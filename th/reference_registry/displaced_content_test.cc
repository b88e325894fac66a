#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

// A trainer that has published step-1, and another one step-2, to which the first is moving.
class DisplacedContentTest : public ::testing::Test {
 protected:
  explicit DisplacedContentTest(RegistryLimits limits = {})
      : hub_(limits), trainer_(hub_, "trainer", 0, 1), second_(hub_, "trainer-2", 0, 1) {
    first_version_ = PublishAlone(trainer_, "step-1");
    second_version_ = PublishAlone(second_, "step-2");
    trainer_.Update();
  }

  static VersionInfo PublishAlone(TestRank& rank, const std::string& label) {
    rank.JoinAndRegister();
    rank.Publish(label);
    const VersionInfo version = rank.Finished().version;
    rank.Seal(version.sequence, label);
    return version;
  }

  // The trainer is back at step-1: it is told nothing else, and readers get it from there.
  void ExpectRestored() {
    EXPECT_TRUE(trainer_.HearsNone<PublicationRefused>()) << "the buffer holds what it published";
    ExpectReadFrom(trainer_);
  }
  void ExpectReadFrom(const TestRank& holder) {
    TestRank reader = Rollout(hub_, "reader");
    reader.Update(VersionSelector(first_version_.sequence));
    EXPECT_EQ(reader.Fill().buffer, holder.address());
  }
  AnnouncedBuffer Published() { return trainer_.Holding(first_version_, true, "step-1"); }

  RegistryHarness hub_;
  TestRank trainer_;
  TestRank second_;
  VersionInfo first_version_;
  VersionInfo second_version_;
};

TEST_F(DisplacedContentTest, APublisherWhoseUpdateWroteNothingPublishesOn) {
  trainer_.Fill();
  trainer_.Fail(absl::CancelledError("not now"));
  trainer_.Say(RegisterBuffer{Published()});
  ExpectRestored();
}

TEST_F(DisplacedContentTest, TheUpdateMayBeRepeated) {
  for (int i = 0; i < 2; ++i) {
    if (i > 0) trainer_.Update();
    trainer_.Fill();
    trainer_.Fail(absl::CancelledError("not now"));
    trainer_.Say(RegisterBuffer{Published()});
  }
  ExpectRestored();
}

TEST_F(DisplacedContentTest, APublisherThatHadNotSummedYetSumsOn) {
  trainer_.Fill();
  trainer_.Fail(absl::CancelledError("not now"));
  AnnouncedBuffer announced = Published();
  announced.held->root.reset();
  trainer_.Say(RegisterBuffer{announced});
  trainer_.Seal(first_version_.sequence, "step-1");
  ExpectRestored();
  EXPECT_EQ(hub_.registry().counters().messages_refused, 0u);
}

// Every byte of the new version was there already: the rank was done and had written nothing.
TEST_F(DisplacedContentTest, ARankThatWasDoneComesBackWhenAnotherFails) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  std::vector<TestRank> second = JoinedGroup(hub, "trainer-2", 2);
  const VersionInfo before = PublishWhole(trainer, "step-1");
  PublishWhole(second, "step-2");
  for (TestRank& rank : trainer) rank.Update();
  trainer[0].FillWhole();
  trainer[1].Fill();
  trainer[1].Fail(absl::CancelledError("not now"));
  trainer[0].Say(RegisterBuffer{trainer[0].Holding(before, true, "step-1w0")});
  trainer[1].Say(RegisterBuffer{trainer[1].Holding(before, true, "step-1w1")});
  for (TestRank& rank : trainer) EXPECT_TRUE(rank.HearsNone<PublicationRefused>());
  std::vector<TestRank> reader = JoinedGroup(hub, "reader", 2);
  for (TestRank& rank : reader) rank.Update(VersionSelector(before.sequence));
  EXPECT_EQ(reader[0].Fill().buffer, trainer[0].address());
  EXPECT_EQ(reader[1].Fill().buffer, trainer[1].address());
}

TEST_F(DisplacedContentTest, ARankThatIsLeftWithAnUnfinishedBufferDoesNotComeBack) {
  trainer_.Fill();
  trainer_.Fail(absl::CancelledError("not now"));
  trainer_.Say(RegisterBuffer{trainer_.Filling(second_version_, {})});
  trainer_.Say(RegisterBuffer{Published()});
  EXPECT_THAT(trainer_.Heard<PublicationRefused>().status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("step-1")));
}

TEST_F(DisplacedContentTest, ARankWhoseStreamBreaksWhileItDrainsComesBack) {
  trainer_.Disconnect();
  AnnouncedBuffer draining = trainer_.Announced();  // what drains is not announced
  draining.last_finished = FinishedOperation{.number = OperationNumber(1)};
  ASSERT_TRUE(trainer_.Resume({draining}));
  StartOperation again = trainer_.UpdateRequest();
  again.key.number = trainer_.number;
  again.resolved = second_version_;
  trainer_.Start(again);
  trainer_.Fail(absl::DeadlineExceededError("it did not drain in time"));
  trainer_.Say(RegisterBuffer{Published()});
  ExpectRestored();
}

TEST_F(DisplacedContentTest, ARankWhoseStreamBreaksWhileItFillsComesBack) {
  trainer_.Disconnect();
  AnnouncedBuffer filling = trainer_.Filling(second_version_, {});
  filling.held->segments.Clear();
  ASSERT_TRUE(trainer_.Resume({filling}));
  StartOperation again = trainer_.UpdateRequest();
  again.key.number = trainer_.number;
  again.resolved = second_version_;
  trainer_.Start(again);
  trainer_.Ready();
  trainer_.Fail(absl::CancelledError("not now"));
  trainer_.Say(RegisterBuffer{Published()});
  ExpectRestored();
}

TEST_F(DisplacedContentTest, AServerThatRestartsMeanwhileBelievesIt) {
  trainer_.Fill();
  hub_.Restart();
  ASSERT_TRUE(trainer_.Resume({trainer_.Filling(second_version_, {})}));
  ASSERT_TRUE(second_.Resume({second_.Holding(second_version_, true, "step-2")}));
  StartOperation again = trainer_.UpdateRequest();
  again.key.number = trainer_.number;
  again.resolved = second_version_;
  trainer_.Start(again);
  trainer_.Ready();
  trainer_.Fail(absl::CancelledError("not now"));
  trainer_.Say(RegisterBuffer{Published()});
  hub_.Advance(absl::Seconds(2));
  ExpectRestored();
}

TEST_F(DisplacedContentTest, AReaderComesBackToItsVersionToo) {
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update(VersionSelector(first_version_.sequence));
  rollout.FillWhole();
  ASSERT_OK(rollout.Finished().status);
  trainer_.FillWhole();
  ASSERT_OK(trainer_.Finished().status);
  rollout.Update();
  rollout.Fill();
  rollout.Fail(absl::CancelledError("not now"));
  rollout.Say(RegisterBuffer{rollout.Holding(first_version_, false, "step-1")});
  EXPECT_TRUE(rollout.HearsNone<PublicationRefused>());
  ExpectReadFrom(rollout);
}

TEST_F(DisplacedContentTest, WhatIsCommittedComesBackNoMore) {
  trainer_.FillWhole();
  ASSERT_OK(trainer_.Finished().status);
  trainer_.Say(RegisterBuffer{Published()});
  EXPECT_THAT(trainer_.Heard<PublicationRefused>().status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("has not published it")));
}

TEST_F(DisplacedContentTest, WhatWasWrittenOverComesBackNoMore) {
  trainer_.Fill();
  trainer_.Fail(absl::CancelledError("not now"), /*undefined=*/true);
  trainer_.Say(RegisterBuffer{Published()});
  EXPECT_THAT(trainer_.Heard<PublicationRefused>().status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("has not published it")));
}

TEST_F(DisplacedContentTest, WhatIsResetComesBackNoMore) {
  trainer_.Fill();
  trainer_.Say(BufferReset{trainer_.buffer});
  trainer_.Say(RegisterBuffer{Published()});
  EXPECT_THAT(trainer_.Heard<PublicationRefused>().status, StatusIs(absl::StatusCode::kAborted));
}

class FullModelTest : public DisplacedContentTest {
 protected:
  FullModelTest() : DisplacedContentTest(RegistryLimits{.max_versions_per_model = 2}) {}
};

TEST_F(FullModelTest, NoRoomIsMadeOfWhatMayComeBack) {
  trainer_.Fill();
  TestRank third(hub_, "trainer-3", 0, 1);
  third.JoinAndRegister();
  third.Publish("step-3");
  EXPECT_THAT(third.Finished().status, StatusIs(absl::StatusCode::kResourceExhausted));
  trainer_.Fail(absl::CancelledError("not now"));
  trainer_.Say(RegisterBuffer{Published()});
  ExpectRestored();
}

TEST_F(FullModelTest, RoomIsMadeOfWhatWasDisplacedForGood) {
  trainer_.FillWhole();
  ASSERT_OK(trainer_.Finished().status);
  TestRank third(hub_, "trainer-3", 0, 1);
  third.JoinAndRegister();
  third.Publish("step-3");
  EXPECT_OK(third.Finished().status);
}

// While the content is displaced, another group has made the root known.
TEST_F(DisplacedContentTest, ALabelIsNotTakenFromAPublisherThatHasNotSummedAndMayComeBack) {
  TestRank unchecksummed(hub_, "unsummed", 0, 1);
  unchecksummed.JoinAndRegister();
  unchecksummed.Publish("step-3");
  const VersionInfo version = unchecksummed.Finished().version;
  unchecksummed.Update(VersionSelector(second_version_.sequence));
  unchecksummed.Fill();
  TestRank other(hub_, "other", 0, 1);
  other.JoinAndRegister();
  other.Publish("step-3");
  EXPECT_THAT(other.Finished().status,
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("may keep it")));
  unchecksummed.Fail(absl::CancelledError("not now"));
  AnnouncedBuffer announced = unchecksummed.Holding(version, true, "step-3");
  announced.held->root.reset();
  unchecksummed.Say(RegisterBuffer{announced});
  EXPECT_TRUE(unchecksummed.HearsNone<PublicationRefused>());
  unchecksummed.Seal(version.sequence, "step-3");
  other.Publish("step-3");
  EXPECT_EQ(other.Finished().version.sequence, version.sequence);
}

}  // namespace
}  // namespace th
