// The checker lets some answers pass where a server that has lost its state cannot know better, and
// no others.
#include "th/simulator/invariant_checker.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/answer.h"
#include "th/protocol/messages.h"
#include "th/simulator/event_queue.h"
#include "th/simulator/simulated_buffer.h"
#include "th/simulator/simulated_process.h"
#include "th/topology/location.h"
#include "th/weights/version.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kSegments = 4;
constexpr uint64_t kState = 1, kStateAfterLoss = 2;
constexpr EpochId kEpoch(1), kLaterEpoch(2);

class Process : public SimulatedProcess {
 public:
  explicit Process(EventQueue* queue) : SimulatedProcess(queue, Location()) {}

 private:
  void HandleWake() override {}
};

OperationFinished Ended(OperationKind kind, UpdateOutcome outcome = UpdateOutcome::kNone) {
  OperationFinished finished;
  finished.kind = kind;
  finished.outcome = outcome;
  return finished;
}

class InvariantCheckerTest : public ::testing::Test {
 protected:
  void Hear(const Process& rank, EpochId epoch_id, uint64_t state,
            const OperationFinished& finished) {
    checker_.HeardFinished(&rank, {.number = OperationNumber(12), .buffer = "weights"}, epoch_id,
                           state, finished);
  }
  void Move(const std::string& content, const VersionInfo& version, uint64_t state) {
    SimulatedBuffer buffer(0, kSegments);
    buffer.Write(content);
    checker_.Moved("rollout-1/0", version, buffer, state);
  }

  EventQueue queue_{absl::UnixEpoch()};
  InvariantChecker checker_{&queue_, kSegments};
  const Process first_{&queue_}, second_{&queue_};
  const VersionLabel label_ = VersionLabel::Parse("step-2").value();
  const VersionInfo version_{.sequence = VersionSequence::Of(Epoch(1), 2), .label = label_};
  const VersionInfo later_{.sequence = VersionSequence::Of(Epoch(1), 3),
                           .label = VersionLabel::Parse("step-3").value()};
};

TEST_F(InvariantCheckerTest, AfterALossOfStateAnUnpublishThatARankEndedAloneStands) {
  Hear(first_, kEpoch, kState, Ended(OperationKind::kUpdate, UpdateOutcome::kNotAvailable));
  Hear(second_, kLaterEpoch, kStateAfterLoss, Ended(OperationKind::kUnpublish));
  EXPECT_THAT(checker_.TakeViolations(), IsEmpty());
  const Process third(&queue_);
  Hear(third, EpochId(3), kStateAfterLoss,
       Ended(OperationKind::kUpdate, UpdateOutcome::kNotAvailable));
  EXPECT_THAT(checker_.TakeViolations(), ElementsAre(HasSubstr("one transaction, two results")))
      << "the later state has said otherwise";
}

TEST_F(InvariantCheckerTest, AServerThatHasItsStateKnowsThatAnUnpublishWasSomethingElse) {
  Hear(first_, kEpoch, kState, Ended(OperationKind::kUpdate, UpdateOutcome::kNotAvailable));
  Hear(second_, kLaterEpoch, kState, Ended(OperationKind::kUnpublish));
  EXPECT_THAT(checker_.TakeViolations(), ElementsAre(HasSubstr("one transaction, two results")));
}

TEST_F(InvariantCheckerTest, ALossOfStateMakesNoUpdateOfAnUnpublish) {
  Hear(first_, kEpoch, kState, Ended(OperationKind::kUnpublish));
  Hear(second_, kLaterEpoch, kStateAfterLoss, Ended(OperationKind::kUpdate, UpdateOutcome::kMoved));
  EXPECT_THAT(checker_.TakeViolations(), ElementsAre(HasSubstr("one transaction, two results")));
}

TEST_F(InvariantCheckerTest, ALossOfStateChangesNoSuccessfulUpdate) {
  Hear(first_, kEpoch, kState, Ended(OperationKind::kUpdate, UpdateOutcome::kNotAvailable));
  Hear(second_, kLaterEpoch, kStateAfterLoss, Ended(OperationKind::kUpdate, UpdateOutcome::kMoved));
  EXPECT_THAT(checker_.TakeViolations(), ElementsAre(HasSubstr("one transaction, two results")));
}

// The others have called something else by that number.
TEST_F(InvariantCheckerTest, ARankWhoseCallTheResultCannotAnswerHearsSoAlone) {
  Hear(first_, kEpoch, kState, Ended(OperationKind::kUpdate, UpdateOutcome::kAlreadyThere));
  OperationFinished unfit = Ended(OperationKind::kUpdate);
  unfit.status = absl::AbortedError(absl::StrCat("the result names step-1; ", kNothingDoneForRank));
  Hear(second_, kEpoch, kState, unfit);
  EXPECT_THAT(checker_.TakeViolations(), IsEmpty());
  OperationFinished failed = Ended(OperationKind::kUpdate);
  failed.status = absl::AbortedError("a rank was replaced");
  Hear(second_, kEpoch, kState, failed);
  EXPECT_THAT(checker_.TakeViolations(), ElementsAre(HasSubstr("one transaction, two results")));
}

TEST_F(InvariantCheckerTest, AVersionIsTheContentThatItNames) {
  checker_.Published(label_, "content 1", "content 1");
  checker_.Published(label_, "content 2", "content 2");
  VersionInfo version = version_;
  version.attributes = {{kContentAttribute, "content 1"}};
  Move("content 2", version, kState);
  EXPECT_THAT(checker_.TakeViolations(),
              ElementsAre(HasSubstr("holds 'content 2', not 'content 1'")));
}

TEST_F(InvariantCheckerTest, WithinOneStateALieIsNeverTheVersionBesideTheTruth) {
  checker_.Published(label_, "the truth", "the truth");
  checker_.Published(label_, "the truth", "a lie");
  Move("the truth", version_, kState);
  EXPECT_THAT(checker_.TakeViolations(), IsEmpty());
  Move("a lie", version_, kState);
  EXPECT_THAT(checker_.TakeViolations(), ElementsAre(HasSubstr("holds 'a lie', not 'the truth'")));
}

TEST_F(InvariantCheckerTest, AfterALossOfStateALieMayBeTheVersionAndThenTheTruthIsNot) {
  checker_.Published(label_, "the truth", "the truth");
  checker_.Published(label_, "the truth", "a lie");
  Move("the truth", version_, kState);
  Move("a lie", version_, kStateAfterLoss);
  EXPECT_THAT(checker_.TakeViolations(), IsEmpty());
  Move("the truth", version_, kStateAfterLoss);
  EXPECT_THAT(checker_.TakeViolations(), ElementsAre(HasSubstr("holds 'the truth', not 'a lie'")));
}

TEST_F(InvariantCheckerTest, AVersionThatHasLostItsLabelIsJudgedByTheOneItHad) {
  checker_.Published(label_, "the truth", "the truth");
  const VersionInfo unlabelled{.sequence = version_.sequence};
  Move("the truth", unlabelled, kState);
  EXPECT_THAT(checker_.TakeViolations(), ElementsAre(HasSubstr("what nobody published")));
  checker_.NoteLabel(version_);
  Move("the truth", unlabelled, kState);
  EXPECT_THAT(checker_.TakeViolations(), IsEmpty());
  Move("what nobody has published", unlabelled, kState);
  EXPECT_THAT(checker_.TakeViolations(), ElementsAre(HasSubstr("what nobody published")));
}

TEST_F(InvariantCheckerTest, WhatEverySourceHasIsNotDisputed) {
  checker_.Published(label_, "content 1", "content 1");
  EXPECT_FALSE(checker_.IsDisputed(version_, 0));
  checker_.Published(label_, "content 1", "a lie");
  EXPECT_TRUE(checker_.IsDisputed(version_, 0));
}

TEST_F(InvariantCheckerTest, AForgeryDisputesItsShardOfItsVersionAlone) {
  checker_.Forged(version_.sequence, /*shard=*/1, 7);
  EXPECT_TRUE(checker_.IsDisputed(version_, 1));
  EXPECT_FALSE(checker_.IsDisputed(version_, 0));
  EXPECT_FALSE(checker_.IsDisputed(later_, 1));
  EXPECT_TRUE(checker_.WasPublished(version_, 1, SegmentIndex(2), 7));
  EXPECT_FALSE(checker_.WasPublished(version_, 0, SegmentIndex(2), 7));
  EXPECT_FALSE(checker_.WasPublished(later_, 1, SegmentIndex(2), 7));
}

TEST_F(InvariantCheckerTest, AFalseRootDisputesItsShardOfItsVersionAlone) {
  checker_.SaysFalseRoot(version_.sequence, /*shard=*/1);
  EXPECT_TRUE(checker_.IsDisputed(version_, 1));
  EXPECT_FALSE(checker_.IsDisputed(version_, 0));
  EXPECT_FALSE(checker_.IsDisputed(later_, 1));
}

TEST_F(InvariantCheckerTest, AGroupThatSaysOtherThingsThatAreNotSoDisputesNothing) {
  checker_.SaysFalsely("rollout-1", 1);
  EXPECT_FALSE(checker_.IsDisputed(version_, 0));
}

}  // namespace
}  // namespace th
