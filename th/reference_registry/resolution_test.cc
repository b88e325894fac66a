// Which version an update moves to, and what it is told where there is none.
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
using ::th::testing::StatusIs;

struct NotAvailableCase {
  std::string name;
  std::string ask;  // "latest", a label or "#epoch.number"
  NotAvailableReason reason;
  VersionSequence floor = {};
};

class NotAvailableTest : public ::testing::TestWithParam<NotAvailableCase> {};

// step-1 was published and is gone; step-2 was withdrawn; step-3 is being published by one of two.
TEST_P(NotAvailableTest, LeavesEverythingUntouched) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank second(hub, "trainer-2", 0, 1);
  second.JoinAndRegister();
  second.Publish("step-2");
  ASSERT_OK(second.Finished().status);
  RunCommand roll_back{.idempotency_key = "k"};
  roll_back.command = RollBack{.to = VersionSequence::Of(hub.epoch(), 1)};
  ASSERT_OK(hub.Command(roll_back).status);
  if (GetParam().reason == NotAvailableReason::kGone) trainer.Say(Leave{});
  TestRank unfinished(hub, "trainer-3", 0, 2);
  unfinished.JoinAndRegister();
  unfinished.Publish("step-3");
  TestRank rollout = Rollout(hub, "rollout");
  ASSERT_OK_AND_ASSIGN(const VersionSelector selector, ParseVersionSelector(GetParam().ask));
  StartOperation request = rollout.UpdateRequest(selector);
  request.floor = GetParam().floor;
  rollout.Start(request);
  const OperationFinished finished = rollout.Finished();
  EXPECT_OK(finished.status);
  EXPECT_EQ(finished.outcome, UpdateOutcome::kNotAvailable);
  EXPECT_EQ(finished.not_available, GetParam().reason);
  EXPECT_TRUE(rollout.HearsNone<OperationResolved>());
}

INSTANTIATE_TEST_SUITE_P(
    Reasons, NotAvailableTest,
    ::testing::Values(
        NotAvailableCase{"UnknownLabel", "step-9", NotAvailableReason::kNotPublished},
        NotAvailableCase{"UnknownSequence", "#7.7", NotAvailableReason::kNotPublished},
        NotAvailableCase{"StillPublishing", "#1.3", NotAvailableReason::kNotPublished},
        NotAvailableCase{"WithdrawnLabel", "step-2", NotAvailableReason::kWithdrawn},
        NotAvailableCase{"WithdrawnSequence", "#1.2", NotAvailableReason::kWithdrawn},
        NotAvailableCase{"NobodyHoldsLatest", "latest", NotAvailableReason::kGone},
        NotAvailableCase{"NobodyHoldsLabel", "step-1", NotAvailableReason::kGone},
        NotAvailableCase{"OlderThanTheFloor", "latest", NotAvailableReason::kBehindFloor,
                         VersionSequence::Of(Epoch(2), 1)}),
    [](const auto& param) { return param.param.name; });

// A version, and a group of two whose ranks differ in the oldest one that they accept.
class FloorTest : public ::testing::Test {
 protected:
  FloorTest() : trainer_(Trainer(hub_, "step-1")) {
    for (uint32_t rank = 0; rank < 2; ++rank) rollout_.emplace_back(hub_, "rollout", rank, 2);
    JoinAndRegister(rollout_);
  }
  StartOperation WithFloor(TestRank& rank, VersionSequence floor) {
    StartOperation request = rank.UpdateRequest();
    request.floor = floor;
    return request;
  }

  const VersionSequence first_ = VersionSequence::Of(Epoch(1), 1);
  const VersionSequence later_ = VersionSequence::Of(Epoch(1), 2);
  RegistryHarness hub_;
  TestRank trainer_;
  std::vector<TestRank> rollout_;
};

TEST_F(FloorTest, ALaterRanksFloorEndsAnUpdateThatMovesToSomethingOlder) {
  rollout_[0].Start(WithFloor(rollout_[0], first_));
  rollout_[0].Ready();
  rollout_[1].Start(WithFloor(rollout_[1], later_));
  for (TestRank& rank : rollout_) {
    EXPECT_THAT(rank.Finished().status,
                StatusIs(absl::StatusCode::kAborted,
                         AllOf(HasSubstr("rollout/1 asks for nothing older than #1.2"),
                               HasSubstr("ask again"))));
  }
}

TEST_F(FloorTest, TheHighestOneCountsForAnUpdateThatWaits) {
  hub_.Restart();
  for (TestRank& rank : rollout_) ASSERT_TRUE(rank.Resume({rank.Announced()}));
  ASSERT_TRUE(trainer_.Resume({trainer_.Announced()}));
  rollout_[0].Start(WithFloor(rollout_[0], first_));
  rollout_[1].Start(WithFloor(rollout_[1], later_));
  for (int i = 0; i < 6; ++i) {
    hub_.Advance(absl::Seconds(1));
    for (TestRank& rank : rollout_) rank.Say(Heartbeat{});
  }
  for (TestRank& rank : rollout_) {
    EXPECT_EQ(rank.Finished().not_available, NotAvailableReason::kBehindFloor);
  }
}

TEST_F(FloorTest, ALateRankHearsNoResultThatIsOlder) {
  UpdateWhole(rollout_);
  rollout_[0].Start(WithFloor(rollout_[0], first_));
  EXPECT_EQ(rollout_[0].Finished().outcome, UpdateOutcome::kAlreadyThere);
  rollout_[1].Start(WithFloor(rollout_[1], later_));
  EXPECT_THAT(rollout_[1].Finished().status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("nothing older than #1.2")));
}

TEST(ResolutionTest, AFloorThatWasRolledBackDoesNotHoldTheReader) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank second(hub, "trainer-2", 0, 1);
  second.JoinAndRegister();
  second.Publish("step-2");
  const VersionSequence withdrawn = second.Finished().version.sequence;
  TestRank rollout = Rollout(hub, "rollout");
  RunCommand roll_back{.idempotency_key = "k"};
  roll_back.command = RollBack{.to = VersionSequence::Of(hub.epoch(), 1)};
  ASSERT_OK(hub.Command(roll_back).status);
  StartOperation request = rollout.UpdateRequest();
  request.floor = withdrawn;
  rollout.Start(request);
  EXPECT_EQ(rollout.Heard<OperationResolved>().version.label.text(), "step-1");
}

TEST(ResolutionTest, CountsPublishedVersionsOfTheHistory) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "one");
  const auto publish = [&](const std::string& label) {
    trainer.Unpublish();
    trainer.Done();
    trainer.Publish(label);
  };
  publish("two");
  publish("three");
  const auto name_of = [&](uint32_t back) {
    const auto version = hub.registry().Resolve(TestModel(), LatestVersion{.back = back});
    return version.ok() ? version->label.text() : std::string(version.status().message());
  };
  EXPECT_EQ(name_of(0), "three");
  EXPECT_EQ(name_of(1), "two");
  EXPECT_EQ(name_of(2), "one");
  EXPECT_THAT(name_of(3), HasSubstr("latest-3"));
  ASSERT_OK(hub.Command({"back", RollBack{*VersionLabel::Parse("two")}}).status);
  EXPECT_EQ(name_of(0), "two");
  EXPECT_EQ(name_of(1), "one");
}

TEST(ResolutionTest, AnUpdateMovesToWhatIsStillHeld) {
  RegistryHarness hub;
  TestRank first = Trainer(hub, "one");
  TestRank second(hub, "trainer-2", 0, 1);
  second.JoinAndRegister();
  second.Publish("two");
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update(LatestVersion{.back = 1});
  EXPECT_EQ(rollout.Fill().buffer, first.address());
}

}  // namespace
}  // namespace th
