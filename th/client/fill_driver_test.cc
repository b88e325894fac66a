#include "th/client/fill_driver.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/data_plane.h"
#include "th/client/local_buffer.h"
#include "th/client/one_tensor.h"

namespace th {
namespace {

// Has no session; says when somebody comes to tell it something.
class Doorman : public SessionAccess {
 public:
  SessionAnswer Handle(SessionEvent /*event*/) override {
    if (on_event) on_event();
    return {};
  }
  std::function<void()> on_event;
};

class FillDriverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(TensorBinding binding, testing::BindOneTensor(memory_));
    buffer_ = std::make_shared<LocalBuffer>(LocalBuffer::Spec{
        .id = BufferId(7), .form = "hf", .binding_options = {}, .binding = std::move(binding)});
    ASSERT_OK_AND_ASSIGN(parts_.data_plane, DataPlane::Acquire({.address = "127.0.0.1"},
                                                               "127.0.0.1:1", absl::Seconds(30)));
    parts_.session = session_;
    parts_.store = buffer_->store();
    parts_.on_stopped = [this](const std::shared_ptr<FillDriver>&) { stopped_.Notify(); };
    buffer_->store()->BeginFill(BufferGeneration(1), SegmentSet());
  }

  // Starts a fill of the content that the buffer has now, which counts as received.
  StartFill OrderThatHasEverything() {
    const std::atomic<bool> never{false};
    buffer_->store()->Publish(BufferGeneration(1));
    StartFill order;
    order.buffer = BufferId(7);
    order.generation = BufferGeneration(2);
    order.resume = buffer_->store()->held();
    const absl::StatusOr<Digest> root = buffer_->store()->Seal(never);
    EXPECT_OK(root.status());
    order.root = *root;
    return order;
  }
  void Serve(BufferState state, uint64_t generation) {
    buffer_->Serve({BufferId(7), state, VersionSequence(3), BufferGeneration(generation)});
  }

  std::vector<uint8_t> memory_ = std::vector<uint8_t>(300'000);
  std::shared_ptr<LocalBuffer> buffer_;
  std::shared_ptr<Doorman> session_ = std::make_shared<Doorman>();
  FillDriver::Parts parts_;
  absl::Notification stopped_;
};

// Else a fill that begins as soon as the session has heard of the end overtakes this one's.
TEST_F(FillDriverTest, ItIsStoppingBeforeTheSessionHearsThatItIsComplete) {
  const StartFill order = OrderThatHasEverything();  // it is complete at once
  buffer_->store()->BeginFill(order.generation, order.resume);
  std::shared_ptr<FillDriver> driver;
  absl::Notification started;
  bool stopping = false;
  session_->on_event = [&] {  // of the last event: that it is complete
    started.WaitForNotification();
    stopping = driver->stopping();
  };
  driver = FillDriver::Start(order, parts_);
  started.Notify();
  stopped_.WaitForNotification();
  EXPECT_TRUE(stopping);
  EXPECT_TRUE(driver->completed());
}

TEST_F(FillDriverTest, SumsOfAFillDoNotOutliveAWriteThatFollowsIt) {
  buffer_->StartFill(OrderThatHasEverything(), parts_);
  stopped_.WaitForNotification();
  const std::vector<SegmentChecksum> received = buffer_->store()->checksums();
  Serve(BufferState::kWritable, 3);  // before this thread has heard that the fill is over
  buffer_->FillStopped();
  memory_[0] ^= 1;
  Serve(BufferState::kPublished, 3);
  EXPECT_NE(buffer_->store()->ChecksumOf(SegmentIndex(0)), received[0]);
}

TEST_F(FillDriverTest, WhatWasThrownAwayIsNotResumed) {
  StartFill order = OrderThatHasEverything();
  buffer_->store()->ForgetAll();  // as a fill does whose list disagrees with the root
  buffer_->StartFill(order, parts_);
  EXPECT_TRUE(buffer_->store()->held().empty());
  buffer_->Close();
  stopped_.WaitForNotification();
  buffer_->FillStopped();
}

}  // namespace
}  // namespace th
