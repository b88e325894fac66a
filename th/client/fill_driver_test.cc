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
    Tensor tensor;
    tensor.name = "w";
    tensor.dtype = DType::kU8;
    tensor.shape = {static_cast<int64_t>(memory_.size())};
    tensor.data = memory_.data();
    ASSERT_OK_AND_ASSIGN(TensorBinding binding, BindTensors({tensor}, {}));
    buffer_ = std::make_shared<LocalBuffer>(LocalBuffer::Spec{
        .id = BufferId(7), .form = "hf", .binding_options = {}, .binding = std::move(binding)});
    ASSERT_OK_AND_ASSIGN(parts_.data_plane,
                         DataPlane::Acquire({.address = "127.0.0.1"}, "127.0.0.1:1"));
    parts_.session = session_;
    parts_.store = buffer_->store();
    parts_.on_stopped = [this](const std::shared_ptr<FillDriver>&) { stopped_.Notify(); };
    buffer_->store()->BeginFill(BufferGeneration(1), SegmentSet());
  }

  std::vector<uint8_t> memory_ = std::vector<uint8_t>(300'000);
  std::shared_ptr<LocalBuffer> buffer_;
  std::shared_ptr<Doorman> session_ = std::make_shared<Doorman>();
  FillDriver::Parts parts_;
  absl::Notification stopped_;
};

// Else a fill that begins as soon as the session has heard of the end overtakes this one's.
TEST_F(FillDriverTest, ItIsStoppingBeforeTheSessionHearsThatItIsComplete) {
  // It has everything and the root: it is complete at once.
  const std::atomic<bool> never{false};
  buffer_->store()->Publish(BufferGeneration(1));
  StartFill order;
  order.buffer = BufferId(7);
  order.generation = BufferGeneration(2);
  order.resume = buffer_->store()->held();
  ASSERT_OK_AND_ASSIGN(order.root, buffer_->store()->Seal(never));
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

}  // namespace
}  // namespace th
