#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
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

// One trainer and one relay that both hold the version, and a reader that fills from the relay.
class FailingSourceTest : public ::testing::Test {
 protected:
  FailingSourceTest()
      : trainer_(Trainer(hub_, "step-1")),
        relay_(Rollout(hub_, "relay")),
        reader_(Rollout(hub_, "reader")) {
    relay_.Update();
    relay_.FillWhole();
    version_ = relay_.Finished().version;
    reader_.Update();
    source_ = reader_.Fill();
    EXPECT_EQ(source_.buffer, relay_.address());
  }

  AssignedSource Next() {
    const AssignSources assigned = reader_.Heard<AssignSources>();
    reader_.assignment = assigned.assignment;
    return assigned.sources.empty() ? AssignedSource{} : assigned.sources.front();
  }

  RegistryHarness hub_;
  TestRank trainer_;
  TestRank relay_;
  TestRank reader_;
  AssignedSource source_;
  VersionInfo version_;
};

TEST_F(FailingSourceTest, AnotherIsAssignedAtOnce) {
  reader_.Report(source_, SourceFailure::kStalled, "silent for 0.5 s");
  EXPECT_EQ(Next().buffer, trainer_.address());
  EXPECT_EQ(hub_.registry().counters().sources_failed, 1u);
}

TEST_F(FailingSourceTest, TheFailedOneIsNotGivenAgainWhileThereIsAnother) {
  reader_.Report(source_, SourceFailure::kCorrupt);
  const AssignedSource second = Next();
  hub_.Advance(absl::Seconds(1));
  reader_.Report(second, SourceFailure::kStalled);
  EXPECT_EQ(Next().buffer, relay_.address()) << "only when the other has failed too";
}

TEST_F(FailingSourceTest, SuspicionSendsOtherReadersElsewhere) {
  reader_.Report(source_, SourceFailure::kStalled);
  Next();
  TestRank other = Rollout(hub_, "other");
  other.Update();
  EXPECT_NE(other.Fill().buffer, relay_.address());
}

TEST_F(FailingSourceTest, AReaderThatWasSilentItselfBlamesNobody) {
  const absl::Duration silence = SuspectAfter(kDefaultLease) + absl::Milliseconds(1);
  for (int half = 0; half < 2; ++half) {
    hub_.Advance(silence / 2);
    trainer_.Say(Heartbeat{});
    relay_.Say(Heartbeat{});
  }
  reader_.Report(source_, SourceFailure::kStalled, "silent for 0.4 s");
  EXPECT_EQ(Next().buffer, trainer_.address()) << "it tries another all the same";
  TestRank other = Rollout(hub_, "other");
  other.Update();
  EXPECT_EQ(other.Fill().buffer, relay_.address()) << "idle, and no publisher";
}

TEST_F(FailingSourceTest, AnIdleSourceIsNoLastResortBetweenTwoHeartbeats) {
  TestRank other = Rollout(hub_, "other");
  relay_.Say(Heartbeat{});
  hub_.Advance(HeartbeatInterval(kDefaultLease) + kSlowTurn);
  trainer_.Say(Heartbeat{});
  other.Say(Heartbeat{});
  reader_.Say(Leave{});
  other.Update();
  EXPECT_EQ(other.Fill().buffer, relay_.address()) << "idle, and no publisher";
}

TEST_F(FailingSourceTest, ASourceThatMissesItsHeartbeatIsALastResort) {
  TestRank other = Rollout(hub_, "other");
  relay_.Say(Heartbeat{});
  hub_.Advance(SuspectAfter(kDefaultLease) + absl::Milliseconds(1));
  trainer_.Say(Heartbeat{});
  other.Say(Heartbeat{});
  reader_.Say(Leave{});
  other.Update();
  EXPECT_EQ(other.Fill().buffer, trainer_.address());
}

SourceSuspected Suspicion(const TestRank& reader, const AssignedSource& source) {
  return {reader.key(), reader.assignment, source.buffer, "segment 3 has another sum"};
}

TEST_F(FailingSourceTest, ASuspectedSourceIsReplacedAndAvoidedByOthers) {
  reader_.Say(Suspicion(reader_, source_));
  EXPECT_EQ(Next().buffer, trainer_.address());
  TestRank other = Rollout(hub_, "other");
  other.Update();
  EXPECT_EQ(other.Fill().buffer, reader_.address()) << "idle as the relay is, but not suspected";
  EXPECT_EQ(hub_.registry().counters().sources_suspected, 1u);
  EXPECT_EQ(hub_.registry().counters().sources_failed, 0u);
}

TEST_F(FailingSourceTest, ASuspectedSourceIsGivenAgainAtOnceWhereThereIsNoOther) {
  reader_.Say(Suspicion(reader_, source_));
  const AssignedSource second = Next();
  trainer_.Say(Leave{});
  Next();  // back to the relay, since the trainer has gone
  const AssignmentId before = reader_.assignment;
  reader_.Say(Suspicion(reader_, source_));
  EXPECT_EQ(Next().buffer, relay_.address());
  EXPECT_GT(reader_.assignment, before);
  EXPECT_NE(second.buffer, relay_.address());
}

TEST_F(FailingSourceTest, SuspectingAnotherThanOnesSourceIsRefused) {
  SourceSuspected stranger = Suspicion(reader_, source_);
  stranger.source = trainer_.address();
  reader_.Say(stranger);
  SourceSuspected outdated = Suspicion(reader_, source_);
  outdated.assignment = AssignmentId(999);
  reader_.Say(outdated);
  EXPECT_EQ(hub_.registry().counters().messages_refused, 2u);
  EXPECT_EQ(hub_.registry().counters().sources_suspected, 0u);
}

// Its readers were cut: what they have open is of a generation that is no more.
TEST_F(FailingSourceTest, ASourceThatRegistersAnotherGenerationIsAssignedAnew) {
  relay_.buffer_generation = relay_.buffer_generation.Next();
  relay_.Say(RegisterBuffer{relay_.Holding(version_, /*publisher=*/false, "step-1")});
  const AssignedSource again = Next();
  EXPECT_EQ(again.buffer, relay_.address());
  EXPECT_EQ(again.generation, relay_.buffer_generation);
  relay_.Say(RegisterBuffer{relay_.Holding(version_, /*publisher=*/false, "step-1")});
  EXPECT_TRUE(reader_.HearsNone<AssignSources>()) << "nothing has changed for its readers";
}

// One that has failed spends its tries on the generation that it had.
TEST_F(FailingSourceTest, ASourceThatWasGivenUpIsAssignedInItsNextGeneration) {
  trainer_.Disconnect();
  for (int tries = 1; tries < 4; ++tries) {
    reader_.Report(source_, SourceFailure::kRefused);
    hub_.Advance(absl::Seconds(1));
    ASSERT_EQ(Next().buffer, relay_.address());
  }
  reader_.Report(source_, SourceFailure::kRefused);
  hub_.Advance(absl::Seconds(1));
  ASSERT_EQ(Next().buffer, BufferAddress()) << "it has no try left";
  relay_.buffer_generation = relay_.buffer_generation.Next();
  relay_.Say(RegisterBuffer{relay_.Holding(version_, /*publisher=*/false, "step-1")});
  EXPECT_EQ(Next().buffer, relay_.address());
}

TEST_F(FailingSourceTest, AReaderThatHasItAllDoesNotNeedASourceThatMovesOn) {
  trainer_.Unpublish();
  trainer_.Done();
  relay_.buffer_generation = relay_.buffer_generation.Next();
  relay_.Say(RegisterBuffer{relay_.Announced()});
  reader_.Done();
  EXPECT_OK(reader_.Finished().status);
}

TEST_F(FailingSourceTest, ASourceThatOnlyMovedOnIsNotSuspected) {
  reader_.Report(source_, SourceFailure::kGenerationChanged);
  EXPECT_EQ(Next().buffer, trainer_.address());
  TestRank other = Rollout(hub_, "other");
  other.Update();
  EXPECT_EQ(other.Fill().buffer, relay_.address()) << "idle, and no publisher";
}

TEST_F(FailingSourceTest, SuspicionPasses) {
  reader_.Report(source_, SourceFailure::kStalled);
  reader_.Done();
  for (int i = 0; i < 6; ++i) {
    hub_.Advance(absl::Seconds(2));
    for (TestRank* rank : {&trainer_, &relay_, &reader_}) rank->Say(Heartbeat{});
  }
  reader_.Say(Leave{});
  TestRank other = Rollout(hub_, "other");
  other.Update();
  EXPECT_EQ(other.Fill().buffer, relay_.address());
}

struct LastResort {
  std::string name;
  SourceFailure failure;
  uint32_t tries;
  std::string says;
};

class LastResortTest : public ::testing::TestWithParam<LastResort> {};

// The only source fails again and again: it is tried so often and no more, with pauses between.
TEST_P(LastResortTest, IsBoundedAndTheErrorNamesSourceReasonAndTries) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank reader = Rollout(hub, "reader");
  reader.Update();
  AssignedSource source = reader.Fill();
  uint32_t tries = 1;
  for (;; ++tries) {
    reader.Report(source, GetParam().failure, "it hurts");
    const auto at_once = hub.TakeAll<AssignSources>(reader.connection);
    if (at_once.empty()) break;
    EXPECT_TRUE(at_once.back().sources.empty()) << "there is a pause before the next try";
    EXPECT_THAT(at_once.back().why_empty, HasSubstr("trainer/0"));
    hub.Advance(absl::Seconds(1));
    const AssignSources again = reader.Heard<AssignSources>();
    ASSERT_EQ(again.sources.size(), 1u);
    reader.assignment = again.assignment;
    source = again.sources.front();
    trainer.Say(Heartbeat{});
    reader.Say(Heartbeat{});
  }
  EXPECT_EQ(tries, GetParam().tries);
  EXPECT_THAT(reader.Finished().status,
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr(absl::StrCat("source trainer/0 ", GetParam().says)),
                             HasSubstr(absl::StrCat("(", tries, tries == 1 ? " try)" : " tries)")),
                             HasSubstr("it hurts"))));
}

INSTANTIATE_TEST_SUITE_P(
    Failures, LastResortTest,
    ::testing::Values(LastResort{"Connect", SourceFailure::kConnect, 4, "could not be reached"},
                      LastResort{"Closed", SourceFailure::kClosed, 4, "closed the connection"},
                      LastResort{"Stalled", SourceFailure::kStalled, 4, "fell silent"},
                      LastResort{"Refused", SourceFailure::kRefused, 4, "refused the reader"},
                      LastResort{"Corrupt", SourceFailure::kCorrupt, 2, "sent wrong bytes"},
                      LastResort{"MovedOn", SourceFailure::kGenerationChanged, 1,
                                 "moved on to other weights"}),
    [](const auto& param) { return param.param.name; });

// A reader whose only source fails it time and again, and that may get on in between.
class TriesTest : public ::testing::Test {
 protected:
  TriesTest()
      : trainer_(hub_, "trainer", 0, 1, LayoutNamed("w", kSegments)),
        reader_(hub_, "reader", 0, 1, LayoutNamed("w", kSegments)) {
    trainer_.JoinAndRegister();
    trainer_.Publish("step-1");
    version_ = trainer_.Finished().version.sequence;
    reader_.JoinAndRegister();
    reader_.Update();
    source_ = reader_.Fill();
  }

  // False: the operation has failed.
  bool IsTriedAgainAfter(SourceFailure failure) {
    reader_.Report(source_, failure);
    if (!reader_.HearsNone<OperationFinished>()) return false;
    hub_.Advance(absl::Seconds(1));
    for (TestRank* rank : {&trainer_, &reader_}) rank->Say(Heartbeat{});
    const AssignSources again = reader_.Heard<AssignSources>();
    reader_.assignment = again.assignment;
    return again.sources.size() == 1;
  }
  void HasReceived(uint64_t segments) {
    FillProgress progress{.key = reader_.key(), .version = version_};
    progress.segments.Add({SegmentIndex(0), SegmentIndex(segments)});
    reader_.Say(progress);
  }

  static constexpr uint64_t kSegments = 32;
  RegistryHarness hub_;
  TestRank trainer_;
  TestRank reader_;
  VersionSequence version_;
  AssignedSource source_;
};

TEST_F(TriesTest, RecoverWhenTheReaderGetsOn) {
  for (uint64_t received = 1; received < kSegments; ++received) {
    HasReceived(received);
    ASSERT_TRUE(IsTriedAgainAfter(SourceFailure::kStalled)) << "with " << received << " segments";
  }
  for (int standing = 2; standing <= 3; ++standing) {
    ASSERT_TRUE(IsTriedAgainAfter(SourceFailure::kStalled));
  }
  EXPECT_FALSE(IsTriedAgainAfter(SourceFailure::kStalled)) << "four in a row without a segment";
}

TEST_F(TriesTest, AreSpentForGoodByWrongBytes) {
  HasReceived(1);
  EXPECT_TRUE(IsTriedAgainAfter(SourceFailure::kCorrupt));
  HasReceived(2);
  EXPECT_TRUE(IsTriedAgainAfter(SourceFailure::kStalled));
  HasReceived(3);
  EXPECT_FALSE(IsTriedAgainAfter(SourceFailure::kCorrupt));
}

TEST(AssignmentTest, ANewGenerationOfASourceIsANewSource) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank reader = Rollout(hub, "reader");
  TestRank other = Rollout(hub, "other");  // keeps the version alive
  other.Update();
  other.Fill();
  reader.Update();
  reader.Ready();
  AssignSources assigned = reader.Heard<AssignSources>();
  ASSERT_EQ(assigned.sources.at(0).buffer, other.address());
  reader.assignment = assigned.assignment;
  reader.Report(assigned.sources[0], SourceFailure::kGenerationChanged);
  assigned = reader.Heard<AssignSources>();
  ASSERT_EQ(assigned.sources.at(0).buffer, trainer.address());
  reader.assignment = assigned.assignment;
  other.Fail(absl::CancelledError("stop"));
  other.Finished();
  other.Update();
  other.Fill();
  reader.Report(assigned.sources[0], SourceFailure::kStalled);
  EXPECT_TRUE(reader.Heard<AssignSources>().sources.empty())
      << "the other fills from the reader by now, so only the trainer is left";
}

TEST(AssignmentTest, NearSourcesArePreferred) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank near(hub, "near", 0, 1);
  TestRank far(hub, "far", 0, 1);
  TestRank reader(hub, "reader", 0, 1);
  near.location.host = reader.location.host = "n7";
  for (TestRank* rank : {&near, &far, &reader}) rank->JoinAndRegister();
  for (TestRank* rank : {&near, &far}) {
    rank->Update();
    rank->FillWhole();
    rank->Finished();
  }
  reader.Update();
  const AssignedSource source = reader.Fill();
  EXPECT_EQ(source.buffer, near.address());
  EXPECT_EQ(source.distance, Distance::kSameHost);
}

TEST(AssignmentTest, ANearSourceAtItsLimitComesAfterAFarOneThatIsNot) {
  RegistryLimits limits;
  limits.scheduler.max_readers_per_source = 1;
  RegistryHarness hub(limits);
  TestRank trainer = Trainer(hub, "step-1");
  TestRank near(hub, "near", 0, 1);
  TestRank first(hub, "first", 0, 1);
  TestRank second(hub, "second", 0, 1);
  for (TestRank* rank : {&near, &first, &second}) {
    rank->location.host = "n7";
    rank->JoinAndRegister();
  }
  near.Update();
  near.FillWhole();
  near.Finished();
  first.Update();
  ASSERT_EQ(first.Fill().buffer, near.address());
  first.Disconnect();  // it goes on filling, and cannot be chosen itself
  second.Update();
  EXPECT_EQ(second.Fill().buffer, trainer.address());
}

TEST(AssignmentTest, ReadersThatStartTogetherCostThePublisherOneCopy) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  std::vector<TestRank> readers;
  readers.reserve(8);
  for (int i = 0; i < 8; ++i) readers.push_back(Rollout(hub, absl::StrCat("rollout-", i)));
  for (TestRank& reader : readers) reader.Update();
  int from_publisher = 0;
  for (TestRank& reader : readers) from_publisher += reader.Fill().publisher;
  EXPECT_EQ(from_publisher, 1);
}

TEST(AssignmentTest, ChainsEndAtTheLimit) {
  RegistryLimits limits;
  limits.scheduler.max_chain = 3;
  RegistryHarness hub(limits);
  TestRank trainer = Trainer(hub, "step-1");
  std::map<BufferAddress, int> hops = {{trainer.address(), 0}};
  for (int i = 0; i < 12; ++i) {
    TestRank reader = Rollout(hub, absl::StrCat("rollout-", i));
    reader.Update();
    hops[reader.address()] = hops.at(reader.Fill().buffer) + 1;
    EXPECT_LE(hops[reader.address()], 3);
  }
}

TEST(AssignmentTest, AReaderNeverFillsFromOneThatFillsFromIt) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank first = Rollout(hub, "first");
  TestRank second = Rollout(hub, "second");
  first.Update();
  const AssignedSource source = first.Fill();
  second.Update();
  ASSERT_EQ(second.Fill().buffer, first.address());
  first.Report(source, SourceFailure::kStalled);
  EXPECT_TRUE(first.Heard<AssignSources>().sources.empty()) << "second fills from first";
  hub.Advance(absl::Seconds(1));
  EXPECT_EQ(first.Heard<AssignSources>().sources.at(0).buffer, trainer.address());
}

// None of the first candidates that are looked at can feed it.
TEST(AssignmentTest, ACompleteHolderIsFoundHoweverManyFillFromTheReader) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank above = Rollout(hub, "above");
  TestRank reader = Rollout(hub, "reader");
  above.Update();
  ASSERT_EQ(above.Fill().buffer, trainer.address());
  reader.Update();
  const AssignedSource source = reader.Fill();
  ASSERT_EQ(source.buffer, above.address());
  for (int i = 0; i < 40; ++i) {
    TestRank below = Rollout(hub, absl::StrCat("below-", i));
    below.Update();
    below.Fill();
  }
  reader.Report(source, SourceFailure::kRefused);
  const AssignSources next = reader.Heard<AssignSources>();
  ASSERT_EQ(next.sources.size(), 1u);
  EXPECT_EQ(next.sources.front().buffer, trainer.address());
}

// Quadratic work for a fleet would show as minutes here.
TEST(AssignmentTest, ALargeFleetIsAssignedWithinTheLimits) {
  RegistryHarness hub;
  hub.CheckStateRarely();
  TestRank trainer = Trainer(hub, "step-1");
  for (int i = 0; i < 2000; ++i) {
    TestRank reader = Rollout(hub, absl::StrCat("rollout-", i));
    reader.Update();
    reader.Fill();
  }
  EXPECT_OK(hub.registry().CheckInvariants());
  const Catalog catalog = hub.List();
  for (const CatalogReplica& replica : catalog.models.at(0).versions.at(0).replicas) {
    EXPECT_LE(replica.ranks.at(0).readers, SchedulerLimits().max_readers_per_source);
  }
}

}  // namespace
}  // namespace th
