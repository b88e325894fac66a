// A broken or hostile client may say anything about itself and others: each such message is
// refused, counted, and never believed.
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint64_t kSegments = 4;  // of LayoutNamed

SegmentSet SegmentsUpTo(uint64_t end) {
  SegmentSet segments;
  segments.Add({SegmentIndex(0), SegmentIndex(end)});
  return segments;
}

// All that the catalog says of who holds what.
std::string WhoHoldsWhat(RegistryHarness& hub) {
  std::string text;
  const auto add = [&](const std::string& version, const std::vector<CatalogReplica>& replicas) {
    for (const CatalogReplica& replica : replicas) {
      absl::StrAppend(&text, version, " ", replica.group, " ", replica.state, ":");
      for (const CatalogRank& rank : replica.ranks) {
        absl::StrAppend(&text, " ", rank.bytes_held, " from ", rank.sources.size());
      }
      absl::StrAppend(&text, "\n");
    }
  };
  for (const CatalogModel& model : hub.List().models) {
    add("none", model.idle);
    for (const CatalogVersion& version : model.versions) {
      add(absl::StrCat(version.info.ToString(), version.sealed ? " sealed" : ""), version.replicas);
    }
  }
  return text;
}

// A trainer that has published step-1, a rollout in the midst of an update to it, and a bystander
// that has done nothing yet.
struct Stage {
  Stage() : trainer(Trainer(hub, "step-1")), reader(Rollout(hub, "r")), idle(Rollout(hub, "i")) {
    version = hub.List().models.at(0).versions.at(0).info;
    reader.Update();
    source = reader.Fill();
  }
  OperationKey Ahead(uint64_t by) const {
    return {reader.buffer, OperationNumber(reader.number.value + by)};
  }

  RegistryHarness hub;
  TestRank trainer, reader, idle;
  VersionInfo version;
  AssignedSource source;
};

struct BadMessage {
  const char* name;
  // By the reader.
  std::function<WorkerMessage(Stage&)> make;
};

StartOperation StartAs(const Stage& stage, OperationKey key, OperationKind kind) {
  StartOperation start;
  start.key = key;
  start.kind = kind;
  start.timeout = absl::Seconds(10);
  start.group_generation = stage.reader.generation;
  start.label = *VersionLabel::Parse("step-9");
  return start;
}

std::vector<BadMessage> BadMessages() {
  return {
      {"OperationNumberSkips",
       [](Stage& s) { return StartAs(s, s.Ahead(2), OperationKind::kUpdate); }},
      {"OperationNumberIsZero",
       [](Stage& s) {
         return StartAs(s, {s.reader.buffer, OperationNumber(0)}, OperationKind::kUpdate);
       }},
      {"OperationOfABufferThatIsNotItsOwn",
       [](Stage& s) {
         return StartAs(s, {BufferId(77), OperationNumber(1)}, OperationKind::kUpdate);
       }},
      {"OperationOfAnOlderGeneration",
       [](Stage& s) {
         StartOperation start = StartAs(s, s.Ahead(1), OperationKind::kUpdate);
         start.group_generation = GroupGeneration(s.reader.generation.value - 1);
         return start;
       }},
      {"AnOperationThatNoServerHasResolved",
       [](Stage& s) {
         StartOperation start = StartAs(s, s.Ahead(1), OperationKind::kUpdate);
         start.resolved = s.version;
         return start;
       }},
      {"ProgressBeyondItsSegments",
       [](Stage& s) {
         return FillProgress{s.reader.key(), s.version.sequence, SegmentsUpTo(kSegments + 1)};
       }},
      {"ProgressOfAnotherVersion",
       [](Stage& s) {
         return FillProgress{s.reader.key(), VersionSequence(99), SegmentsUpTo(1)};
       }},
      {"ProgressOfAnOperationThatIsNotUnderWay",
       [](Stage& s) {
         return FillProgress{s.Ahead(1), s.version.sequence, SegmentsUpTo(1)};
       }},
      {"ProgressOfAShardThatIsNotItsOwn",
       [](Stage& s) {
         return FillProgress{{BufferId(77), s.reader.number}, s.version.sequence, SegmentsUpTo(1)};
       }},
      {"DoneWithAnOperationThatIsNotUnderWay",
       [](Stage& s) {
         return RankDone{s.Ahead(1), 0};
       }},
      {"DoneWithAShardThatIsNotItsOwn",
       [](Stage& s) {
         return RankDone{{BufferId(77), s.reader.number}, 0};
       }},
      {"ReadyForAnOperationThatIsNotUnderWay",
       [](Stage& s) {
         return ReadyToFill{s.Ahead(1), BufferGeneration(5)};
       }},
      {"FailsInAnOperationThatIsNotUnderWay",
       [](Stage& s) {
         return RankFailed{s.Ahead(1), absl::InternalError("invented"), true};
       }},
      {"SumsOfAVersionThatItDoesNotPublish",
       [](Stage& s) {
         return ShardSealed{s.reader.buffer, s.version.sequence, RootNamed("other")};
       }},
      {"SumsOfAShardThatIsNotItsOwn",
       [](Stage& s) {
         return ShardSealed{BufferId(77), s.version.sequence, RootNamed("other")};
       }},
      {"AFailureOfASourceOfAnOperationThatIsNotUnderWay",
       [](Stage& s) {
         return SourceFailed{s.Ahead(1), s.reader.assignment, s.source.buffer,
                             SourceFailure::kCorrupt, "invented"};
       }},
      {"AResetOfABufferThatIsNotItsOwn", [](Stage&) { return BufferReset{BufferId(77)}; }},
      {"TheEndOfABufferThatIsNotItsOwn", [](Stage&) { return UnregisterBuffer{BufferId(77)}; }},
      {"ALayoutThatNobodyAskedFor", [](Stage&) { return LayoutUpload{LayoutNamed("nobody's")}; }},
      {"ASecondJoin", [](Stage& s) { return s.reader.Request(); }},
  };
}

class BadMessageTest : public ::testing::TestWithParam<BadMessage> {};

TEST_P(BadMessageTest, IsRefusedCountedAndNotBelieved) {
  Stage stage;
  const std::string before = WhoHoldsWhat(stage.hub);
  const uint64_t refused = stage.hub.registry().counters().messages_refused;
  stage.reader.Say(GetParam().make(stage));
  EXPECT_EQ(stage.hub.registry().counters().messages_refused, refused + 1);
  EXPECT_EQ(WhoHoldsWhat(stage.hub), before);
  // Nor does it harm what is under way.
  stage.reader.Done();
  bool moved = false;
  for (const auto& heard : stage.hub.TakeAll<OperationFinished>(stage.reader.connection)) {
    moved |= heard.status.ok() && heard.outcome == UpdateOutcome::kMoved;
  }
  EXPECT_TRUE(moved) << stage.hub.Log();
}

INSTANTIATE_TEST_SUITE_P(Each, BadMessageTest, ::testing::ValuesIn(BadMessages()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(BadInputTest, WhatABystanderSaysOfAFillThatItHasNotIsRefused) {
  Stage stage;
  const std::string before = WhoHoldsWhat(stage.hub);
  const uint64_t refused = stage.hub.registry().counters().messages_refused;
  stage.idle.Say(RankDone{{stage.idle.buffer, OperationNumber(1)}, 0});
  stage.idle.Say(FillProgress{
      {stage.idle.buffer, OperationNumber(1)}, stage.version.sequence, SegmentsUpTo(kSegments)});
  EXPECT_EQ(stage.hub.registry().counters().messages_refused, refused + 2);
  EXPECT_EQ(WhoHoldsWhat(stage.hub), before);
}

TEST(BadInputTest, AnOperationThatIsAskedAgainHasTheFirstResult) {
  Stage stage;
  stage.reader.Done();
  const OperationFinished first = stage.reader.Finished();
  const uint64_t refused = stage.hub.registry().counters().messages_refused;
  stage.reader.Say(StartAs(stage, stage.reader.key(), OperationKind::kUpdate));
  const OperationFinished again = stage.reader.Finished();
  EXPECT_EQ(again.outcome, first.outcome);
  EXPECT_EQ(again.version.sequence, first.version.sequence);
  EXPECT_EQ(stage.hub.registry().counters().messages_refused, refused);
}

TEST(BadInputTest, AnOperationNumberThatRepeatsAsAnotherKindIsRefused) {
  Stage stage;
  stage.reader.Done();
  EXPECT_OK(stage.reader.Finished().status);
  const std::string before = WhoHoldsWhat(stage.hub);
  const uint64_t refused = stage.hub.registry().counters().messages_refused;
  stage.reader.Say(StartAs(stage, stage.reader.key(), OperationKind::kPublish));
  EXPECT_EQ(stage.reader.Finished().status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stage.hub.registry().counters().messages_refused, refused + 1);
  EXPECT_EQ(WhoHoldsWhat(stage.hub), before);
}

TEST(BadInputTest, NobodyIsHeardBeforeItHasJoined) {
  Stage stage;
  const std::string before = WhoHoldsWhat(stage.hub);
  const ConnectionId stranger = stage.hub.Open();
  stage.hub.Deliver(stranger, RankDone{stage.reader.key(), 0});
  EXPECT_THAT(stage.hub.TakeAll<Refused>(stranger), Not(IsEmpty()));
  EXPECT_TRUE(stage.hub.IsClosed(stranger));
  EXPECT_EQ(WhoHoldsWhat(stage.hub), before);
}

// It says that it is done, and then, as its session must, what it truly holds.
TEST(BadInputTest, WhoSaysThatItIsDoneAndHoldsLessServesNobody) {
  Stage stage;
  stage.reader.Done();
  AnnouncedBuffer truth = stage.reader.Holding(stage.version, /*publisher=*/false, "");
  truth.held->complete = false;
  truth.held->root.reset();
  truth.held->segments = SegmentsUpTo(1);
  stage.reader.Say(RegisterBuffer{truth});
  EXPECT_OK(stage.hub.registry().CheckInvariants());
  EXPECT_THAT(WhoHoldsWhat(stage.hub), ::testing::HasSubstr("none r idle"));
}

// Its group has moved to step-2, for it said that it was done; what it truly holds is step-1.
TEST(BadInputTest, WhoSaysThatItIsDoneAndHoldsAnotherVersionMakesNoHolder) {
  RegistryHarness hub;
  std::vector<TestRank> one = MakeGroup(hub, "one", 2), other = MakeGroup(hub, "other", 2);
  JoinAndRegister(one);
  JoinAndRegister(other);
  const VersionInfo first = PublishWhole(one, "step-1");
  PublishWhole(other, "step-2");
  std::vector<TestRank> rollout = JoinedGroup(hub, "r", 2);
  for (TestRank& rank : rollout) rank.Update();
  for (TestRank& rank : rollout) rank.FillWhole();
  rollout[0].Say(RegisterBuffer{rollout[0].Holding(first, /*publisher=*/false, "")});
  EXPECT_OK(hub.registry().CheckInvariants());
  EXPECT_THAT(WhoHoldsWhat(hub), Not(::testing::HasSubstr(" r complete")));
}

// Until the publisher has told its sums nobody else has any.
TEST(BadInputTest, WhatABystanderSaysOfSumsThatNobodyHasToldIsRefused) {
  RegistryHarness hub;
  TestRank trainer(hub, "t", 0, 1), bystander(hub, "b", 0, 1);
  trainer.JoinAndRegister();
  bystander.JoinAndRegister();
  trainer.Publish("step-1");
  const VersionInfo version = trainer.Finished().version;
  const std::string before = WhoHoldsWhat(hub);
  for (const bool complete : {false, true}) {
    const uint64_t refused = hub.registry().counters().messages_refused;
    AnnouncedBuffer lie = bystander.Holding(version, /*publisher=*/false, "invented");
    lie.held->complete = complete;
    bystander.Say(RegisterBuffer{lie});
    EXPECT_EQ(hub.registry().counters().messages_refused, refused + 1);
    EXPECT_EQ(WhoHoldsWhat(hub), before);
  }
  trainer.Seal(version.sequence, "bytes");
  EXPECT_TRUE(trainer.HearsNone<PublicationRefused>());
  EXPECT_THAT(WhoHoldsWhat(hub), ::testing::HasSubstr(" sealed"));
}

// The token of a membership is what a worker resumes with.
TEST(BadInputTest, NobodyResumesWithTheTokenOfAnother) {
  Stage stage;
  const uint64_t refused = stage.hub.registry().counters().joins_refused;
  JoinRequest request = stage.idle.Request();
  request.resume = stage.reader.Claim();
  const ConnectionId stranger = stage.hub.Open();
  stage.hub.Deliver(stranger, request);
  EXPECT_THAT(stage.hub.TakeAll<Refused>(stranger), Not(IsEmpty()));
  EXPECT_EQ(stage.hub.registry().counters().joins_refused, refused + 1);
}

TEST(BadInputTest, NobodyResumesWithATokenThatWasReplaced) {
  Stage stage;
  TestRank old = stage.reader;
  stage.reader.Disconnect();
  TestRank fresh(stage.hub, "r", 0, 1);
  ASSERT_TRUE(fresh.Join());
  const uint64_t refused = stage.hub.registry().counters().joins_refused;
  EXPECT_FALSE(old.Resume({}));
  EXPECT_EQ(stage.hub.registry().counters().joins_refused, refused + 1);
}

}  // namespace
}  // namespace th
