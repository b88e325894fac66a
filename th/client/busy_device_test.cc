// A GPU that does not end what it sums out of a buffer: the thread that orders things goes on.
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/fill_driver.h"
#include "th/client/local_buffer.h"
#include "th/client/one_tensor.h"
#include "th/client/tensor_binding.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::th::testing::StatusIs;

constexpr BufferId kBuffer(7);
constexpr char kGpu[] = "0000:07:00.0";

// Stands still before it sums.
class BusySide : public testing::IdleSide {
 public:
  absl::StatusOr<std::vector<SegmentChecksum>> Checksum(
      absl::Span<const std::vector<DeviceRun>> segments) override {
    entered.Notify();
    go_on.WaitForNotification();
    return IdleSide::Checksum(segments);
  }

  absl::Notification entered, go_on;
};

// Remembers the failure that it is told.
class Doorman : public SessionAccess {
 public:
  SessionAnswer Handle(SessionEvent event) override {
    if (const auto* failed = std::get_if<event::FillFailed>(&event)) failure = failed->why;
    return {};
  }
  std::optional<absl::Status> failure;
};

class BusyDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    buffer_ = std::make_shared<LocalBuffer>(
        LocalBuffer::Spec{
            .id = kBuffer, .form = "hf", .binding_options = {}, .binding = BindingTo(side_)},
        [this](const std::shared_ptr<LocalBuffer>&, std::function<void()> work,
               std::function<void()> then) {
          beside_.emplace_back(std::move(work), std::move(then));
        });
    Serve(BufferState::kPublished, 1);
    sealing_ = std::thread([this] { static_cast<void>(buffer_->store()->Seal(never_).ok()); });
    side_->entered.WaitForNotification();
  }
  void TearDown() override {
    if (!side_->go_on.HasBeenNotified()) side_->go_on.Notify();
    if (sealing_.joinable()) sealing_.join();
  }

  TensorBinding BindingTo(std::shared_ptr<DeviceSide> side) {
    absl::StatusOr<TensorBinding> binding =
        testing::BindOneTensorOfGpu(memory_, kGpu, std::move(side));
    EXPECT_OK(binding.status());
    return *std::move(binding);
  }

  void Serve(BufferState state, uint64_t generation) {
    buffer_->Serve({kBuffer, state, VersionSequence(3), BufferGeneration(generation)});
  }

  const std::atomic<bool> never_{false};
  std::vector<uint8_t> memory_ = std::vector<uint8_t>(300'000);
  const std::shared_ptr<BusySide> side_ = std::make_shared<BusySide>();
  std::vector<std::pair<std::function<void()>, std::function<void()>>> beside_;
  std::shared_ptr<LocalBuffer> buffer_;
  std::thread sealing_;
};

TEST_F(BusyDeviceTest, BufferIsNotQuietBeforeItsGpuHasEnded) {
  Serve(BufferState::kWritable, 2);
  ASSERT_THAT(beside_, SizeIs(1)) << "the wait is on another thread";
  bool quiet = false;
  buffer_->WhenQuiet([&] { quiet = true; });
  EXPECT_FALSE(quiet);
  EXPECT_THAT(buffer_->device_status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(kGpu)));
  side_->go_on.Notify();
  beside_[0].first();
  beside_[0].second();
  EXPECT_TRUE(quiet);
  EXPECT_OK(buffer_->device_status());
}

TEST_F(BusyDeviceTest, ClosedBufferIsNotQuietBeforeItsGpuHasEnded) {
  buffer_->Close();
  ASSERT_THAT(beside_, SizeIs(1));
  bool quiet = false;
  buffer_->WhenQuiet([&] { quiet = true; });
  EXPECT_FALSE(quiet);
  side_->go_on.Notify();
  beside_[0].first();
  beside_[0].second();
  EXPECT_TRUE(quiet);
}

// A copy that the caller has begun elsewhere may use it still: th-control does not wait for that.
TEST_F(BusyDeviceTest, MemoryBeforeARebindIsKnownUntilNobodyUsesIt) {
  side_->go_on.Notify();
  sealing_.join();
  Serve(BufferState::kWritable, 2);
  const auto other = std::make_shared<BusySide>();
  ASSERT_OK(buffer_->Rebind(BindingTo(other)));
  EXPECT_FALSE(side_->revoked);
  EXPECT_EQ(buffer_->memory().device, other);
  EXPECT_THAT(buffer_->device_sides(), ElementsAre(other, side_));
}

TEST_F(BusyDeviceTest, FillIntoMemoryThatAGpuDoesNotEndToReadFailsAndNamesIt) {
  const auto session = std::make_shared<Doorman>();
  bool stopped = false;
  FillDriver::Parts parts;
  parts.session = session;
  parts.store = buffer_->store();
  parts.on_stopped = [&](const std::shared_ptr<FillDriver>& driver) {
    EXPECT_EQ(driver, nullptr);
    stopped = true;
  };
  StartFill order;
  order.buffer = kBuffer;
  order.generation = BufferGeneration(2);
  buffer_->StartFill(order, std::move(parts));
  ASSERT_THAT(beside_, SizeIs(1));
  EXPECT_FALSE(session->failure.has_value());
  beside_[0].second();  // the time is over
  ASSERT_TRUE(session->failure.has_value());
  EXPECT_THAT(*session->failure, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(kGpu)));
  EXPECT_TRUE(stopped);
}

}  // namespace
}  // namespace th
