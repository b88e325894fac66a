#include "th/mutability_contract/mutability_contract.h"

#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::th::testing::StatusIs;

constexpr VersionSequence kOld = VersionSequence(7);
constexpr VersionSequence kNew = VersionSequence(8);
constexpr absl::Duration kDrain = absl::Seconds(5);
const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

// A contract in `state`, by the shortest way there.
MutabilityContract In(BufferState state) {
  MutabilityContract contract;
  switch (state) {
    case BufferState::kWritable:
      break;
    case BufferState::kPublished:
      EXPECT_OK(contract.Publish(kOld));
      break;
    case BufferState::kDraining:
      EXPECT_OK(contract.Publish(kOld));
      EXPECT_OK(contract.Unpublish(kNow, kDrain));
      break;
    case BufferState::kFilling:
      EXPECT_OK(contract.BeginUpdate(kNew, kNow, kDrain));
      break;
    case BufferState::kUndefined:
      EXPECT_OK(contract.BeginUpdate(kOld, kNow, kDrain));
      EXPECT_OK(contract.FirstWrite());
      EXPECT_OK(contract.FillFailed());
      break;
  }
  EXPECT_EQ(contract.state(), state);
  return contract;
}

void AdmitOne(MutabilityContract& contract, TransferId transfer = TransferId(1)) {
  ASSERT_OK(contract.Admit(transfer, contract.version(), contract.generation(), kNow));
}

// One verb of the owner, applied.
absl::Status Apply(MutabilityContract& contract, BufferEvent event) {
  switch (event) {
    case BufferEvent::kPublish:
      return contract.Publish(kNew);
    case BufferEvent::kUnpublish:
      return contract.Unpublish(kNow, kDrain);
    case BufferEvent::kBeginUpdate:
      return contract.BeginUpdate(kNew, kNow, kDrain);
    case BufferEvent::kDrained:
      return contract.Advance(kNow).drained ? absl::OkStatus()
                                            : absl::FailedPreconditionError("not drained");
    case BufferEvent::kFilled:
      return contract.FillComplete();
    case BufferEvent::kFillFailed:
      return contract.FillFailed();
    case BufferEvent::kReset:
      return contract.Reset();
  }
  return absl::InternalError("no such event");
}

// ---- every state against every verb, as the table says

class EveryStepTest : public ::testing::TestWithParam<std::tuple<BufferState, BufferEvent>> {};

TEST_P(EveryStepTest, IsAllowedOrRefusedAsTheTableSays) {
  const auto [state, event] = GetParam();
  MutabilityContract contract = In(state);
  const BufferGeneration generation_before = contract.generation();
  const absl::Status status = Apply(contract, event);
  if (!BufferEventAllowed(state, event)) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition));
    EXPECT_EQ(contract.state(), state);
    EXPECT_EQ(contract.generation(), generation_before);
    return;
  }
  EXPECT_OK(status);
  const BufferCondition condition = event == BufferEvent::kDrained ? BufferCondition::kForUnpublish
                                    : event == BufferEvent::kFillFailed
                                        ? BufferCondition::kUntouchedWritable
                                        : BufferCondition::kNoReader;
  const BufferTransition* step = FindBufferTransition(state, event, condition);
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(contract.state(), step->to);
  EXPECT_EQ(contract.generation().value - generation_before.value, step->new_generation ? 1 : 0);
}

std::string StepName(const ::testing::TestParamInfo<EveryStepTest::ParamType>& info) {
  const std::string text = absl::StrCat(std::string(BufferStateName(std::get<0>(info.param))), "_",
                                        std::string(BufferEventName(std::get<1>(info.param))));
  return absl::StrReplaceAll(text, {{"-", "_"}});
}

INSTANTIATE_TEST_SUITE_P(AllStatesAndVerbs, EveryStepTest,
                         ::testing::Combine(::testing::ValuesIn(kAllBufferStates),
                                            ::testing::ValuesIn(kAllBufferEvents)),
                         StepName);

// ---- admission

class AdmissionTest : public ::testing::TestWithParam<BufferState> {};

TEST_P(AdmissionTest, FollowsTheState) {
  MutabilityContract contract = In(GetParam());
  const bool serves = GetParam() == BufferState::kPublished ||
                      GetParam() == BufferState::kFilling || GetParam() == BufferState::kUndefined;
  const VersionSequence version = GetParam() == BufferState::kFilling ? kNew : kOld;
  const absl::Status status = contract.Admit(TransferId(1), version, contract.generation(), kNow);
  EXPECT_EQ(status.code(), serves ? absl::StatusCode::kOk : absl::StatusCode::kUnavailable);
  EXPECT_EQ(contract.readers_in_flight(), serves ? 1u : 0u);
}

INSTANTIATE_TEST_SUITE_P(AllStates, AdmissionTest, ::testing::ValuesIn(kAllBufferStates),
                         [](const auto& info) { return std::string(BufferStateName(info.param)); });

TEST(MutabilityContractTest, AdmissionWantsTheVeryVersionAndGeneration) {
  MutabilityContract contract = In(BufferState::kPublished);
  EXPECT_THAT(contract.Admit(TransferId(1), kNew, contract.generation(), kNow),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("holds")));
  EXPECT_THAT(contract.Admit(TransferId(1), kOld, contract.generation().Next(), kNow),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("generation")));
  EXPECT_EQ(contract.readers_in_flight(), 0u);
}

TEST(MutabilityContractTest, NobodyIsAdmittedUntilThePublishedVersionIsNamed) {
  MutabilityContract contract;
  ASSERT_OK(contract.Publish(VersionSequence()));
  EXPECT_THAT(contract.Admit(TransferId(1), VersionSequence(), contract.generation(), kNow),
              StatusIs(absl::StatusCode::kUnavailable));
  ASSERT_OK(contract.SetPublishedVersion(kOld));
  EXPECT_OK(contract.Admit(TransferId(1), kOld, contract.generation(), kNow));
}

TEST(MutabilityContractTest, APublishedVersionIsNamedOnce) {
  MutabilityContract contract = In(BufferState::kPublished);
  EXPECT_OK(contract.SetPublishedVersion(kOld));
  EXPECT_THAT(contract.SetPublishedVersion(kNew), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(contract.version(), kOld);
  MutabilityContract writable;
  EXPECT_THAT(writable.SetPublishedVersion(kOld), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(MutabilityContractTest, ATransferIsAdmittedOnce) {
  MutabilityContract contract = In(BufferState::kPublished);
  AdmitOne(contract);
  EXPECT_THAT(contract.Admit(TransferId(1), kOld, contract.generation(), kNow),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_EQ(contract.readers_in_flight(), 1u);
}

TEST(MutabilityContractTest, ReadersAreLimited) {
  MutabilityContract contract = In(BufferState::kPublished);
  for (uint64_t i = 0; i < kMaxReadersInFlight; ++i) AdmitOne(contract, TransferId(i));
  EXPECT_THAT(contract.Admit(TransferId(kMaxReadersInFlight), kOld, contract.generation(), kNow),
              StatusIs(absl::StatusCode::kResourceExhausted));
  contract.Release(TransferId(0));
  EXPECT_OK(contract.Admit(TransferId(kMaxReadersInFlight), kOld, contract.generation(), kNow));
}

// ---- drains

TEST(MutabilityContractTest, DrainWaitsForTheLastReader) {
  MutabilityContract contract = In(BufferState::kPublished);
  AdmitOne(contract, TransferId(1));
  AdmitOne(contract, TransferId(2));
  const BufferGeneration before = contract.generation();
  ASSERT_OK(contract.Unpublish(kNow, kDrain));
  contract.Release(TransferId(1));
  EXPECT_FALSE(contract.Advance(kNow).drained);
  EXPECT_EQ(contract.generation(), before);
  contract.Release(TransferId(2));
  const auto step = contract.Advance(kNow);
  EXPECT_TRUE(step.drained);
  EXPECT_EQ(step.cut, 0u);
  EXPECT_EQ(contract.state(), BufferState::kWritable);
  EXPECT_GT(contract.generation(), before);
  EXPECT_EQ(contract.version(), VersionSequence());
}

TEST(MutabilityContractTest, ADrainWithoutReadersEndsAtOnce) {
  MutabilityContract contract = In(BufferState::kDraining);
  EXPECT_EQ(contract.NextDeadline(), absl::InfinitePast());
  EXPECT_TRUE(contract.Advance(kNow).drained);
  EXPECT_EQ(contract.NextDeadline(), absl::InfiniteFuture());
  EXPECT_FALSE(contract.Advance(kNow).drained);
}

TEST(MutabilityContractTest, AReaderThatKeepsTakingBytesIsCutAtTheDrainDeadline) {
  MutabilityContract contract = In(BufferState::kPublished);
  AdmitOne(contract);
  ASSERT_OK(contract.Unpublish(kNow, absl::Seconds(1)));
  contract.ReaderTookBytes(TransferId(1), kNow + absl::Milliseconds(900));
  EXPECT_THAT(contract.Advance(kNow + absl::Milliseconds(999)).to_cut, IsEmpty());
  EXPECT_EQ(contract.NextDeadline(), kNow + absl::Seconds(1));
  const auto step = contract.Advance(kNow + absl::Seconds(1));
  EXPECT_THAT(step.to_cut, ElementsAre(TransferId(1)));
  EXPECT_FALSE(step.drained);
}

TEST(MutabilityContractTest, ASilentReaderIsCutBeforeTheDrainDeadline) {
  MutabilityContract contract = In(BufferState::kPublished);
  AdmitOne(contract);
  ASSERT_OK(contract.Unpublish(kNow, kDrain));
  EXPECT_EQ(contract.NextDeadline(), kNow + kSilentReader);
  EXPECT_THAT(contract.Advance(kNow + kSilentReader - absl::Milliseconds(1)).to_cut, IsEmpty());
  EXPECT_THAT(contract.Advance(kNow + kSilentReader).to_cut, ElementsAre(TransferId(1)));
}

TEST(MutabilityContractTest, ACutReaderIsToldOnceAndHoldsTheDrainUntilItIsReleased) {
  MutabilityContract contract = In(BufferState::kPublished);
  AdmitOne(contract);
  ASSERT_OK(contract.Unpublish(kNow, absl::ZeroDuration()));
  EXPECT_THAT(contract.Advance(kNow).to_cut, ElementsAre(TransferId(1)));
  const auto waiting = contract.Advance(kNow + absl::Hours(1));
  EXPECT_THAT(waiting.to_cut, IsEmpty());
  EXPECT_FALSE(waiting.drained);
  EXPECT_EQ(contract.NextDeadline(), absl::InfiniteFuture());
  contract.Release(TransferId(1));
  const auto step = contract.Advance(kNow + absl::Hours(1));
  EXPECT_TRUE(step.drained);
  EXPECT_EQ(step.cut, 1u);
}

TEST(MutabilityContractTest, CutReadersAreCountedPerDrain) {
  MutabilityContract contract = In(BufferState::kPublished);
  AdmitOne(contract);
  ASSERT_OK(contract.Unpublish(kNow, absl::ZeroDuration()));
  contract.Advance(kNow);
  contract.Release(TransferId(1));
  EXPECT_EQ(contract.Advance(kNow).cut, 1u);
  ASSERT_OK(contract.Publish(kNew));
  ASSERT_OK(contract.Unpublish(kNow, kDrain));
  EXPECT_EQ(contract.Advance(kNow).cut, 0u);
}

TEST(MutabilityContractTest, ReleaseOfAnUnknownTransferIsIgnored) {
  MutabilityContract contract = In(BufferState::kPublished);
  AdmitOne(contract);
  contract.Release(TransferId(99));
  contract.ReaderTookBytes(TransferId(99), kNow);
  EXPECT_EQ(contract.readers_in_flight(), 1u);
}

// ---- fills

TEST(MutabilityContractTest, UpdateInPlaceDrainsThenFillsThenPublishes) {
  MutabilityContract contract = In(BufferState::kPublished);
  AdmitOne(contract);
  const BufferGeneration before = contract.generation();
  ASSERT_OK(contract.BeginUpdate(kNew, kNow, kDrain));
  EXPECT_EQ(contract.state(), BufferState::kDraining);
  EXPECT_EQ(contract.version(), kOld);
  EXPECT_THAT(contract.FirstWrite(), StatusIs(absl::StatusCode::kFailedPrecondition));
  contract.Release(TransferId(1));
  EXPECT_TRUE(contract.Advance(kNow).drained);
  EXPECT_EQ(contract.state(), BufferState::kFilling);
  EXPECT_EQ(contract.version(), kNew);
  EXPECT_GT(contract.generation(), before);
  ASSERT_OK(contract.FirstWrite());
  ASSERT_OK(contract.FillComplete());
  EXPECT_EQ(contract.state(), BufferState::kPublished);
  EXPECT_EQ(contract.version(), kNew);
}

TEST(MutabilityContractTest, AFillThatFailsBeforeItsFirstWriteGoesBackToWhatWasPublished) {
  MutabilityContract contract = In(BufferState::kPublished);
  const BufferGeneration published_under = contract.generation();
  ASSERT_OK(contract.BeginUpdate(kNew, kNow, kDrain));
  contract.Advance(kNow);
  ASSERT_OK(contract.FillFailed());
  EXPECT_EQ(contract.state(), BufferState::kPublished);
  EXPECT_EQ(contract.version(), kOld);
  EXPECT_GT(contract.generation().value, published_under.value + 1);
}

TEST(MutabilityContractTest, AFillThatFailsAfterItsFirstWriteIsUndefined) {
  MutabilityContract contract = In(BufferState::kPublished);
  ASSERT_OK(contract.BeginUpdate(kNew, kNow, kDrain));
  contract.Advance(kNow);
  ASSERT_OK(contract.FirstWrite());
  ASSERT_OK(contract.FillFailed());
  EXPECT_EQ(contract.state(), BufferState::kUndefined);
  EXPECT_EQ(contract.version(), kNew);
}

TEST(MutabilityContractTest, AFillThatFailsBeforeItsFirstWriteGoesBackToUndefined) {
  MutabilityContract contract = In(BufferState::kUndefined);
  ASSERT_OK(contract.BeginUpdate(kNew, kNow, kDrain));
  ASSERT_OK(contract.FillFailed());
  EXPECT_EQ(contract.state(), BufferState::kUndefined);
  EXPECT_EQ(contract.version(), kOld);
}

// Whatever the buffer was before: what comes into it next is not what they were admitted for.
TEST(MutabilityContractTest, AFillThatWroteNothingCutsTheReadersThatWaitForWhatItWasToBring) {
  for (BufferState before :
       {BufferState::kWritable, BufferState::kPublished, BufferState::kUndefined}) {
    MutabilityContract contract = In(before);
    ASSERT_OK(contract.BeginUpdate(kNew, kNow, kDrain));
    contract.Advance(kNow);
    ASSERT_EQ(contract.state(), BufferState::kFilling);
    AdmitOne(contract);
    ASSERT_OK(contract.FillFailed());
    EXPECT_EQ(contract.state(), before);
    EXPECT_EQ(contract.NextDeadline(), absl::InfinitePast());
    EXPECT_THAT(contract.Advance(kNow).to_cut, ElementsAre(TransferId(1)));
    EXPECT_THAT(contract.Advance(kNow).to_cut, IsEmpty()) << "told once";
    contract.Release(TransferId(1));
    EXPECT_EQ(contract.NextDeadline(), absl::InfiniteFuture());
  }
}

TEST(MutabilityContractTest, AResumedFillThatWroteNothingKeepsTheReadersOfWhatWasChecked) {
  MutabilityContract contract = In(BufferState::kUndefined);
  AdmitOne(contract);
  ASSERT_OK(contract.BeginUpdate(kOld, kNow, kDrain));
  ASSERT_OK(contract.FillFailed());
  EXPECT_THAT(contract.Advance(kNow).to_cut, IsEmpty());
  EXPECT_EQ(contract.readers_in_flight(), 1u);
}

TEST(MutabilityContractTest, UndefinedSaysSoWhenItRefusesToBePublished) {
  MutabilityContract contract = In(BufferState::kUndefined);
  EXPECT_THAT(contract.Publish(kNew), StatusIs(absl::StatusCode::kFailedPrecondition,
                                               HasSubstr("the buffer is undefined")));
}

TEST(MutabilityContractTest, AnUndefinedBufferDrainsItsReadersBeforeAnotherVersionIsFilled) {
  MutabilityContract contract = In(BufferState::kUndefined);
  AdmitOne(contract);
  ASSERT_OK(contract.BeginUpdate(kNew, kNow, kDrain));
  EXPECT_EQ(contract.state(), BufferState::kDraining);
  contract.Release(TransferId(1));
  EXPECT_TRUE(contract.Advance(kNow).drained);
  EXPECT_EQ(contract.state(), BufferState::kFilling);
  EXPECT_EQ(contract.version(), kNew);
}

TEST(MutabilityContractTest, AResumedFillKeepsTheReadersOfWhatWasChecked) {
  MutabilityContract contract = In(BufferState::kUndefined);
  AdmitOne(contract);
  ASSERT_OK(contract.BeginUpdate(kOld, kNow, kDrain));
  EXPECT_EQ(contract.state(), BufferState::kFilling);
  EXPECT_EQ(contract.readers_in_flight(), 1u);
}

TEST(MutabilityContractTest, ResetCutsReadersBeforeTheBufferIsWritable) {
  MutabilityContract contract = In(BufferState::kUndefined);
  AdmitOne(contract);
  ASSERT_OK(contract.Reset());
  EXPECT_EQ(contract.state(), BufferState::kDraining);
  EXPECT_THAT(contract.Advance(kNow).to_cut, ElementsAre(TransferId(1)));
  contract.Release(TransferId(1));
  EXPECT_TRUE(contract.Advance(kNow).drained);
  EXPECT_EQ(contract.state(), BufferState::kWritable);
}

TEST(MutabilityContractTest, RebindNeedsAnOwnedBufferWithoutReaders) {
  EXPECT_OK(In(BufferState::kWritable).CanRebind());
  EXPECT_OK(In(BufferState::kUndefined).CanRebind());
  for (BufferState state :
       {BufferState::kPublished, BufferState::kDraining, BufferState::kFilling}) {
    EXPECT_THAT(In(state).CanRebind(), StatusIs(absl::StatusCode::kFailedPrecondition))
        << std::string(BufferStateName(state));
  }
  MutabilityContract read = In(BufferState::kUndefined);
  AdmitOne(read);
  EXPECT_THAT(read.CanRebind(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(MutabilityContractTest, DescribesItself) {
  MutabilityContract contract = In(BufferState::kPublished);
  AdmitOne(contract);
  EXPECT_EQ(contract.Describe(), "published 0.7, generation 1, 1 readers");
}

}  // namespace
}  // namespace th
