#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

struct RefusedBuffer {
  std::string name;
  std::function<void(AnnouncedBuffer&)> change;
  absl::StatusCode code;
  std::string says;
};

class RefusedBufferTest : public ::testing::TestWithParam<RefusedBuffer> {};

// Rank 0 has registered buffer 1, "weights", in form "hf"; rank 1 registers what does not fit.
TEST_P(RefusedBufferTest, IsAnsweredWithTheReason) {
  RegistryLimits limits;
  limits.max_buffers_per_worker = 2;
  limits.max_layouts = 2;
  RegistryHarness hub(limits);
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  AnnouncedBuffer announced = group[1].Announced();
  announced.buffer = BufferId(2);
  announced.buffer_name = "more";
  GetParam().change(announced);
  group[1].Say(RegisterBuffer{announced});
  const BufferRegistered answer = group[1].Heard<BufferRegistered>();
  EXPECT_EQ(answer.buffer, announced.buffer);
  EXPECT_THAT(answer.status, StatusIs(GetParam().code, HasSubstr(GetParam().says)));
}

INSTANTIATE_TEST_SUITE_P(
    Announcements, RefusedBufferTest,
    ::testing::Values(
        RefusedBuffer{"NoName", [](AnnouncedBuffer& b) { b.buffer_name.clear(); },
                      absl::StatusCode::kInvalidArgument, "buffer"},
        RefusedBuffer{"NoForm", [](AnnouncedBuffer& b) { b.form.clear(); },
                      absl::StatusCode::kInvalidArgument, "form"},
        RefusedBuffer{"NoLayout", [](AnnouncedBuffer& b) { b.layout = Digest(); },
                      absl::StatusCode::kInvalidArgument, "no layout"},
        RefusedBuffer{"MoreSegmentsThanBytes", [](AnnouncedBuffer& b) { b.bytes = 1; },
                      absl::StatusCode::kInvalidArgument, "more segments than bytes"},
        RefusedBuffer{"SizesThatTheLayoutContradicts", [](AnnouncedBuffer& b) { b.bytes += 1; },
                      absl::StatusCode::kInvalidArgument, "its layout has"},
        RefusedBuffer{"ANameInUse", [](AnnouncedBuffer& b) { b.buffer_name = "weights"; },
                      absl::StatusCode::kAlreadyExists, "is named weights already"},
        RefusedBuffer{"AKnownNumberWithAnotherName",
                      [](AnnouncedBuffer& b) { b.buffer = BufferId(1); },
                      absl::StatusCode::kInvalidArgument, "unregister it first"},
        RefusedBuffer{"OneLayoutTooMany",
                      [](AnnouncedBuffer& b) { b.layout = LayoutNamed("third").digest(); },
                      absl::StatusCode::kResourceExhausted, "max_layouts is 2"}),
    [](const auto& param) { return param.param.name; });

TEST(BuffersTest, TooManyBuffersNameTheLimit) {
  RegistryLimits limits;
  limits.max_buffers_per_worker = 1;
  RegistryHarness hub(limits);
  TestRank rank(hub, "trainer", 0, 1);
  rank.JoinAndRegister();
  rank.buffer = BufferId(2);
  rank.buffer_name = "more";
  EXPECT_THAT(rank.Register(), StatusIs(absl::StatusCode::kResourceExhausted,
                                        HasSubstr("max_buffers_per_worker is 1")));
}

TEST(BuffersTest, LayoutsBeyondTheirBytesAreRefusedUntilOthersAreForgotten) {
  RegistryLimits limits;
  limits.max_layout_bytes = LayoutNamed("w0").encoded_bytes();
  RegistryHarness hub(limits);
  TestRank first(hub, "trainer", 0, 1);
  first.JoinAndRegister();
  TestRank second(hub, "rollout", 0, 1);
  second.layout = LayoutNamed("w1");
  second.Join();
  EXPECT_THAT(second.Register(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_layout_bytes is ")));
  EXPECT_THAT(second.Register(), StatusIs(absl::StatusCode::kResourceExhausted));
  first.Say(UnregisterBuffer{first.buffer});
  EXPECT_OK(second.Register());
}

TEST(BuffersTest, RanksThatDisagreeOnTheFormAreNamed) {
  RegistryHarness hub;
  std::vector<TestRank> group = MakeGroup(hub, "trainer", 2);
  group[0].JoinAndRegister();
  ASSERT_TRUE(group[1].Join());
  group[1].form = "fp8";
  EXPECT_THAT(group[1].Register(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("trainer/0"), HasSubstr("trainer/1"), HasSubstr("fp8"))));
}

TEST(BuffersTest, ALayoutCrossesOnce) {
  RegistryHarness hub;
  TestRank first(hub, "trainer", 0, 2);
  TestRank second(hub, "trainer", 1, 2);
  ASSERT_TRUE(first.Join());
  ASSERT_TRUE(second.Join());
  first.Say(RegisterBuffer{first.Announced()});
  EXPECT_TRUE(first.HearsNone<BufferRegistered>()) << "the layout comes first";
  EXPECT_EQ(first.Heard<LayoutWanted>().layout, first.layout.digest());
  second.Say(RegisterBuffer{second.Announced()});
  EXPECT_TRUE(second.HearsNone<LayoutWanted>());
  EXPECT_OK(second.Heard<BufferRegistered>().status);
  first.Say(LayoutUpload{first.layout});
  EXPECT_OK(first.Heard<BufferRegistered>().status);
  EXPECT_TRUE(hub.registry().EncodedLayout(first.layout.digest()).ok());
}

TEST(BuffersTest, WhenTheOneThatWasAskedIsGoneAnotherIsAsked) {
  RegistryHarness hub;
  TestRank first(hub, "trainer", 0, 2);
  TestRank second(hub, "trainer", 1, 2);
  ASSERT_TRUE(first.Join());
  ASSERT_TRUE(second.Join());
  first.Say(RegisterBuffer{first.Announced()});
  second.Say(RegisterBuffer{second.Announced()});
  first.Disconnect();
  EXPECT_EQ(second.Heard<LayoutWanted>().layout, first.layout.digest());
}

TEST(BuffersTest, WhenTheOneThatWasAskedUnregistersAnotherIsAsked) {
  RegistryHarness hub;
  TestRank first(hub, "one", 0, 1), second(hub, "other", 0, 1);
  ASSERT_TRUE(first.Join());
  ASSERT_TRUE(second.Join());
  first.Say(RegisterBuffer{first.Announced()});
  second.Say(RegisterBuffer{second.Announced()});
  first.Say(UnregisterBuffer{first.buffer});
  EXPECT_EQ(second.Heard<LayoutWanted>().layout, first.layout.digest());
}

TEST(BuffersTest, WhenNobodyElseCanBeAskedTheNextThatRegistersIs) {
  RegistryHarness hub;
  TestRank first(hub, "one", 0, 1), away(hub, "other", 0, 1), next(hub, "next", 0, 1);
  ASSERT_TRUE(first.Join());
  ASSERT_TRUE(away.Join());
  ASSERT_TRUE(next.Join());
  first.Say(RegisterBuffer{first.Announced()});
  away.Say(RegisterBuffer{away.Announced()});
  away.Disconnect();
  first.Say(UnregisterBuffer{first.buffer});
  next.Say(RegisterBuffer{next.Announced()});
  EXPECT_EQ(next.Heard<LayoutWanted>().layout, next.layout.digest());
}

TEST(BuffersTest, WhoHasAnotherBufferOfTheLayoutIsStillTheOneAsked) {
  RegistryHarness hub;
  TestRank first(hub, "one", 0, 1), second(hub, "other", 0, 1);
  ASSERT_TRUE(first.Join());
  ASSERT_TRUE(second.Join());
  first.Say(RegisterBuffer{first.Announced()});
  AnnouncedBuffer spare = first.Announced();
  spare.buffer = first.buffer.Next();
  spare.buffer_name = "spare";
  first.Say(RegisterBuffer{spare});
  second.Say(RegisterBuffer{second.Announced()});
  first.Say(UnregisterBuffer{first.buffer});
  EXPECT_TRUE(second.HearsNone<LayoutWanted>()) << "a layout crosses once";
}

TEST(BuffersTest, ALayoutThatDoesNotComeEndsTheRegistrationNamingTheRank) {
  RegistryHarness hub;
  TestRank rank(hub, "trainer", 0, 1);
  ASSERT_TRUE(rank.Join());
  rank.Say(RegisterBuffer{rank.Announced()});
  PassAlive(hub, {&rank}, RegistryLimits().layout_timeout - absl::Seconds(2));
  EXPECT_TRUE(rank.HearsNone<BufferRegistered>());
  PassAlive(hub, {&rank}, RegistryLimits().lease + absl::Seconds(2));
  EXPECT_THAT(rank.Heard<BufferRegistered>().status,
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("trainer/0"), HasSubstr("layout"))));
  ASSERT_OK(rank.Register());
}

TEST(BuffersTest, WhenALayoutDoesNotComeAnotherIsAsked) {
  RegistryHarness hub;
  TestRank first(hub, "one", 0, 1), second(hub, "other", 0, 1);
  ASSERT_TRUE(first.Join());
  ASSERT_TRUE(second.Join());
  first.Say(RegisterBuffer{first.Announced()});
  second.Say(RegisterBuffer{second.Announced()});
  PassAlive(hub, {&first, &second}, RegistryLimits().layout_timeout + RegistryLimits().lease);
  EXPECT_EQ(second.Heard<LayoutWanted>().layout, first.layout.digest());
}

TEST(BuffersTest, AnUploadThatContradictsItsBufferEndsTheRegistration) {
  RegistryHarness hub;
  TestRank rank(hub, "trainer", 0, 1);
  ASSERT_TRUE(rank.Join());
  AnnouncedBuffer wrong = rank.Announced();
  wrong.segment_count = 1;
  rank.Say(RegisterBuffer{wrong});
  rank.Say(LayoutUpload{rank.layout});
  EXPECT_THAT(rank.Heard<BufferRegistered>().status, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_OK(rank.Register()) << "the right sizes may follow";
}

TEST(BuffersTest, ALayoutIsForgottenWithItsLastUse) {
  RegistryHarness hub;
  TestRank rank(hub, "trainer", 0, 1);
  rank.JoinAndRegister();
  rank.Say(UnregisterBuffer{rank.buffer});
  EXPECT_THAT(hub.registry().EncodedLayout(rank.layout.digest()),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST(BuffersTest, AResetEndsWhatTheBufferHeldAndItsReplicaAsASource) {
  RegistryHarness hub;
  std::vector<TestRank> trainer;
  for (uint32_t rank = 0; rank < 2; ++rank) trainer.emplace_back(hub, "trainer", rank, 2);
  JoinAndRegister(trainer);
  PublishWhole(trainer, "step-1");
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  ASSERT_EQ(rollout.Fill().buffer, trainer[0].address());
  trainer[1].Say(BufferReset{trainer[1].buffer});
  hub.Advance(absl::Seconds(1));
  EXPECT_THAT(rollout.Finished().status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("last holder is gone")));
}

TEST(BuffersTest, AResetInMidUpdateEndsItNamingTheRank) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  rollout.Fill();
  rollout.Say(BufferReset{rollout.buffer});
  EXPECT_THAT(rollout.Finished().status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("rollout/0 reset its buffer")));
}

TEST(BuffersTest, UnregisteringEndsTheGroupsOperationsNamingTheRank) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  trainer[0].Publish("step-1");
  trainer[1].Say(UnregisterBuffer{trainer[1].buffer});
  EXPECT_THAT(trainer[0].Finished().status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("trainer/1 unregistered")));
}

TEST(BuffersTest, OneWorkerMayHoldSeveralBuffers) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank draft = trainer;
  draft.buffer = BufferId(2);
  draft.buffer_name = "draft";
  draft.layout = LayoutNamed("draft");
  draft.number = OperationNumber();
  ASSERT_OK(draft.Register());
  draft.Publish("draft-1");
  EXPECT_OK(draft.Finished().status);
}

}  // namespace
}  // namespace th
