#include "th/reference_registry/seeding.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::th::testing::StatusIs;

constexpr uint64_t kRoom = uint64_t{1} << 40;
constexpr absl::Duration kHeartbeat = absl::Seconds(1);

// A trainer in the site "east", whose version "one" everybody wants, and readers in "west".
class SeedingTest : public ::testing::Test {
 protected:
  static TestRank Place(TestRank rank, const std::string& site) {
    rank.location.site = site;
    return rank;
  }
  // Joined and registered.
  TestRank Member(const std::string& group, const std::string& site, uint64_t room = 0) {
    TestRank rank = Place(TestRank(hub_, group, 0, 1), site);
    JoinRequest request = rank.Request();
    request.offload_limit_bytes = room;
    EXPECT_TRUE(rank.Join(request)) << rank.refused.status;
    EXPECT_OK(rank.Register());
    return rank;
  }
  static VersionInfo Publish(TestRank& rank, const std::string& label) {
    rank.Publish(label);
    const VersionInfo version = rank.Finished().version;
    rank.Seal(version.sequence, label);
    return version;
  }
  static void Ask(TestRank& rank, WhenSeeding when,
                  const VersionSelector& selector = LatestVersion{}) {
    StartOperation request = rank.UpdateRequest(selector);
    request.when_seeding = when;
    rank.Start(request);
  }
  // The result of its last operation; null: it has heard none. A rank and its copies share a
  // stream.
  std::optional<OperationFinished> ResultOf(const TestRank& rank) {
    for (OperationFinished& heard : hub_.TakeAll<OperationFinished>(rank.connection)) {
      results_[{rank.connection, heard.key}] = std::move(heard);
    }
    const auto result = results_.extract({rank.connection, rank.key()});
    return result.empty() ? std::nullopt : std::optional(result.mapped());
  }
  // Time passes, and everybody of `ranks` is heard of.
  void Advance(absl::Duration duration, const std::vector<TestRank*>& ranks) {
    for (absl::Duration passed; passed < duration; passed += kHeartbeat) {
      hub_.Advance(std::min(kHeartbeat, duration - passed));
      for (TestRank* rank : ranks) rank->Say(Heartbeat{});
    }
  }
  // Asks, and is to be told that it goes on.
  void ExpectGoesOn(TestRank& rank, WhenSeeding when) {
    Ask(rank, when);
    EXPECT_FALSE(rank.HearsNone<OperationResolved>()) << rank.name.ToString();
    EXPECT_FALSE(ResultOf(rank).has_value()) << rank.name.ToString();
  }
  // Asks, and is told that the version is on its way.
  OperationFinished ExpectSeeding(TestRank& rank, WhenSeeding when) {
    Ask(rank, when);
    const OperationFinished answer = ResultOf(rank).value_or(OperationFinished());
    EXPECT_OK(answer.status);
    EXPECT_EQ(answer.outcome, UpdateOutcome::kNotAvailable) << rank.name.ToString();
    EXPECT_EQ(answer.not_available, NotAvailableReason::kSeeding) << rank.name.ToString();
    return answer;
  }
  void Finish(TestRank& rank) {
    rank.FillWhole();
    ExpectMoved(rank);
  }
  void ExpectMoved(const TestRank& rank) {
    EXPECT_EQ(ResultOf(rank).value_or(OperationFinished()).outcome, UpdateOutcome::kMoved)
        << rank.name.ToString();
  }
  // The seed buffer of `rank`, as a rank of its own on the same stream; its update has begun.
  static TestRank CopyOf(const TestRank& rank, const VersionInfo& version) {
    TestRank copy = rank;
    copy.buffer = BufferId(rank.buffer.value + 100 + static_cast<uint32_t>(rank.number.value));
    copy.buffer_name = absl::StrCat("weights.seed-", version.sequence.value, ".",
                                    rank.generation.value, ".", rank.number.value);
    copy.number = OperationNumber();
    copy.Say(RegisterBuffer{AnnouncementOf(copy)});
    EXPECT_OK(copy.Heard<BufferRegistered>().status);
    copy.Update(version.sequence);
    return copy;
  }
  static AnnouncedBuffer AnnouncementOf(const TestRank& copy) {
    AnnouncedBuffer announced = copy.Announced();
    announced.role = BufferRole::kSiteCopy;
    return announced;
  }
  bool IsReleased(const TestRank& copy) {
    for (const OffloadReleased& released : hub_.TakeAll<OffloadReleased>(copy.connection)) {
      if (released.buffer == copy.buffer) return true;
    }
    return false;
  }
  std::vector<CatalogReplica> ListedSiteCopies() {
    std::vector<CatalogReplica> seeds;
    const Catalog catalog = hub_.List();
    for (const CatalogVersion& version : catalog.models[0].versions) {
      for (const CatalogReplica& replica : version.replicas) {
        if (replica.role == BufferRole::kSiteCopy) seeds.push_back(replica);
      }
    }
    return seeds;
  }

  RegistryHarness hub_;
  std::map<std::pair<ConnectionId, OperationKey>, OperationFinished> results_;
};

// ---- who is told to ask later

TEST_F(SeedingTest, TheFirstThatAsksInASiteBringsTheVersion) {
  TestRank trainer = Member("trainer", "east");
  Publish(trainer, "one");
  TestRank first = Member("first", "west");
  ExpectGoesOn(first, WhenSeeding::kSkip);
  EXPECT_EQ(first.Fill().buffer, trainer.address());
}

TEST_F(SeedingTest, OthersAreToldToAskLaterAndAreLeftAsTheyAre) {
  TestRank trainer = Member("trainer", "east");
  Publish(trainer, "one");
  TestRank first = Member("first", "west");
  TestRank second = Member("second", "west");
  ExpectGoesOn(first, WhenSeeding::kSkip);
  // Before and after its first byte.
  const OperationFinished answer = ExpectSeeding(second, WhenSeeding::kSkip);
  EXPECT_FALSE(answer.site_copy);
  EXPECT_EQ(answer.version.label.text(), "one");
  first.Fill();
  ExpectSeeding(second, WhenSeeding::kSkip);
  EXPECT_TRUE(second.HearsNone<OperationResolved>());
  EXPECT_TRUE(second.HearsNone<AssignSources>());
}

TEST_F(SeedingTest, OnceTheSeedIsThereTheOthersMoveFromIt) {
  TestRank trainer = Member("trainer", "east");
  Publish(trainer, "one");
  TestRank first = Member("first", "west");
  TestRank second = Member("second", "west");
  ExpectGoesOn(first, WhenSeeding::kSkip);
  Finish(first);
  ExpectGoesOn(second, WhenSeeding::kSkip);
  EXPECT_EQ(second.Fill().buffer, first.address());
}

TEST_F(SeedingTest, WhoWaitsPullsFromTheSeedWhileItFills) {
  TestRank trainer = Member("trainer", "east");
  Publish(trainer, "one");
  TestRank first = Member("first", "west");
  TestRank second = Member("second", "west");
  ExpectGoesOn(first, WhenSeeding::kWait);
  first.Fill();
  ExpectGoesOn(second, WhenSeeding::kWait);
  EXPECT_EQ(second.Fill().buffer, first.address());
}

TEST_F(SeedingTest, WhoWaitsIsASeedForOthers) {
  TestRank trainer = Member("trainer", "east");
  Publish(trainer, "one");
  TestRank waiting = Member("waiting", "west");
  TestRank skipping = Member("skipping", "west");
  ExpectGoesOn(waiting, WhenSeeding::kWait);
  ExpectSeeding(skipping, WhenSeeding::kSkip);
}

TEST_F(SeedingTest, EverySiteHasASeedOfItsOwn) {
  TestRank trainer = Member("trainer", "east");
  Publish(trainer, "one");
  TestRank west = Member("in-west", "west");
  TestRank north = Member("in-north", "north");
  ExpectGoesOn(west, WhenSeeding::kSkip);
  ExpectGoesOn(north, WhenSeeding::kSkip);
}

TEST_F(SeedingTest, TheSiteOfThePublisherNeverSeeds) {
  TestRank trainer = Member("trainer", "east");
  Publish(trainer, "one");
  TestRank first = Member("first", "east");
  TestRank second = Member("second", "east");
  ExpectGoesOn(first, WhenSeeding::kSkip);
  ExpectGoesOn(second, WhenSeeding::kCopy);
}

TEST_F(SeedingTest, WithoutASiteAGroupWaits) {
  TestRank trainer = Member("trainer", "east");
  Publish(trainer, "one");
  TestRank first = Member("first", "");
  TestRank second = Member("second", "");
  ExpectGoesOn(first, WhenSeeding::kSkip);
  ExpectGoesOn(second, WhenSeeding::kCopy);
}

TEST_F(SeedingTest, AGroupOverSeveralSitesWaitsAndIsNoSeed) {
  std::vector<TestRank> trainer = MakeGroup(hub_, "trainer", 2);
  std::vector<TestRank> spread = MakeGroup(hub_, "spread", 2);
  std::vector<TestRank> local = MakeGroup(hub_, "local", 2);
  for (TestRank& rank : trainer) rank.location.site = "east";
  for (TestRank& rank : spread) rank.location.site = rank.name.rank == Rank(0) ? "west" : "north";
  for (TestRank& rank : local) rank.location.site = "west";
  for (auto* group : {&trainer, &spread, &local}) JoinAndRegister(*group);
  PublishWhole(trainer, "one");
  for (TestRank& rank : spread) ExpectGoesOn(rank, WhenSeeding::kSkip);
  for (TestRank& rank : local) ExpectGoesOn(rank, WhenSeeding::kSkip);
}

TEST_F(SeedingTest, TheAnswerIsOneForTheGroup) {
  std::vector<TestRank> trainer = MakeGroup(hub_, "trainer", 2);
  std::vector<TestRank> first = MakeGroup(hub_, "first", 2);
  std::vector<TestRank> second = MakeGroup(hub_, "second", 2);
  for (TestRank& rank : trainer) rank.location.site = "east";
  for (auto* group : {&first, &second}) {
    for (TestRank& rank : *group) rank.location.site = "west";
  }
  for (auto* group : {&trainer, &first, &second}) JoinAndRegister(*group);
  PublishWhole(trainer, "one");
  for (TestRank& rank : first) ExpectGoesOn(rank, WhenSeeding::kSkip);
  ExpectSeeding(second[0], WhenSeeding::kSkip);
  for (TestRank& rank : first) rank.FillWhole();
  for (TestRank& rank : first) ExpectMoved(rank);
  ExpectSeeding(second[1], WhenSeeding::kSkip);  // the seed is there by now
  for (TestRank& rank : second) ExpectGoesOn(rank, WhenSeeding::kSkip);
}

TEST_F(SeedingTest, RanksThatDisagreeEndTheOperation) {
  std::vector<TestRank> trainer = MakeGroup(hub_, "trainer", 2);
  std::vector<TestRank> group = MakeGroup(hub_, "group", 2);
  for (TestRank& rank : group) rank.location.site = "west";
  for (auto* g : {&trainer, &group}) JoinAndRegister(*g);
  PublishWhole(trainer, "one");
  Ask(group[0], WhenSeeding::kWait);
  Ask(group[1], WhenSeeding::kSkip);
  EXPECT_THAT(group[1].Finished().status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("being seeded")));
}

// ---- the lease of a seed is its operation

TEST_F(SeedingTest, WhenTheSeedFailsTheNextThatAsksBringsIt) {
  TestRank trainer = Member("trainer", "east");
  Publish(trainer, "one");
  TestRank first = Member("first", "west");
  TestRank second = Member("second", "west");
  ExpectGoesOn(first, WhenSeeding::kSkip);
  first.Fill();
  ExpectSeeding(second, WhenSeeding::kSkip);
  first.Fail(absl::InternalError("no memory"));
  ExpectGoesOn(second, WhenSeeding::kSkip);
  EXPECT_EQ(second.Fill().buffer, trainer.address());
}

TEST_F(SeedingTest, WhenTheSeedLosesARankTheNextThatAsksBringsIt) {
  TestRank trainer = Member("trainer", "east");
  Publish(trainer, "one");
  TestRank first = Member("first", "west");
  TestRank second = Member("second", "west");
  ExpectGoesOn(first, WhenSeeding::kSkip);
  first.Say(Leave{});
  ExpectGoesOn(second, WhenSeeding::kSkip);
}

TEST_F(SeedingTest, TheNextSeedGoesOnFromWhatTheSiteHas) {
  TestRank trainer = Member("trainer", "east");
  const VersionInfo one = Publish(trainer, "one");
  TestRank first = Member("first", "west");
  TestRank waiting = Member("waiting", "west");
  TestRank next = Member("next", "west");
  ExpectGoesOn(first, WhenSeeding::kSkip);
  first.Fill();
  ExpectGoesOn(waiting, WhenSeeding::kWait);
  EXPECT_EQ(waiting.Fill().buffer, first.address());
  SegmentSet some;
  some.Add(SegmentIndex(0));
  waiting.Say(FillProgress{waiting.key(), one.sequence, some});
  first.Say(Leave{});
  // Somebody who waits is there and goes on; others are told to ask later, or pull from it.
  ExpectSeeding(next, WhenSeeding::kSkip);
  EXPECT_EQ(waiting.Heard<AssignSources>().sources.at(0).buffer, trainer.address());
  ExpectGoesOn(next, WhenSeeding::kWait);
  EXPECT_EQ(next.Fill().buffer, waiting.address());
}

TEST_F(SeedingTest, ASeedOutlivesTheServer) {
  TestRank trainer = Member("trainer", "east");
  const VersionInfo one = Publish(trainer, "one");
  TestRank first = Member("first", "west");
  TestRank second = Member("second", "west");
  ExpectGoesOn(first, WhenSeeding::kSkip);
  first.Fill();
  hub_.Restart();
  ASSERT_TRUE(trainer.Resume({trainer.Holding(one, true, "one")}));
  ASSERT_TRUE(first.Resume({first.Filling(one, {trainer.address()})}));
  ASSERT_TRUE(second.Resume({second.Announced()}));
  Ask(second, WhenSeeding::kSkip);
  hub_.Advance(absl::Seconds(3));
  EXPECT_EQ(second.Finished().not_available, NotAvailableReason::kSeeding);
}

// ---- copies

TEST_F(SeedingTest, WhoCopiesIsToldSoAndServesOn) {
  TestRank trainer = Member("trainer", "east");
  const VersionInfo one = Publish(trainer, "one");
  TestRank first = Member("first", "west", kRoom);
  TestRank second = Member("second", "west", kRoom);
  const OperationFinished answer = ExpectSeeding(first, WhenSeeding::kCopy);
  EXPECT_TRUE(answer.site_copy);
  EXPECT_EQ(answer.version, one);
  // From the word on, not only from the copy's first byte.
  EXPECT_FALSE(ExpectSeeding(second, WhenSeeding::kCopy).site_copy);
  EXPECT_FALSE(ExpectSeeding(first, WhenSeeding::kCopy).site_copy);

  TestRank copy = CopyOf(first, one);
  EXPECT_EQ(copy.Fill().buffer, trainer.address());
  EXPECT_FALSE(ExpectSeeding(first, WhenSeeding::kCopy).site_copy);
  copy.Done();
  ExpectMoved(copy);
  ExpectGoesOn(second, WhenSeeding::kCopy);
  EXPECT_EQ(second.Fill().buffer, copy.address());
}

TEST_F(SeedingTest, ACopyIsListedAsASeed) {
  TestRank trainer = Member("trainer", "east");
  const VersionInfo one = Publish(trainer, "one");
  TestRank first = Member("first", "west", kRoom);
  ASSERT_TRUE(ExpectSeeding(first, WhenSeeding::kCopy).site_copy);
  const TestRank copy = CopyOf(first, one);
  ASSERT_EQ(ListedSiteCopies().size(), 1u);
  EXPECT_EQ(ListedSiteCopies()[0].buffer_name, copy.buffer_name);
  EXPECT_EQ(ListedSiteCopies()[0].state, "filling");
}

TEST_F(SeedingTest, ACopyServesWhileItGrows) {
  TestRank trainer = Member("trainer", "east");
  const VersionInfo one = Publish(trainer, "one");
  TestRank first = Member("first", "west", kRoom);
  TestRank second = Member("second", "west");
  ASSERT_TRUE(ExpectSeeding(first, WhenSeeding::kCopy).site_copy);
  TestRank copy = CopyOf(first, one);
  copy.Fill();
  ExpectGoesOn(second, WhenSeeding::kWait);
  EXPECT_EQ(second.Fill().buffer, copy.address());
}

TEST_F(SeedingTest, ACopyGoesOnceAReplicaThatIsNoneHoldsTheVersionInItsSite) {
  TestRank trainer = Member("trainer", "east");
  const VersionInfo one = Publish(trainer, "one");
  TestRank first = Member("first", "west", kRoom);
  ASSERT_TRUE(ExpectSeeding(first, WhenSeeding::kCopy).site_copy);
  TestRank copy = CopyOf(first, one);
  Finish(copy);
  EXPECT_FALSE(IsReleased(copy));
  ExpectGoesOn(first, WhenSeeding::kCopy);
  first.Ready();
  EXPECT_FALSE(IsReleased(copy));
  first.Done();
  ExpectMoved(first);
  EXPECT_TRUE(IsReleased(copy));
}

TEST_F(SeedingTest, ACopyStaysWhileSomebodyPullsFromIt) {
  TestRank trainer = Member("trainer", "east");
  const VersionInfo one = Publish(trainer, "one");
  TestRank first = Member("first", "west", kRoom);
  TestRank second = Member("second", "west");
  ASSERT_TRUE(ExpectSeeding(first, WhenSeeding::kCopy).site_copy);
  TestRank copy = CopyOf(first, one);
  Finish(copy);
  ExpectGoesOn(second, WhenSeeding::kSkip);
  EXPECT_EQ(second.Fill().buffer, copy.address());
  ExpectGoesOn(first, WhenSeeding::kCopy);
  Finish(first);
  EXPECT_FALSE(IsReleased(copy));
  second.Done();
  ExpectMoved(second);
  EXPECT_TRUE(IsReleased(copy));
}

TEST_F(SeedingTest, ACopyOfAVersionThatItsGroupWantsNoMoreGoesAndThenTheNextIsMade) {
  TestRank trainer = Member("trainer", "east");
  const VersionInfo one = Publish(trainer, "one");
  TestRank first = Member("first", "west", LayoutNamed("w").bytes());
  ASSERT_TRUE(ExpectSeeding(first, WhenSeeding::kCopy).site_copy);
  TestRank copy = CopyOf(first, one);
  Finish(copy);
  trainer.Unpublish();
  trainer.Done();
  trainer.Finished();
  const VersionInfo two = Publish(trainer, "two");
  // There is room for one copy only.
  EXPECT_FALSE(ExpectSeeding(first, WhenSeeding::kCopy).site_copy);
  EXPECT_TRUE(IsReleased(copy));
  copy.Say(UnregisterBuffer{copy.buffer});
  const OperationFinished answer = ExpectSeeding(first, WhenSeeding::kCopy);
  EXPECT_TRUE(answer.site_copy);
  EXPECT_EQ(answer.version, two);
}

TEST_F(SeedingTest, ACopyThatStillFillsIsEndedWhenItsGroupWantsAnotherVersion) {
  TestRank trainer = Member("trainer", "east");
  const VersionInfo one = Publish(trainer, "one");
  TestRank first = Member("first", "west", kRoom);
  ASSERT_TRUE(ExpectSeeding(first, WhenSeeding::kCopy).site_copy);
  TestRank copy = CopyOf(first, one);
  copy.Fill();
  trainer.Unpublish();
  trainer.Done();
  trainer.Finished();
  Publish(trainer, "two");
  ExpectSeeding(first, WhenSeeding::kCopy);
  EXPECT_THAT(ResultOf(copy).value_or(OperationFinished()).status,
              StatusIs(absl::StatusCode::kAborted));
}

TEST_F(SeedingTest, WithoutRoomTheGroupFillsItsOwnBuffers) {
  TestRank trainer = Member("trainer", "east");
  Publish(trainer, "one");
  TestRank first = Member("first", "west", /*room=*/1);
  ExpectGoesOn(first, WhenSeeding::kCopy);
  EXPECT_EQ(first.Fill().buffer, trainer.address());
  EXPECT_THAT(hub_.Log(), HasSubstr("fills its own buffers"));
}

TEST_F(SeedingTest, AGroupWhoseCopiesComeToNothingFillsItsOwnBuffers) {
  TestRank trainer = Member("trainer", "east");
  const VersionInfo one = Publish(trainer, "one");
  TestRank first = Member("first", "west", kRoom);
  for (uint32_t copies = 0; copies < registry::kMaxCopiesUnused; ++copies) {
    ASSERT_TRUE(ExpectSeeding(first, WhenSeeding::kCopy).site_copy);
    TestRank copy = CopyOf(first, one);
    copy.Fail(absl::ResourceExhaustedError("no memory"));
    copy.Say(UnregisterBuffer{copy.buffer});
  }
  ExpectGoesOn(first, WhenSeeding::kCopy);
}

TEST_F(SeedingTest, ACopyThatNeverBeginsHoldsTheSiteUpForAMomentOnly) {
  TestRank trainer = Member("trainer", "east");
  Publish(trainer, "one");
  TestRank first = Member("first", "west", kRoom);
  TestRank second = Member("second", "west");
  ASSERT_TRUE(ExpectSeeding(first, WhenSeeding::kCopy).site_copy);
  ExpectSeeding(second, WhenSeeding::kSkip);
  Advance(registry::kSiteCopyReservationLasts, {&trainer, &first, &second});
  ExpectGoesOn(second, WhenSeeding::kSkip);
}

TEST_F(SeedingTest, AGroupThatLosesARankBreaksItsReservation) {
  TestRank trainer = Member("trainer", "east");
  Publish(trainer, "one");
  TestRank first = Member("first", "west", kRoom);
  TestRank second = Member("second", "west");
  ASSERT_TRUE(ExpectSeeding(first, WhenSeeding::kCopy).site_copy);
  first.Say(Leave{});
  ExpectGoesOn(second, WhenSeeding::kSkip);
}

TEST_F(SeedingTest, TheDeathOfOneOfItsRanksEndsACopy) {
  std::vector<TestRank> trainer = MakeGroup(hub_, "trainer", 2);
  std::vector<TestRank> first = MakeGroup(hub_, "first", 2);
  std::vector<TestRank> second = MakeGroup(hub_, "second", 2);
  for (TestRank& rank : trainer) rank.location.site = "east";
  for (auto* group : {&first, &second}) {
    for (TestRank& rank : *group) rank.location.site = "west";
  }
  JoinAndRegister(trainer);
  JoinAndRegister(second);
  for (TestRank& rank : first) {
    JoinRequest request = rank.Request();
    request.offload_limit_bytes = kRoom;
    ASSERT_TRUE(rank.Join(request));
    ASSERT_OK(rank.Register());
  }
  const VersionInfo one = PublishWhole(trainer, "one");
  std::vector<TestRank> copies;
  for (TestRank& rank : first) {
    ASSERT_TRUE(ExpectSeeding(rank, WhenSeeding::kCopy).site_copy);
    copies.push_back(CopyOf(rank, one));
  }
  for (TestRank& copy : copies) copy.FillWhole();
  for (TestRank& copy : copies) ExpectMoved(copy);
  first[0].Say(Leave{});
  EXPECT_TRUE(IsReleased(copies[1]));
  EXPECT_THAT(ListedSiteCopies(), IsEmpty());
  for (TestRank& rank : second) ExpectGoesOn(rank, WhenSeeding::kSkip);
  EXPECT_EQ(second[1].Fill().buffer, trainer[1].address());
}

TEST_F(SeedingTest, ACopyOutlivesTheServerAndGoesWhenItIsDue) {
  TestRank trainer = Member("trainer", "east");
  const VersionInfo one = Publish(trainer, "one");
  TestRank first = Member("first", "west", kRoom);
  ASSERT_TRUE(ExpectSeeding(first, WhenSeeding::kCopy).site_copy);
  TestRank copy = CopyOf(first, one);
  Finish(copy);
  hub_.Restart();
  ASSERT_TRUE(trainer.Resume({trainer.Holding(one, true, "one")}));
  AnnouncedBuffer announced = copy.Holding(one, false, "one");
  announced.role = BufferRole::kSiteCopy;
  AnnouncedBuffer own = first.Announced();
  own.last_finished = FinishedOperation{.number = first.number,
                                        .kind = OperationKind::kUpdate,
                                        .outcome = UpdateOutcome::kNotAvailable,
                                        .not_available = NotAvailableReason::kSeeding,
                                        .version = one,
                                        .site_copy = true};
  ASSERT_TRUE(first.Resume({own, announced}));
  copy.connection = first.connection;
  Advance(absl::Seconds(30), {&trainer, &first});
  EXPECT_FALSE(IsReleased(copy));
  EXPECT_EQ(ListedSiteCopies().size(), 1u);
  ExpectGoesOn(first, WhenSeeding::kCopy);
  Finish(first);
  EXPECT_TRUE(IsReleased(copy));
}

TEST_F(SeedingTest, ACopyOfAWithdrawnVersionGoes) {
  TestRank trainer = Member("trainer", "east");
  const VersionInfo one = Publish(trainer, "one");
  trainer.Unpublish();
  trainer.Done();
  trainer.Finished();
  const VersionInfo two = Publish(trainer, "two");
  TestRank first = Member("first", "west", kRoom);
  ASSERT_TRUE(ExpectSeeding(first, WhenSeeding::kCopy).site_copy);
  TestRank copy = CopyOf(first, two);
  Finish(copy);
  ASSERT_OK(hub_.Command({"back", RollBack{.to = one.sequence}}).status);
  EXPECT_TRUE(IsReleased(copy));
}

}  // namespace
}  // namespace th
