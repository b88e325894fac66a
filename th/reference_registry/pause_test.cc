#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;

constexpr absl::Duration kPause = absl::Minutes(10);  // far beyond every lease

TEST(PauseTest, EndsNoMembership) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank reader = Rollout(hub, "reader");
  hub.Pause(kPause);
  EXPECT_EQ(hub.registry().worker_count(), 2u);
  reader.Update();
  EXPECT_EQ(reader.Fill().buffer, trainer.address()) << "not even suspected";
}

TEST(PauseTest, GivesNobodyMoreThanItsLeaseAfterwards) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank silent = Rollout(hub, "silent");
  hub.Advance(absl::Seconds(3));
  trainer.Say(Heartbeat{});
  hub.Pause(kPause);
  hub.Advance(absl::Seconds(3));
  EXPECT_EQ(hub.registry().worker_count(), 1u) << "3 s of silence before and 3 s after";
  EXPECT_THAT(silent.Heard<Refused>().status, StatusIs(absl::StatusCode::kAborted));
}

TEST(PauseTest, MovesTheDeadlinesOfOperations) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  StartOperation request = group[0].PublishRequest("step-1");
  request.timeout = absl::Seconds(2);
  group[0].Start(request);
  hub.Pause(kPause);
  hub.Advance(absl::Seconds(1));
  EXPECT_TRUE(group[0].HearsNone<OperationFinished>());
  hub.Advance(absl::Seconds(1));
  EXPECT_THAT(group[0].Finished().status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("trainer/1")));
}

TEST(PauseTest, MovesTheNextTryOfAFailedSource) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank reader = Rollout(hub, "reader");
  reader.Update();
  reader.Report(reader.Fill(), SourceFailure::kClosed);
  EXPECT_TRUE(reader.Heard<AssignSources>().sources.empty());
  hub.Pause(kPause);
  hub.Advance(absl::Seconds(1));
  EXPECT_EQ(reader.Heard<AssignSources>().sources.at(0).buffer, trainer.address());
}

TEST(PauseTest, LengthensTheRecoveryWindow) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  const VersionInfo version = hub.List().models.at(0).versions.at(0).info;
  hub.Restart();
  hub.Pause(kPause);
  EXPECT_THAT(hub.registry().Resolve(TestModel(), LatestVersion{}),
              StatusIs(absl::StatusCode::kUnavailable));
  ASSERT_TRUE(trainer.Resume({trainer.Holding(version, /*publisher=*/true, "step-1")}));
  hub.Advance(RegistryLimits().recovery_window);
  EXPECT_THAT(hub.registry().Resolve(TestModel(), LatestVersion{}), IsOkAndHolds(version));
}

}  // namespace
}  // namespace th
