// Memory of a buffer that is being used: by a GPU that is slow to let go of it, by a snapshot that
// is being taken.
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/call.h"
#include "th/client/data_plane.h"
#include "th/client/grpc_control_stream.h"
#include "th/client/local_buffer.h"
#include "th/client/one_tensor.h"
#include "th/client/runtime.h"
#include "th/client/server_list.h"
#include "th/client/session_driver.h"
#include "th/client/tensor_binding.h"
#include "th/client/test_cluster.h"
#include "th/memory/device_side.h"
#include "th/status/status_macros.h"
#include "th/transfer/segment_store.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;
using ::th::testing::TestServer;

constexpr char kGpu[] = "0000:07:00.0";

// The side of a GPU that is told when it uses the memory; nothing waits.
class UsedSide : public testing::IdleSide {
 public:
  absl::Status Revoke(absl::Duration timeout) override {
    TH_RETURN_IF_ERROR(IdleSide::Revoke(timeout));
    if (while_revoked != nullptr) while_revoked();
    return used ? absl::DeadlineExceededError(kGpu) : absl::OkStatus();
  }

  absl::Status CopyToHost(absl::Span<const DeviceCopy> copies) override {
    if (while_copied != nullptr) while_copied();
    return IdleSide::CopyToHost(copies);
  }

  bool used = false;
  std::function<void()> while_revoked, while_copied;
};

class MembershipMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SessionDriver::Parts parts;
    parts.runtime = Runtime::Acquire();
    ASSERT_OK_AND_ASSIGN(ServerList servers, ServerList::Parse(server_.address()));
    ASSERT_OK_AND_ASSIGN(parts.data_plane,
                         DataPlane::Acquire({}, servers.first(), absl::Seconds(10)));
    parts.connector =
        MakeGrpcConnector(servers, std::make_shared<ControlByteCount>(0), parts.runtime);
    parts.options.key = {"run", "model"};
    parts.options.name = {"rollout", Rank(0)};
    parts.options.ranks = 1;
    parts.options.endpoints = parts.data_plane->endpoints();
    parts.snapshot_limit_bytes = uint64_t{1} << 20;
    membership_ = std::make_shared<SessionDriver>(std::move(parts));
    ASSERT_OK(membership_->Join());
    ASSERT_OK_AND_ASSIGN(buffer_, membership_->Register("weights", "hf", {}, BindingTo(here_)));
  }
  void TearDown() override {
    here_.side->used = false;
    membership_->Unregister(*buffer_);
    EXPECT_OK(membership_->Leave(absl::Seconds(10)));
  }

  struct Place {
    std::vector<uint8_t> memory = std::vector<uint8_t>(300'000);
    std::shared_ptr<UsedSide> side = std::make_shared<UsedSide>();
  };
  static TensorBinding BindingTo(Place& place) {
    absl::StatusOr<TensorBinding> binding =
        testing::BindOneTensorOfGpu(place.memory, kGpu, place.side);
    EXPECT_OK(binding.status());
    return *std::move(binding);
  }
  absl::Status Move(Place& place) { return membership_->Rebind(*buffer_, BindingTo(place)); }
  absl::Status Wake(Place& place) {
    return membership_->Wake(*buffer_, [&](const StorageMemory&, const std::vector<void*>&) {
      return BindingTo(place);
    });
  }
  bool asleep() { return membership_->IsAsleep(buffer_->id()); }
  absl::Status Publish() {
    const auto call = std::make_shared<Call>();
    call->buffer = buffer_->id();
    return membership_->Start(call, [&](CallId id) {
      return event::Publish{id, buffer_->id(), {.label = VersionLabel::FromStep(1)}};
    });
  }

  TestServer server_;
  Place here_, there_;
  std::shared_ptr<SessionDriver> membership_;
  std::shared_ptr<LocalBuffer> buffer_;
};

// Longer than what nothing holds up takes.
constexpr absl::Duration kHeldUp = absl::Milliseconds(300);

TEST_F(MembershipMemoryTest, SleepIsAskedAgainUntilTheGpuHasEnded) {
  here_.side->used = true;
  EXPECT_THAT(membership_->Sleep(*buffer_),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(kGpu)));
  EXPECT_TRUE(asleep());
  EXPECT_THAT(membership_->Sleep(*buffer_), StatusIs(absl::StatusCode::kDeadlineExceeded));
  here_.side->used = false;
  EXPECT_OK(membership_->Sleep(*buffer_));
}

TEST_F(MembershipMemoryTest, RebindThatAGpuHoldsUpChangesNothing) {
  here_.side->used = true;
  EXPECT_THAT(Move(there_), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(kGpu)));
  EXPECT_FALSE(asleep());
  EXPECT_EQ(membership_->StoragesOf(*buffer_), std::vector<void*>{here_.memory.data()});
  EXPECT_FALSE(here_.side->revoked) << "it goes on where it is";
  here_.side->used = false;
  ASSERT_OK(Move(there_));
  EXPECT_EQ(membership_->StoragesOf(*buffer_), std::vector<void*>{there_.memory.data()});
  EXPECT_TRUE(here_.side->revoked);
}

TEST_F(MembershipMemoryTest, RebindOfWhatIsAsleepLeavesItAsleepWhileAGpuHoldsItUp) {
  here_.side->used = true;
  EXPECT_THAT(membership_->Sleep(*buffer_), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(Move(there_), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(asleep());
  EXPECT_TRUE(here_.side->revoked);
  here_.side->used = false;
  ASSERT_OK(Move(there_));
  EXPECT_FALSE(asleep());
}

TEST_F(MembershipMemoryTest, WakesWhereItLayThoughAGpuHasNotEndedAndSleepsOnceItHas) {
  here_.side->used = true;
  EXPECT_THAT(membership_->Sleep(*buffer_), StatusIs(absl::StatusCode::kDeadlineExceeded));
  Place again;
  ASSERT_OK(Wake(again));
  EXPECT_FALSE(asleep());
  EXPECT_FALSE(again.side->revoked);
  EXPECT_THAT(membership_->Sleep(*buffer_), StatusIs(absl::StatusCode::kDeadlineExceeded))
      << "it uses the memory by what it knew before";
  here_.side->used = false;
  EXPECT_OK(membership_->Sleep(*buffer_));
  EXPECT_TRUE(again.side->revoked);
}

TEST_F(MembershipMemoryTest, NothingBeginsWhileTheMemoryIsBeingChanged) {
  const auto refused =
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another thread is changing"));
  here_.side->while_revoked = [&] {
    here_.side->while_revoked = nullptr;
    EXPECT_THAT(Publish(), refused);
    EXPECT_THAT(membership_->Sleep(*buffer_), refused);
    EXPECT_THAT(Move(there_), refused);
  };
  ASSERT_OK(Move(there_));
  EXPECT_OK(membership_->Sleep(*buffer_));
}

TEST_F(MembershipMemoryTest, NothingChangesTheMemoryWhileItIsLookedAtToWake) {
  const auto refused =
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another thread is changing"));
  ASSERT_OK(membership_->Sleep(*buffer_));
  ASSERT_OK(Move(there_));
  ASSERT_OK(membership_->Sleep(*buffer_));
  Place again;
  ASSERT_OK(membership_->Wake(*buffer_,
                              [&](const StorageMemory& before, const std::vector<void*>& storages)
                                  -> absl::StatusOr<TensorBinding> {
                                EXPECT_EQ(before.device, there_.side);
                                EXPECT_EQ(storages, std::vector<void*>{there_.memory.data()});
                                EXPECT_THAT(Move(here_), refused);
                                EXPECT_THAT(Wake(here_), refused);
                                EXPECT_THAT(membership_->Sleep(*buffer_), refused);
                                EXPECT_THAT(Publish(), refused);
                                return BindingTo(again);
                              }));
  EXPECT_EQ(membership_->StoragesOf(*buffer_), std::vector<void*>{again.memory.data()});
  EXPECT_FALSE(asleep());
}

TEST_F(MembershipMemoryTest, BufferThatCannotWakeSleepsOnAndMayBeMoved) {
  ASSERT_OK(membership_->Sleep(*buffer_));
  EXPECT_THAT(membership_->Wake(*buffer_,
                                [](const StorageMemory&, const std::vector<void*>&) {
                                  return absl::InvalidArgumentError("not mapped");
                                }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not mapped")));
  EXPECT_TRUE(asleep());
  ASSERT_OK(Move(there_));
  EXPECT_FALSE(asleep());
}

TEST_F(MembershipMemoryTest, MemoryOfABufferThatIsAwakeIsNotLookedAtToWake) {
  EXPECT_THAT(membership_->Wake(*buffer_,
                                [&](const StorageMemory&, const std::vector<void*>&) {
                                  ADD_FAILURE() << "it may be written or moved meanwhile";
                                  return BindingTo(here_);
                                }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not asleep")));
}

TEST_F(MembershipMemoryTest, NothingChangesTheMemoryWhileASnapshotIsTaken) {
  const auto refused =
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("taking a snapshot"));
  int copied = 0;
  here_.side->while_copied = [&] {
    ++copied;
    EXPECT_THAT(membership_->Sleep(*buffer_), refused);
    EXPECT_THAT(Move(there_), refused);
    EXPECT_THAT(Publish(), refused);
    EXPECT_THAT(membership_->TakeSnapshot(*buffer_), refused);
  };
  ASSERT_OK(membership_->TakeSnapshot(*buffer_));
  EXPECT_EQ(copied, 1);
  EXPECT_FALSE(here_.side->revoked);
  EXPECT_OK(Publish());
}

TEST_F(MembershipMemoryTest, NothingChangesTheMemoryBetweenASnapshotAndItsPublication) {
  const auto refused =
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("publishing a snapshot"));
  ASSERT_OK(membership_->TakeSnapshot(*buffer_));
  EXPECT_THAT(Move(there_), refused);
  EXPECT_THAT(membership_->Sleep(*buffer_), refused);
  membership_->DropSnapshot(*buffer_);
  EXPECT_OK(Move(there_));
}

TEST_F(MembershipMemoryTest, OfABufferThatIsAsleepNoSnapshotIsTaken) {
  here_.side->while_copied = [] { ADD_FAILURE() << "its memory may be gone"; };
  ASSERT_OK(membership_->Sleep(*buffer_));
  EXPECT_THAT(membership_->TakeSnapshot(*buffer_),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("asleep")));
}

// As a transport does whose fill has given a GPU up.
TEST_F(MembershipMemoryTest, MemoryThatAGpuStillWritesForAnUpdateThatHasFailedIsNotGivenBack) {
  const auto in_use = StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(kGpu));
  auto write = SegmentStore::BeginDeviceWrite(buffer_->store(), kGpu);
  EXPECT_THAT(Move(there_), in_use);
  EXPECT_EQ(membership_->StoragesOf(*buffer_), std::vector<void*>{here_.memory.data()});
  EXPECT_THAT(membership_->Sleep(*buffer_), in_use);
  EXPECT_FALSE(asleep());
  absl::Notification ended;
  std::thread ending([&] {
    membership_->Unregister(*buffer_);
    ended.Notify();
  });
  // Other verbs give up after kDeviceTime; the memory is freed next.
  EXPECT_FALSE(ended.WaitForNotificationWithTimeout(kDeviceTime + kHeldUp));
  write = nullptr;
  ending.join();
}

TEST_F(MembershipMemoryTest, WhoeverEndsTheBufferOrLeavesWaitsForItsSnapshot) {
  const std::vector<std::function<void()>> ends = {
      [&] { static_cast<void>(membership_->Leave(absl::Seconds(10)).ok()); },
      [&] { membership_->Unregister(*buffer_); },
  };
  std::vector<std::thread> ending;
  std::vector<absl::Notification> ended(ends.size());
  here_.side->while_copied = [&] {
    for (size_t i = 0; i < ends.size(); ++i) {
      ending.emplace_back([&, i] {
        ends[i]();
        ended[i].Notify();
      });
    }
    for (absl::Notification& each : ended) {
      EXPECT_FALSE(each.WaitForNotificationWithTimeout(kHeldUp));
    }
    EXPECT_FALSE(here_.side->revoked);
  };
  static_cast<void>(membership_->TakeSnapshot(*buffer_).ok());
  for (std::thread& each : ending) each.join();
}

}  // namespace
}  // namespace th
