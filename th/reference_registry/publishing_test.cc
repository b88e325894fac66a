#include <functional>
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
using ::testing::IsEmpty;
using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;

TEST(PublishingTest, AVersionResolvesOnceAllRanksHavePublishedIt) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  group[0].Publish("step-1");
  EXPECT_THAT(hub.registry().Resolve(TestModel(), LatestVersion{}),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_TRUE(group[0].HearsNone<OperationFinished>());
  group[1].Publish("step-1");
  const OperationFinished first = group[0].Finished();
  const OperationFinished second = group[1].Finished();
  EXPECT_OK(first.status);
  EXPECT_EQ(first.version, second.version);
  EXPECT_THAT(hub.registry().Resolve(TestModel(), LatestVersion{}), IsOkAndHolds(first.version));
}

TEST(PublishingTest, TheHighWaterMarkIsDurableBeforeTheVersionIsNamed) {
  RegistryHarness hub;  // the harness checks the order
  TestRank trainer = Trainer(hub, "step-1");
  EXPECT_EQ(hub.model().high_water, VersionSequence::Of(hub.epoch(), 1));
  EXPECT_EQ(hub.model().high_water_label, "step-1");
}

TEST(PublishingTest, SequencesRiseAndAreNeverReused) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  trainer.Unpublish();
  trainer.Done();
  trainer.Finished();
  StartOperation hopeless = trainer.PublishRequest("step-2");
  hopeless.timeout = absl::Milliseconds(1);
  trainer.Start(hopeless);  // one rank: done at once
  EXPECT_EQ(trainer.Finished().version.sequence, VersionSequence::Of(hub.epoch(), 2));
}

// Its publish fails, everybody leaves, the model's record goes, and the group comes back.
TEST(PublishingTest, ASequenceThatAFailedPublishToldIsNotGivenAgain) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  group[0].Publish("step-1");
  group[1].Say(Leave{});
  const VersionSequence reported = group[0].Finished().version.sequence;
  ASSERT_GT(reported, VersionSequence());
  group[0].Say(Leave{});
  ASSERT_THAT(hub.List().models, IsEmpty());
  std::vector<TestRank> again = JoinedGroup(hub, "trainer", 2);
  EXPECT_GT(PublishWhole(again, "step-1").sequence, reported);
}

TEST(PublishingTest, AVersionThatAnUpdateMovesToDoesNotMakeRoom) {
  RegistryLimits limits;
  limits.max_versions_per_model = 2;
  RegistryHarness hub(limits);
  TestRank trainer = Trainer(hub, "step-1");
  TestRank second(hub, "trainer-2", 0, 1);
  second.JoinAndRegister();
  second.Publish("step-2");
  ASSERT_OK(second.Finished().status);
  TestRank reader = Rollout(hub, "reader");
  reader.Update(*ParseVersionSelector("step-1"));
  reader.Heard<OperationResolved>();  // and drains for a while
  trainer.Say(Leave{});
  TestRank third(hub, "trainer-3", 0, 1);
  third.JoinAndRegister();
  third.Publish("step-3");
  EXPECT_THAT(third.Finished().status, StatusIs(absl::StatusCode::kResourceExhausted,
                                                HasSubstr("max_versions_per_model is 2")));
  reader.Ready();
  EXPECT_THAT(reader.Finished().status, StatusIs(absl::StatusCode::kUnavailable));
  third.Publish("step-3");
  EXPECT_OK(third.Finished().status);
}

TEST(PublishingTest, AMissingRankIsNamedAtTheDeadlineAndTheLabelStaysFree) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 3);
  group[0].Publish("step-1");
  group[2].Publish("step-1");
  for (int i = 0; i < 20; ++i) {
    hub.Advance(absl::Seconds(3));
    for (TestRank& rank : group) rank.Say(Heartbeat{});
  }
  const absl::Status status = group[0].Finished().status;
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               AllOf(HasSubstr("trainer/1 had not started it"),
                                     HasSubstr("publish (operation 1)"))));
  EXPECT_EQ(group[2].Finished().status, status);
  group[1].Publish("step-1");
  EXPECT_EQ(group[1].Finished().status, status) << "the late rank has the group's result";
  EXPECT_EQ(PublishWhole(group, "step-1").sequence.number(), 2u);
}

struct Disagreement {
  std::string name;
  std::function<void(StartOperation&)> change;
  std::string says;
};

class DisagreementTest : public ::testing::TestWithParam<Disagreement> {};

TEST_P(DisagreementTest, EndsThePublishForAllNamingBothRanks) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  group[0].Publish("step-1");
  StartOperation other = group[1].PublishRequest("step-1");
  GetParam().change(other);
  group[1].Start(other);
  const absl::Status status = group[0].Finished().status;
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("trainer/0"), HasSubstr("trainer/1"),
                                     HasSubstr(GetParam().says))));
  EXPECT_EQ(group[1].Finished().status, status);
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, DisagreementTest,
    ::testing::Values(
        Disagreement{"Label", [](StartOperation& r) { r.label = VersionLabel::FromStep(7); },
                     "publishes label '7', not 'step-1'"},
        Disagreement{"Attributes", [](StartOperation& r) { r.attributes["step"] = "1"; },
                     "has other attributes"},
        Disagreement{"DerivedFrom", [](StartOperation& r) { r.derived_from = VersionSequence(1); },
                     "derives from another version"},
        Disagreement{"Kind", [](StartOperation& r) { r.kind = OperationKind::kUpdate; },
                     "calls it update, not publish"},
        Disagreement{"Unpublish", [](StartOperation& r) { r.kind = OperationKind::kUnpublish; },
                     "calls it unpublish, not publish"}),
    [](const auto& param) { return param.param.name; });

TEST(PublishingTest, AttributesReachTheReaders) {
  RegistryHarness hub;
  TestRank trainer(hub, "trainer", 0, 1);
  trainer.JoinAndRegister();
  StartOperation request = trainer.PublishRequest("step-1");
  request.attributes = {{"loss", "0.25"}};
  trainer.Start(request);
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  EXPECT_EQ(rollout.Heard<OperationResolved>().version.attributes.at("loss"), "0.25");
}

TEST(PublishingTest, ABufferThatHoldsSomethingIsNotPublishedOver) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  trainer.Publish("step-2");
  EXPECT_THAT(trainer.Finished().status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("step-1"), HasSubstr("unpublish it first"))));
}

// A server that stands still hears the ranks' starts first, and then that they gave up.
TEST(PublishingTest, APublicationThatItsRanksGaveUpBeforeItWasMadeGoodIsNobodys) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  for (TestRank& rank : group) rank.Publish("step-1");
  for (TestRank& rank : group) EXPECT_OK(rank.Finished().status);
  for (TestRank& rank : group) rank.Fail(absl::DeadlineExceededError("no answer"));
  TestRank reader(hub, "rollout", 0, 1, LayoutNamed("w0"));
  reader.JoinAndRegister();
  reader.Update();
  EXPECT_EQ(reader.Finished().outcome, UpdateOutcome::kNotAvailable);
  PublishWhole(group, "step-2");
}

class DrainedAloneTest : public ::testing::TestWithParam<bool> {};

// It did not wait for the others, and its unpublish ended before they had asked for the publish.
TEST_P(DrainedAloneTest, WhoUnpublishedBehindAPublishThatOthersFinishLaterHoldsNothingOfIt) {
  const bool drained_in_time = GetParam();
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  group[0].Publish("step-1");
  StartOperation impatient = group[0].UnpublishRequest();
  impatient.timeout = absl::Seconds(1);
  impatient.keep_retained = false;
  group[0].Start(impatient);
  if (drained_in_time) group[0].Done();
  hub.Advance(absl::Seconds(1));
  ASSERT_THAT(group[0].Finished().status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  group[1].Publish("step-1");
  ASSERT_OK(group[1].Finished().status);
  TestRank reader(hub, "rollout", 0, 1, LayoutNamed("w0"));
  reader.JoinAndRegister();
  reader.Update();
  EXPECT_EQ(reader.Finished().outcome, UpdateOutcome::kNotAvailable);
  group[1].Unpublish();
  EXPECT_THAT(group[1].Finished().status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  PublishWhole(group, "step-2");
}

INSTANTIATE_TEST_SUITE_P(Drained, DrainedAloneTest, ::testing::Values(true, false),
                         [](const auto& param) { return param.param ? "InTime" : "TooLate"; });

TEST(PublishingTest, SealingTellsReadersTheRootOnce) {
  RegistryHarness hub;
  TestRank trainer(hub, "trainer", 0, 1);
  trainer.JoinAndRegister();
  trainer.Publish("step-1");
  const VersionInfo version = trainer.Finished().version;
  TestRank early = Rollout(hub, "early");
  early.Update();
  EXPECT_FALSE(early.Heard<OperationResolved>().root.has_value());
  early.Fill();
  trainer.Seal(version.sequence, "bytes");
  EXPECT_EQ(early.Heard<RootKnown>().shard,
            (SealedShard{early.layout.digest(), RootNamed("bytes")}));
  TestRank late = Rollout(hub, "late");
  late.Update();
  EXPECT_EQ(late.Heard<OperationResolved>().root, RootNamed("bytes"));
  EXPECT_EQ(hub.registry().counters().versions_sealed, 1u);
}

TEST(PublishingTest, ARootThatComesBetweenResolvingAndFillingIsToldToo) {
  RegistryHarness hub;
  TestRank trainer(hub, "trainer", 0, 1);
  trainer.JoinAndRegister();
  trainer.Publish("step-1");
  const VersionInfo version = trainer.Finished().version;
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  trainer.Seal(version.sequence, "bytes");
  rollout.Ready();
  EXPECT_EQ(rollout.Heard<RootKnown>().shard.root, RootNamed("bytes"));
}

TEST(PublishingTest, LayoutsWithoutChecksumsAreSealedAtOnceWithTheEmptyRoot) {
  RegistryHarness hub;
  const ShardLayout unchecksummed = LayoutNamed("w", 4, ChecksumAlgorithm::kNone);
  TestRank trainer(hub, "trainer", 0, 1, unchecksummed);
  trainer.JoinAndRegister();
  trainer.Publish("step-1");
  EXPECT_EQ(hub.registry().counters().versions_sealed, 1u);
  TestRank rollout(hub, "rollout", 0, 1, unchecksummed);
  rollout.JoinAndRegister();
  rollout.Update();
  EXPECT_EQ(rollout.Heard<OperationResolved>().root, Digest());
}

TEST(PublishingTest, SealingWhatIsNotPublishedIsCountedAndIgnored) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  trainer.Seal(VersionSequence(99), "bytes");
  EXPECT_EQ(hub.registry().counters().messages_refused, 1u);
}

TEST(PublishingTest, OfTwoCopiesThatDifferTheSecondIsRefusedAndNoSource) {
  RegistryHarness hub;
  std::vector<TestRank> group;
  for (uint32_t rank = 0; rank < 2; ++rank) group.emplace_back(hub, "trainer", rank, 2);
  JoinAndRegister(group);
  for (TestRank& rank : group) rank.Publish("step-1");
  const VersionInfo version = group[0].Finished().version;
  group[0].Seal(version.sequence, "one");
  group[1].Seal(version.sequence, "another");
  const PublicationRefused refused = group[1].Heard<PublicationRefused>();
  EXPECT_EQ(refused.version, version.sequence);
  EXPECT_THAT(refused.status, StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("trainer/1")));
  EXPECT_TRUE(group[0].HearsNone<PublicationRefused>());
  for (const char* name : {"a", "b", "c"}) {
    TestRank rollout = Rollout(hub, name);
    rollout.Update();
    EXPECT_NE(rollout.Fill().buffer, group[1].address());
  }
}

TEST(PublishingTest, AReaderOfARefusedCopyIsAssignedAnother) {
  RegistryHarness hub;
  std::vector<TestRank> group;
  for (uint32_t rank = 0; rank < 2; ++rank) group.emplace_back(hub, "trainer", rank, 2);
  JoinAndRegister(group);
  for (TestRank& rank : group) rank.Publish("step-1");
  const VersionInfo version = group[0].Finished().version;
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  ASSERT_EQ(rollout.Fill().buffer, group[0].address());
  group[1].Seal(version.sequence, "one");
  group[0].Seal(version.sequence, "another");
  EXPECT_EQ(rollout.Heard<AssignSources>().sources.at(0).buffer, group[1].address());
}

// A second group that publishes under a label that is in use.
class FurtherHolderTest : public ::testing::Test {
 protected:
  FurtherHolderTest() : trainer_(Trainer(hub_, "step-1")), second_(hub_, "second", 0, 1) {}

  OperationFinished PublishSecond() {
    second_.JoinAndRegister();
    second_.Publish("step-1");
    return second_.Finished();
  }

  RegistryHarness hub_;
  TestRank trainer_;
  TestRank second_;
};

TEST_F(FurtherHolderTest, EqualContentIsAcceptedAndASourceOnceItAgrees) {
  const OperationFinished finished = PublishSecond();
  ASSERT_OK(finished.status);
  EXPECT_EQ(finished.version.sequence.number(), 1u);
  trainer_.Say(Leave{});
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  rollout.Ready();
  EXPECT_TRUE(rollout.Heard<AssignSources>().sources.empty()) << "it has not agreed yet";
  second_.Seal(finished.version.sequence, "step-1");
  EXPECT_EQ(rollout.Heard<AssignSources>().sources.at(0).buffer, second_.address());
}

TEST_F(FurtherHolderTest, OtherBytesAreRefusedWhenTheySeal) {
  const OperationFinished finished = PublishSecond();
  second_.Seal(finished.version.sequence, "other bytes");
  EXPECT_THAT(second_.Heard<PublicationRefused>().status,
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("second/0")));
  second_.Publish("step-2");
  EXPECT_OK(second_.Finished().status) << "what was refused does not stand in the way";
}

// The order in which sums are done decides nothing.
class UnsealedFurtherHolderTest : public ::testing::Test {
 protected:
  UnsealedFurtherHolderTest() : first_(hub_, "trainer", 0, 1), further_(hub_, "twin", 0, 1) {
    for (TestRank* rank : {&first_, &further_}) {
      rank->JoinAndRegister();
      rank->Publish("step-1");
      version_ = rank->Finished().version;
    }
    further_.Seal(version_.sequence, "other bytes");
  }

  RegistryHarness hub_;
  TestRank first_;
  TestRank further_;
  VersionInfo version_;
};

TEST_F(UnsealedFurtherHolderTest, TheFirstPublishersSumsAreTheVersions) {
  EXPECT_TRUE(further_.HearsNone<PublicationRefused>());
  first_.Seal(version_.sequence, "step-1");
  EXPECT_TRUE(first_.HearsNone<PublicationRefused>());
  EXPECT_EQ(further_.Heard<PublicationRefused>().version, version_.sequence);
}

TEST_F(UnsealedFurtherHolderTest, AFurtherPublishersSumsAreItWhenTheFirstIsGone) {
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  EXPECT_EQ(rollout.Fill().buffer, first_.address());
  EXPECT_TRUE(rollout.HearsNone<RootKnown>());
  first_.Say(Leave{});
  EXPECT_EQ(rollout.Heard<RootKnown>().shard.root, RootNamed("other bytes"));
}

TEST_F(FurtherHolderTest, OtherLayoutIsRefusedNamingTheTensor) {
  second_.layout = LayoutNamed("v");
  const OperationFinished finished = PublishSecond();
  EXPECT_THAT(finished.status,
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("step-1"), HasSubstr("second/0"), HasSubstr("'v'"))));
}

TEST_F(FurtherHolderTest, OtherFormWithoutItsOriginIsRefused) {
  second_.form = "fp8";
  EXPECT_THAT(PublishSecond().status, StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("fp8")));
}

TEST_F(FurtherHolderTest, OtherAttributesAreRefused) {
  second_.JoinAndRegister();
  StartOperation request = second_.PublishRequest("step-1");
  request.attributes["seed"] = "2";
  second_.Start(request);
  EXPECT_THAT(second_.Finished().status,
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("attributes")));
}

TEST_F(FurtherHolderTest, TheSameGroupMayPublishAgainAfterItsUnpublish) {
  trainer_.Unpublish();
  trainer_.Done();
  ASSERT_OK(trainer_.Finished().status);
  trainer_.Publish("step-1");
  const OperationFinished again = trainer_.Finished();
  ASSERT_OK(again.status);
  EXPECT_EQ(again.version.sequence.number(), 1u);
  trainer_.Seal(again.version.sequence, "step-1");
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  EXPECT_EQ(rollout.Fill().buffer, trainer_.address());
}

TEST(PublishingTest, AFurtherHolderThatLacksAShardIsRefused) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  PublishWhole(trainer, "step-1");
  TestRank half(hub, "half", 0, 1, LayoutNamed("w0"));
  half.JoinAndRegister();
  half.Publish("step-1");
  EXPECT_THAT(half.Finished().status,
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("lacks its shard")));
}

TEST(PublishingTest, TwoGroupsThatPublishOneLabelAtOnceMakeOneVersion) {
  RegistryHarness hub;
  std::vector<TestRank> first = JoinedGroup(hub, "first", 2);
  std::vector<TestRank> second = JoinedGroup(hub, "second", 2);
  for (auto* group : {&first, &second}) (*group)[0].Publish("step-1");
  for (auto* group : {&first, &second}) (*group)[1].Publish("step-1");
  const OperationFinished one = first[0].Finished();
  const OperationFinished other = second[0].Finished();
  EXPECT_OK(one.status);
  EXPECT_OK(other.status);
  EXPECT_EQ(one.version, other.version);
}

TEST(PublishingTest, ARankThatFillsTheNextVersionKeepsItWhenItsGroupsPublicationIsRefused) {
  RegistryHarness hub;
  std::vector<TestRank> first = MakeGroup(hub, "first", 2);
  std::vector<TestRank> next = MakeGroup(hub, "next", 2);
  std::vector<TestRank> second = MakeGroup(hub, "second", 2);
  for (auto* group : {&first, &next, &second}) JoinAndRegister(*group);
  const VersionInfo version = PublishWhole(first, "step-1");
  for (TestRank& rank : second) rank.Publish("step-1");
  for (TestRank& rank : second) ASSERT_OK(rank.Finished().status);
  PublishWhole(next, "step-2");
  for (TestRank& rank : second) rank.Update();
  second[0].FillWhole();
  second[1].Seal(version.sequence, "other bytes");
  EXPECT_EQ(second[1].Heard<PublicationRefused>().version, version.sequence);
  EXPECT_TRUE(second[0].HearsNone<PublicationRefused>());
  second[1].FillWhole();
  for (TestRank& rank : second) EXPECT_OK(rank.Finished().status);
  for (TestRank& rank : next) rank.Say(Leave{});
  TestRank reader(hub, "rollout", 0, 1, LayoutNamed("w0"));
  reader.JoinAndRegister();
  reader.Update();
  EXPECT_EQ(reader.Fill().buffer, second[0].address());
}

class DerivedFormTest : public ::testing::Test {
 protected:
  DerivedFormTest() : trainer_(Trainer(hub_, "step-1")), engine_(hub_, "engine", 0, 1) {
    engine_.JoinAndRegister();
    derived_ = engine_;
    derived_->buffer = BufferId(2);
    derived_->buffer_name = "fused";
    derived_->form = "fused";
    EXPECT_OK(derived_->Register());
  }

  void Receive() {
    engine_.Update();
    engine_.FillWhole();
    ASSERT_OK(engine_.Finished().status);
  }
  OperationFinished PublishDerived(VersionSequence from) {
    StartOperation request = derived_->PublishRequest("step-1");
    request.label = VersionLabel();
    request.derived_from = from;
    derived_->Start(request);
    return derived_->Finished();
  }
  VersionSequence version() { return hub_.model().high_water; }

  RegistryHarness hub_;
  TestRank trainer_;
  TestRank engine_;
  std::optional<TestRank> derived_;
};

TEST_F(DerivedFormTest, AHolderAddsAFormThatReadersOfThatFormGet) {
  Receive();
  const OperationFinished finished = PublishDerived(version());
  ASSERT_OK(finished.status);
  EXPECT_EQ(finished.version.label.text(), "step-1");
  TestRank reader(hub_, "reader", 0, 1);
  reader.form = "fused";
  reader.JoinAndRegister();
  reader.Update();
  EXPECT_EQ(reader.Fill().buffer, derived_->address());
}

// As an engine that has received it by name, which keeps nothing of it.
TEST_F(DerivedFormTest, WhoDoesNotHoldTheVersionMayDeriveFromIt) {
  const OperationFinished finished = PublishDerived(version());
  ASSERT_OK(finished.status);
  EXPECT_EQ(finished.version.sequence, version());
}

TEST_F(DerivedFormTest, NobodyDerivesFromAVersionThatWasRolledBack) {
  const VersionSequence first = version();
  trainer_.Unpublish();
  trainer_.Done();
  ASSERT_OK(trainer_.Finished().status);
  trainer_.Publish("step-2");
  trainer_.Seal(version(), "step-2");
  ASSERT_OK(trainer_.Finished().status);
  const VersionSequence second = version();
  ASSERT_OK(hub_.Command({"back", RollBack{first}}).status);
  EXPECT_THAT(PublishDerived(second).status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("was rolled back since")));
}

TEST_F(DerivedFormTest, AnUnknownVersionIsNamed) {
  Receive();
  EXPECT_THAT(PublishDerived(VersionSequence::Of(Epoch(1), 9)).status,
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("#1.9")));
}

TEST_F(DerivedFormTest, AFormThatNobodyPublishedIsNotAvailable) {
  TestRank reader(hub_, "reader", 0, 1);
  reader.form = "fused";
  reader.JoinAndRegister();
  reader.Update();
  EXPECT_EQ(reader.Finished().not_available, NotAvailableReason::kNotPublished);
}

TEST(PublishingTest, ReadersOfAVersionThatCanNeverBeSealedAreTold) {
  RegistryHarness hub;
  TestRank trainer(hub, "trainer", 0, 1);
  trainer.JoinAndRegister();
  trainer.Publish("step-1");
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  rollout.Fill();
  trainer.Say(Leave{});
  EXPECT_THAT(rollout.Finished().status,
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("its publisher went before the checksums were known")));
}

TEST(PublishingTest, OldVersionsWithoutHolderMakeRoomAndTheLimitIsNamed) {
  RegistryLimits limits;
  limits.max_versions_per_model = 2;
  RegistryHarness hub(limits);
  TestRank trainer = Trainer(hub, "step-1");
  for (const char* label : {"step-2", "step-3"}) {
    trainer.Unpublish();
    trainer.Done();
    trainer.Finished();
    trainer.Publish(label);
    ASSERT_OK(trainer.Finished().status) << label;
  }
  TestRank second(hub, "second", 0, 1);
  second.JoinAndRegister();
  second.Publish("step-4");
  ASSERT_OK(second.Finished().status);
  TestRank third(hub, "third", 0, 1);
  third.JoinAndRegister();
  third.Publish("step-5");
  EXPECT_THAT(third.Finished().status, StatusIs(absl::StatusCode::kResourceExhausted,
                                                HasSubstr("max_versions_per_model is 2")));
}

// Publishes with 60 bytes of attributes, beside what a map takes for one.
void PublishWithAttributes(TestRank& rank, const std::string& label) {
  StartOperation request = rank.PublishRequest(label);
  request.attributes = {{"notes", std::string(55, 'x')}};
  rank.Start(request);
}

TEST(PublishingTest, AttributesOfAModelAreBoundedAndThoseOfOldVersionsMakeRoom) {
  RegistryLimits limits;
  limits.max_attribute_bytes_per_model = 300;
  RegistryHarness hub(limits);
  std::vector<TestRank> trainers;
  for (const char* name : {"first", "second", "third"}) {
    trainers.emplace_back(hub, name, 0, 1).JoinAndRegister();
  }
  PublishWithAttributes(trainers[0], "step-1");
  PublishWithAttributes(trainers[1], "step-2");
  ASSERT_OK(trainers[1].Finished().status);
  PublishWithAttributes(trainers[2], "step-3");
  EXPECT_THAT(trainers[2].Finished().status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("max_attribute_bytes_per_model is 300")));
  trainers[0].Unpublish();
  trainers[0].Done();
  PublishWithAttributes(trainers[2], "step-3");
  EXPECT_OK(trainers[2].Finished().status);
}

TEST(PublishingTest, WhoComesBackWithMoreAttributesThanAModelMayHaveIsRefused) {
  RegistryLimits limits;
  limits.max_attribute_bytes_per_model = 300;
  RegistryHarness hub(limits);
  TestRank trainer(hub, "trainer", 0, 1);
  trainer.JoinAndRegister();
  PublishWithAttributes(trainer, "step-1");
  VersionInfo version = trainer.Finished().version;
  trainer.Seal(version.sequence, "step-1");
  hub.Restart();
  version.attributes["more"] = std::string(300, 'x');
  ASSERT_TRUE(trainer.Resume({trainer.Holding(version, true, "step-1")}));
  EXPECT_THAT(trainer.Heard<PublicationRefused>().status.message(),
              HasSubstr("max_attribute_bytes_per_model is 300"));
}

}  // namespace
}  // namespace th
