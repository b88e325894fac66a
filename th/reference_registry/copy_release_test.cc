// When a copy in host memory of what is retained may go.
#include "th/reference_registry/copy_release.h"

#include <optional>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"
#include "th/reference_registry/retention_fixture.h"

namespace th {
namespace {

class ReleaseTest : public RetentionTest {
 protected:
  // A trainer that has unpublished "one", and its copy.
  void Offload() {
    trainer_.emplace(Roomy("trainer"));
    one_ = Publish(*trainer_, "one");
    AskToUnpublish(*trainer_);
    ASSERT_TRUE(trainer_->Finished().must_offload);
    copy_.emplace(Offloaded(*trainer_, one_));
    ASSERT_FALSE(IsReleased(*copy_));  // the trainer still counts, and may leave
    AskToUnpublish(*trainer_);
    ASSERT_OK(FinishUnpublish(*trainer_));
    ASSERT_FALSE(IsReleased(*copy_));
  }

  std::optional<TestRank> trainer_;
  std::optional<TestRank> copy_;
  VersionInfo one_;
};

TEST_F(ReleaseTest, AnotherReplicaTakesOver) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  rollout.Fill();
  EXPECT_FALSE(IsReleased(*copy_));
  rollout.Done();
  EXPECT_EQ(rollout.Finished().outcome, UpdateOutcome::kMoved);
  EXPECT_TRUE(IsReleased(*copy_));
  copy_->Say(UnregisterBuffer{copy_->buffer});
  EXPECT_EQ(hub_.List().models[0].versions[0].replicas.size(), 1u);
}

TEST_F(ReleaseTest, ANewerCompleteVersionTakesItsPlace) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  Publish(*trainer_, "two");
  EXPECT_TRUE(IsReleased(*copy_));
}

TEST_F(ReleaseTest, ThePolicyIsTakenBack) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  KeepLatest(0);
  EXPECT_TRUE(IsReleased(*copy_));
}

TEST_F(ReleaseTest, ThePinIsReleased) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  ASSERT_OK(hub_.Command({"pin", PinVersion{one_.sequence, "me"}}).status);
  KeepLatest(0);
  EXPECT_FALSE(IsReleased(*copy_));
  ASSERT_OK(hub_.Command({"release", ReleasePin{one_.sequence, "me"}}).status);
  EXPECT_TRUE(IsReleased(*copy_));
}

TEST_F(ReleaseTest, ThePinExpires) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  ASSERT_OK(hub_.Command({"pin", PinVersion{one_.sequence, "me", absl::Seconds(3)}}).status);
  KeepLatest(0);
  hub_.Advance(absl::Seconds(2));
  EXPECT_FALSE(IsReleased(*copy_));
  hub_.Advance(absl::Seconds(2));
  EXPECT_TRUE(IsReleased(*copy_));
}

TEST_F(ReleaseTest, AVersionThatIsRolledBackNeedsNoCopy) {
  KeepLatest(2);
  TestRank base = Roomy("base");
  Publish(base, "zero");
  ASSERT_NO_FATAL_FAILURE(Offload());
  ASSERT_OK(hub_.Command({"back", RollBack{*VersionLabel::Parse("zero")}}).status);
  EXPECT_TRUE(IsReleased(*copy_));
}

TEST_F(ReleaseTest, ABrokenStreamReleasesNothing) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  copy_->Disconnect();
  AnnouncedBuffer held = copy_->Holding(one_, /*publisher=*/false, "one");
  held.role = BufferRole::kOffload;
  ASSERT_TRUE(copy_->Resume({trainer_->Announced(), held}));
  EXPECT_FALSE(IsReleased(*copy_));
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  EXPECT_EQ(rollout.Fill().buffer.buffer, copy_->buffer);
}

TEST_F(ReleaseTest, ARankThatWasAwayHearsItWhenItIsBack) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  copy_->Disconnect();
  KeepLatest(0);
  AnnouncedBuffer held = copy_->Holding(one_, /*publisher=*/false, "one");
  held.role = BufferRole::kOffload;
  ASSERT_TRUE(copy_->Resume({trainer_->Announced(), held}));
  EXPECT_TRUE(IsReleased(*copy_));
}

TEST_F(ReleaseTest, AReleasedCopyThatComesBackIsNoReplicaThatStays) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  TestRank rollout = Roomy("rollout");
  rollout.Update();
  rollout.Fill();
  copy_->Disconnect();
  rollout.Done();
  ASSERT_EQ(rollout.Finished().outcome, UpdateOutcome::kMoved);
  AnnouncedBuffer held = copy_->Holding(one_, /*publisher=*/false, "one");
  held.role = BufferRole::kOffload;
  ASSERT_TRUE(copy_->Resume({trainer_->Announced(), held}));
  EXPECT_TRUE(IsReleased(*copy_));
  AskToUnpublish(rollout);
  EXPECT_TRUE(rollout.Finished().must_offload);
}

TEST_F(ReleaseTest, ACopyOutlivesTheServer) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  hub_.Restart();
  AnnouncedBuffer held = copy_->Holding(one_, /*publisher=*/false, "one");
  held.role = BufferRole::kOffload;
  ASSERT_TRUE(copy_->Resume({trainer_->Announced(), held}));
  for (int second = 0; second < 10; ++second) {  // longer than a lease: nobody else comes back
    hub_.Advance(absl::Seconds(1));
    copy_->Say(Heartbeat{});
  }
  EXPECT_FALSE(IsReleased(*copy_));
  KeepLatest(0);
  EXPECT_TRUE(IsReleased(*copy_));
}

// It has not heard how its unpublish ended, and drains when its copy is made, on its new stream.
TEST_F(ReleaseTest, ARankThatCopiesAloneIsFreeOnceItHasDrained) {
  trainer_.emplace(Roomy("trainer"));
  one_ = Publish(*trainer_, "one");
  hub_.Restart();
  AnnouncedBuffer held = trainer_->Holding(one_, /*publisher=*/true, "one");
  held.last_finished = FinishedOperation{.number = trainer_->number, .version = one_};
  ASSERT_TRUE(trainer_->Resume({held}));
  StartOperation unpublish = trainer_->UnpublishRequest();
  unpublish.timeout = absl::Seconds(1);
  trainer_->Start(unpublish);
  hub_.Advance(absl::Seconds(2));
  ASSERT_EQ(trainer_->Finished().status.code(), absl::StatusCode::kDeadlineExceeded);
  trainer_->Disconnect();
  AnnouncedBuffer copying = trainer_->Filling(one_, {trainer_->address()});
  copying.buffer = BufferId(101);
  copying.buffer_name = CopyName("weights", CopyFor::kRetention, one_.sequence,
                                 trainer_->generation, trainer_->number);
  copying.role = BufferRole::kOffload;
  ASSERT_TRUE(trainer_->Resume({held, copying}));
  DrainAlone(*trainer_);
  ASSERT_EQ(trainer_->Finished().status.code(), absl::StatusCode::kDeadlineExceeded);
  trainer_->Done();
  EXPECT_EQ(hub_.registry().counters().messages_refused, 0u);
  trainer_->Publish("two");
  EXPECT_OK(trainer_->Finished().status);
}

TEST_F(ReleaseTest, OfTwoCopiesOneStays) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  TestRank other = Roomy("other");
  TestRank second = Offloaded(other, one_);
  EXPECT_TRUE(IsReleased(*copy_));
  EXPECT_FALSE(IsReleased(second));
}

}  // namespace
}  // namespace th
