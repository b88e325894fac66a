#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/protocol/lease.h"
#include "th/reference_registry/registry_harness.h"
#include "th/registry_state/heard_until.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

struct RefusedJoin {
  std::string name;
  std::function<void(JoinRequest&)> change;
  absl::StatusCode code;
  std::string says;
};

class RefusedJoinTest : public ::testing::TestWithParam<RefusedJoin> {};

TEST_P(RefusedJoinTest, NamesTheField) {
  RegistryLimits limits;
  limits.max_ranks = 8;
  RegistryHarness hub(limits);
  TestRank rank(hub, "rollout-3", 1, 2);
  JoinRequest request = rank.Request();
  GetParam().change(request);
  EXPECT_FALSE(rank.Join(request));
  EXPECT_THAT(rank.refused.status, StatusIs(GetParam().code, HasSubstr(GetParam().says)));
  EXPECT_TRUE(hub.IsClosed(rank.connection));
  EXPECT_EQ(hub.registry().counters().joins_refused, 1u);
  EXPECT_EQ(hub.registry().worker_count(), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Fields, RefusedJoinTest,
    ::testing::Values(
        RefusedJoin{"RankOutsideGroup", [](JoinRequest& r) { r.name.rank = Rank(2); },
                    absl::StatusCode::kInvalidArgument, "rollout-3/2 is outside its group of 2"},
        RefusedJoin{"NoRanks", [](JoinRequest& r) { r.ranks = 0; },
                    absl::StatusCode::kInvalidArgument, "outside its group of 0"},
        RefusedJoin{"TooManyRanks", [](JoinRequest& r) { r.ranks = 9; },
                    absl::StatusCode::kResourceExhausted, "max_ranks is 8"},
        RefusedJoin{"EmptyRun", [](JoinRequest& r) { r.key.run.clear(); },
                    absl::StatusCode::kInvalidArgument, "run"},
        RefusedJoin{"EmptyModel", [](JoinRequest& r) { r.key.model.clear(); },
                    absl::StatusCode::kInvalidArgument, "model"},
        RefusedJoin{"EmptyGroup", [](JoinRequest& r) { r.name.group.clear(); },
                    absl::StatusCode::kInvalidArgument, "group"},
        RefusedJoin{"TooManyEndpoints", [](JoinRequest& r) { r.endpoints.resize(65); },
                    absl::StatusCode::kInvalidArgument, "64 endpoints"},
        RefusedJoin{"LongEndpoint",
                    [](JoinRequest& r) { r.endpoints[0].address = std::string(257, 'x'); },
                    absl::StatusCode::kInvalidArgument, "256 bytes"},
        RefusedJoin{"LongTransport",
                    [](JoinRequest& r) {
                      r.endpoints[0].transport = std::string(kMaxTransportNameBytes + 1, 'x');
                    },
                    absl::StatusCode::kInvalidArgument, "a name of 65 bytes, at most 64"},
        RefusedJoin{"NoCommonProtocol",
                    [](JoinRequest& r) { r.hello = {.min_version = 7, .max_version = 9}; },
                    absl::StatusCode::kFailedPrecondition, "versions 7 to 9"},
        RefusedJoin{"ClaimOfTheFuture",
                    [](JoinRequest& r) {
                      r.resume =
                          ResumeClaim{.worker = WorkerId(uint64_t{5} << 32), .epoch = Epoch(1)};
                    },
                    absl::StatusCode::kInvalidArgument, "cannot have joined"},
        RefusedJoin{"ClaimOfNobody",
                    [](JoinRequest& r) { r.resume = ResumeClaim{.epoch = Epoch(1)}; },
                    absl::StatusCode::kInvalidArgument, "cannot have joined"},
        RefusedJoin{"ClaimOfAFutureGroup",
                    [](JoinRequest& r) {
                      r.resume =
                          ResumeClaim{.worker = WorkerId(1),
                                      .epoch = Epoch(1),
                                      .group_generation = GroupGeneration(uint64_t{2} << 32)};
                    },
                    absl::StatusCode::kInvalidArgument, "cannot have joined"},
        RefusedJoin{"ClaimOfALineageBeyondAll",
                    [](JoinRequest& r) {
                      r.resume = ResumeClaim{.worker = WorkerId(1),
                                             .epoch = Epoch(1),
                                             .lineage = Lineage(kLastLineage.value + 1)};
                    },
                    absl::StatusCode::kInvalidArgument, "cannot have joined"},
        RefusedJoin{"ClaimOfAnEpochBeyondAll",
                    [](JoinRequest& r) {
                      r.resume =
                          ResumeClaim{.worker = WorkerId(1), .epoch = Epoch(kLastEpoch.value + 1)};
                    },
                    absl::StatusCode::kInvalidArgument, "cannot have begun"}),
    [](const auto& param) { return param.param.name; });

TEST(MembershipTest, ATransportWithTheLongestNameIsTaken) {
  RegistryHarness hub;
  TestRank rank(hub, "rollout-3", 1, 2);
  JoinRequest request = rank.Request();
  request.endpoints[0].transport = std::string(kMaxTransportNameBytes, 'x');
  EXPECT_TRUE(rank.Join(request)) << rank.refused.status;
}

// The claims above have one field each that is beyond what can be.
TEST(MembershipTest, AClaimUpToEveryBoundIsTaken) {
  RegistryHarness hub;
  const Epoch before = hub.epoch();
  hub.Restart();
  TestRank rank(hub, "rollout-3", 1, 2);
  JoinRequest request = rank.Request();
  request.resume = ResumeClaim{.worker = WorkerId(1),
                               .epoch = before,
                               .group_generation = GroupGeneration(uint64_t{before.value} << 32),
                               .lineage = kLastLineage};
  EXPECT_TRUE(rank.Join(request)) << rank.refused.status;
}

TEST(MembershipTest, JoinedTellsEpochLeaseAndKey) {
  RegistryHarness hub;
  TestRank rank(hub, "trainer", 0, 1);
  ASSERT_TRUE(rank.Join());
  EXPECT_EQ(rank.joined_epoch, hub.epoch());
  EXPECT_EQ(rank.worker.value >> 32, hub.epoch().value);
  EXPECT_NE(rank.capability_key, CapabilityKey{});
  EXPECT_EQ(rank.generation.value >> 32, hub.epoch().value);
}

TEST(MembershipTest, RanksThatDisagreeOnTheSizeAreNamedWithBothNumbers) {
  RegistryHarness hub;
  TestRank first(hub, "rollout-3", 0, 4);
  TestRank second(hub, "rollout-3", 1, 2);
  ASSERT_TRUE(first.Join());
  EXPECT_FALSE(second.Join());
  EXPECT_THAT(second.refused.status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank rollout-3/1 says that its group has 2 ranks"),
                             HasSubstr("rank rollout-3/0 says 4"))));
}

TEST(MembershipTest, ALiveStreamIsNotDisplacedAndItsHolderIsNamed) {
  RegistryHarness hub;
  TestRank first(hub, "rollout-3", 0, 1);
  TestRank second(hub, "rollout-3", 0, 1);
  ASSERT_TRUE(first.Join());
  EXPECT_FALSE(second.Join());
  EXPECT_THAT(second.refused.status,
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("rollout-3/0:4711"), HasSubstr("last heard at"))));
  EXPECT_EQ(second.refused.retry_after, absl::InfiniteDuration());
  EXPECT_FALSE(hub.IsClosed(first.connection));
}

TEST(MembershipTest, AHolderThatHasBeenSilentIsWorthAnotherTry) {
  RegistryHarness hub;
  TestRank first(hub, "rollout-3", 0, 1);
  TestRank second(hub, "rollout-3", 0, 1);
  ASSERT_TRUE(first.Join());
  hub.Advance(absl::Seconds(3));
  EXPECT_FALSE(second.Join());
  EXPECT_EQ(second.refused.retry_after, absl::Seconds(2));
  hub.Advance(second.refused.retry_after);
  EXPECT_TRUE(second.Join());
}

TEST(MembershipTest, AHolderBetweenTwoHeartbeatsIsNotWorthAnotherTry) {
  RegistryHarness hub;
  TestRank first(hub, "rollout-3", 0, 1);
  TestRank second(hub, "rollout-3", 0, 1);
  ASSERT_TRUE(first.Join());
  hub.Advance(HeartbeatInterval(kDefaultLease) + kSlowTurn);
  EXPECT_FALSE(second.Join());
  EXPECT_EQ(second.refused.retry_after, absl::InfiniteDuration());
}

TEST(MembershipTest, ABrokenStreamIsReplacedAtOnceUnderAHigherWorkerId) {
  RegistryHarness hub;
  TestRank first(hub, "rollout-3", 0, 1);
  ASSERT_TRUE(first.Join());
  first.Disconnect();
  TestRank second(hub, "rollout-3", 0, 1);
  ASSERT_TRUE(second.Join());
  EXPECT_GT(second.worker, first.worker);
  EXPECT_GT(second.generation, first.generation);
  EXPECT_EQ(hub.registry().counters().workers_replaced, 1u);
  EXPECT_EQ(hub.registry().worker_count(), 1u);
}

TEST(MembershipTest, AReplacementEndsPendingOperationsNamingTheRankAndRestartsNumbering) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  group[0].Publish("step-1");
  group[1].Disconnect();
  TestRank again(hub, "trainer", 1, 2, LayoutNamed("w1"));
  ASSERT_TRUE(again.Join());
  EXPECT_THAT(group[0].Finished().status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("trainer/1")));
  const GroupChanged changed = group[0].Heard<GroupChanged>();
  EXPECT_EQ(changed.group_generation, again.generation);
  EXPECT_EQ(changed.rank, again.name);
  ASSERT_OK(again.Register());
  group[0].number = OperationNumber();
  group[0].Publish("step-1");
  again.Publish("step-1");
  EXPECT_OK(group[0].Finished().status);
  EXPECT_OK(again.Finished().status);
}

TEST(MembershipTest, AStartFromBeforeTheReplacementIsIgnored) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  group[1].Disconnect();
  TestRank again(hub, "trainer", 1, 2, LayoutNamed("w1"));
  ASSERT_TRUE(again.Join());
  StartOperation late = group[0].PublishRequest("step-1");
  late.group_generation = GroupGeneration(again.generation.value - 1);
  group[0].Start(late);
  EXPECT_TRUE(group[0].HearsNone<OperationFinished>());
  hub.Advance(absl::Seconds(4));
  EXPECT_TRUE(group[0].HearsNone<OperationFinished>());
}

TEST(MembershipTest, AFirstJoinLeavesTheOthersOperationsAlone) {
  RegistryHarness hub;
  std::vector<TestRank> group = MakeGroup(hub, "trainer", 2);
  group[0].JoinAndRegister();
  group[0].Publish("step-1");
  group[1].JoinAndRegister();
  EXPECT_TRUE(group[0].HearsNone<GroupChanged>());
  group[1].Publish("step-1");
  EXPECT_OK(group[0].Finished().status);
}

TEST(MembershipTest, AResumedWorkerKeepsItsIdentityAndItsOldStreamIsClosed) {
  RegistryHarness hub;
  TestRank rank(hub, "trainer", 0, 1);
  rank.JoinAndRegister();
  const WorkerId before = rank.worker;
  const ConnectionId old_stream = rank.connection;
  ASSERT_TRUE(rank.Resume({rank.Announced()}));
  EXPECT_EQ(rank.worker, before);
  EXPECT_TRUE(hub.IsClosed(old_stream));
  EXPECT_EQ(hub.TakeAll<Refused>(old_stream).size(), 1u);
  EXPECT_EQ(hub.registry().worker_count(), 1u);
}

TEST(MembershipTest, AReplacedWorkerCannotResume) {
  RegistryHarness hub;
  TestRank first(hub, "trainer", 0, 1);
  ASSERT_TRUE(first.Join());
  first.Disconnect();
  TestRank second(hub, "trainer", 0, 1);
  ASSERT_TRUE(second.Join());
  EXPECT_FALSE(first.Resume({}));
  EXPECT_THAT(first.refused.status, StatusIs(absl::StatusCode::kAborted, HasSubstr("replaced")));
}

TEST(MembershipTest, AMembershipThatHasEndedCannotBeResumed) {
  RegistryHarness hub;
  TestRank rank(hub, "trainer", 0, 1);
  ASSERT_TRUE(rank.Join());
  rank.Disconnect();
  hub.Advance(RegistryLimits().lease);
  EXPECT_FALSE(rank.Resume({}));
  EXPECT_THAT(rank.refused.status, StatusIs(absl::StatusCode::kAborted, HasSubstr("has ended")));
  EXPECT_EQ(rank.refused.retry_after, absl::InfiniteDuration());
  EXPECT_EQ(rank.refused.epoch, hub.epoch());
}

// `List` shows every worker's id.
TEST(MembershipTest, AWorkerIdWithoutItsSecretTakesNobodyOver) {
  RegistryHarness hub;
  TestRank rank(hub, "trainer", 0, 1);
  ASSERT_TRUE(rank.Join());
  TestRank stranger = rank;
  stranger.secret = MembershipSecret{};
  EXPECT_FALSE(stranger.Resume({}));
  EXPECT_THAT(stranger.refused.status,
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("secret")));
  EXPECT_FALSE(hub.IsClosed(rank.connection));
}

TEST(MembershipTest, AMemberThatFindsNoRoomComesBackLater) {
  RegistryLimits limits;
  limits.max_workers = 1;
  RegistryHarness hub(limits);
  TestRank first(hub, "a", 0, 1);
  ASSERT_TRUE(first.Join());
  hub.Restart();
  TestRank other(hub, "b", 0, 1);
  ASSERT_TRUE(other.Join());
  EXPECT_FALSE(first.Resume({}));
  EXPECT_THAT(first.refused.status, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_LT(first.refused.retry_after, absl::Seconds(2));
  other.Say(Leave{});
  EXPECT_TRUE(first.Resume({}));
}

TEST(MembershipTest, AClaimOfAnotherRanksIdentityIsRefused) {
  RegistryHarness hub;
  TestRank first(hub, "trainer", 0, 2);
  TestRank second(hub, "trainer", 1, 2);
  ASSERT_TRUE(first.Join());
  second = first;
  second.name.rank = Rank(1);
  EXPECT_FALSE(second.Resume({}));
  EXPECT_THAT(second.refused.status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("trainer/0")));
}

TEST(MembershipTest, AfterARestartTheHigherWorkerIdOfARankWins) {
  RegistryHarness hub;
  TestRank zombie(hub, "trainer", 0, 1);
  ASSERT_TRUE(zombie.Join());
  zombie.Disconnect();
  TestRank successor(hub, "trainer", 0, 1);
  ASSERT_TRUE(successor.Join());
  hub.Restart();
  ASSERT_TRUE(zombie.Resume({}));
  const ConnectionId zombie_stream = zombie.connection;
  ASSERT_TRUE(successor.Resume({}));
  EXPECT_THAT(hub.TakeAll<Refused>(zombie_stream).at(0).status,
              StatusIs(absl::StatusCode::kAborted));
  EXPECT_FALSE(zombie.Resume({}));
  EXPECT_THAT(zombie.refused.status, StatusIs(absl::StatusCode::kAborted, HasSubstr("replaced")));
}

TEST(MembershipTest, MessagesOfAStreamThatNeverJoinedAreRefused) {
  RegistryHarness hub;
  const ConnectionId stream = hub.Open();
  hub.Deliver(stream, Heartbeat{});
  EXPECT_THAT(hub.TakeAll<Refused>(stream).at(0).status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not joined")));
  EXPECT_TRUE(hub.IsClosed(stream));
}

TEST(MembershipTest, MessagesOnAReplacedStreamAreRefused) {
  RegistryHarness hub;
  TestRank first(hub, "trainer", 0, 1);
  first.JoinAndRegister();
  first.Disconnect();
  TestRank second(hub, "trainer", 0, 1);
  ASSERT_TRUE(second.Join());
  first.Publish("step-1");
  EXPECT_THAT(first.Heard<Refused>().status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("replaced")));
}

TEST(MembershipTest, ASecondJoinOnOneStreamIsCountedAndIgnored) {
  RegistryHarness hub;
  TestRank rank(hub, "trainer", 0, 1);
  ASSERT_TRUE(rank.Join());
  rank.Say(rank.Request());
  EXPECT_EQ(hub.registry().counters().messages_refused, 1u);
  EXPECT_EQ(hub.registry().worker_count(), 1u);
}

TEST(MembershipTest, HeartbeatsKeepTheLease) {
  RegistryHarness hub;
  TestRank rank(hub, "trainer", 0, 1);
  ASSERT_TRUE(rank.Join());
  for (int i = 0; i < 10; ++i) {
    hub.Advance(absl::Seconds(2));
    rank.Say(Heartbeat{});
  }
  EXPECT_EQ(hub.registry().worker_count(), 1u);
}

TEST(MembershipTest, ASilentWorkerIsDroppedWhenItsLeaseEndsAndOperationsNameIt) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  group[0].Publish("step-1");
  for (int i = 0; i < 3; ++i) {
    hub.Advance(absl::Seconds(2));
    group[0].Say(Heartbeat{});
  }
  EXPECT_THAT(group[0].Finished().status,
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("trainer/1"), HasSubstr("not heard for 5s"))));
  EXPECT_THAT(group[1].Heard<Refused>().status, StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(hub.registry().counters().leases_expired, 1u);
  EXPECT_EQ(hub.registry().worker_count(), 1u);
}

TEST(MembershipTest, ABrokenStreamKeepsItsOperationsUntilTheLeaseEnds) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  group[0].Publish("step-1");
  group[1].Disconnect();
  hub.Advance(absl::Seconds(4));
  group[0].Say(Heartbeat{});
  EXPECT_TRUE(group[0].HearsNone<OperationFinished>());
  ASSERT_TRUE(group[1].Resume({group[1].Announced()}));
  group[1].Publish("step-1");
  EXPECT_OK(group[0].Finished().status);
  EXPECT_OK(group[1].Finished().status);
}

TEST(MembershipTest, LeavingEndsTheGroupsOperationsNamingTheRank) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  group[0].Publish("step-1");
  group[1].Say(Leave{});
  EXPECT_THAT(group[0].Finished().status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("trainer/1 is gone: it left")));
  EXPECT_TRUE(hub.IsClosed(group[1].connection));
}

TEST(MembershipTest, ANewGroupAfterEverybodyLeftMayHaveAnotherSizeAndHasItsOwnGeneration) {
  RegistryHarness hub;
  TestRank first(hub, "rollout", 0, 1);
  first.JoinAndRegister();
  first.Say(Leave{});
  TestRank other_size(hub, "rollout", 2, 3);
  EXPECT_TRUE(other_size.Join());
  EXPECT_GT(other_size.generation, first.generation);
}

TEST(MembershipTest, LimitsAreNamed) {
  RegistryLimits limits;
  limits.max_workers = 1;
  RegistryHarness hub(limits);
  TestRank first(hub, "a", 0, 1);
  TestRank second(hub, "b", 0, 1);
  ASSERT_TRUE(first.Join());
  EXPECT_FALSE(second.Join());
  EXPECT_THAT(second.refused.status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_workers is 1")));
}

TEST(MembershipTest, ModelsAreLimitedAndForgottenWithTheirLastGroup) {
  RegistryLimits limits;
  limits.max_models = 1;
  RegistryHarness hub(limits);
  TestRank first(hub, "a", 0, 1);
  TestRank second(hub, "a", 0, 1);
  ASSERT_TRUE(first.Join());
  JoinRequest other = second.Request();
  other.key.run = "r2";
  EXPECT_FALSE(second.Join(other));
  EXPECT_THAT(second.refused.status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_models is 1")));
  first.Say(Leave{});
  EXPECT_TRUE(second.Join(other));
}

TEST(MembershipTest, TwoRunsWithOneModelNameNeverMeet) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank other(hub, "rollout", 0, 1);
  JoinRequest request = other.Request();
  request.key.run = "r2";
  ASSERT_TRUE(other.Join(request));
  ASSERT_OK(other.Register());
  other.Update();
  EXPECT_EQ(other.Finished().not_available, NotAvailableReason::kNotPublished);
}

TEST(MembershipTest, TheFleetOfOneModelDoesNotMakeAMessageDearer) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  EXPECT_EQ(hub.registry().NextDeadline(), hub.now() + absl::Seconds(5));
  hub.Advance(absl::Seconds(1));
  trainer.Say(Heartbeat{});
  EXPECT_EQ(hub.registry().NextDeadline(), hub.now() + absl::Seconds(4))
      << "a heartbeat does not touch the deadlines";
}

}  // namespace
}  // namespace th
