#include "th/client/served_readers.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/one_tensor.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::th::testing::StatusIs;

constexpr BufferId kBuffer(7);
constexpr TransferId kTransfer(1), kOther(2);

class ServedReadersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(TensorBinding binding, testing::BindOneTensor(memory_));
    buffer_ = std::make_shared<LocalBuffer>(LocalBuffer::Spec{
        .id = kBuffer, .form = "hf", .binding_options = {}, .binding = std::move(binding)});
  }
  void Ask(TransferId transfer) {
    readers_.Ask({.transfer = transfer, .buffer = kBuffer},
                 [this](Admission admission) { answers_.push_back(std::move(admission)); });
  }
  // The session decides; the answer is given at once.
  void Decide(TransferId transfer, absl::Status status) {
    auto answer = readers_.Decided({transfer, std::move(status), BufferGeneration(3)},
                                   [this](BufferId) { return buffer_; });
    if (answer.has_value()) answer->decide(std::move(answer->admission));
  }

  std::vector<uint8_t> memory_ = std::vector<uint8_t>(1000);
  std::shared_ptr<LocalBuffer> buffer_;
  ServedReaders readers_{nullptr};
  std::vector<Admission> answers_;
};

TEST_F(ServedReadersTest, AnAdmittedReaderIsServedFromTheBufferUntilItIsReleased) {
  Ask(kTransfer);
  EXPECT_FALSE(readers_.empty());
  EXPECT_FALSE(readers_.IsRead(buffer_.get()));
  Decide(kTransfer, absl::OkStatus());
  ASSERT_THAT(answers_, SizeIs(1));
  EXPECT_OK(answers_[0].status);
  EXPECT_EQ(answers_[0].store, buffer_->store());
  EXPECT_EQ(answers_[0].generation, BufferGeneration(3));
  EXPECT_THAT(readers_.ReadersOf(buffer_.get()), ElementsAre(kTransfer));
  readers_.NoteReleased(kTransfer, 0, "");
  EXPECT_THAT(readers_.ReadersOf(buffer_.get()), IsEmpty());
  EXPECT_TRUE(readers_.empty());
}

TEST_F(ServedReadersTest, BytesCountOnceThoughTheyAreReportedSoFar) {
  Ask(kTransfer);
  Decide(kTransfer, absl::OkStatus());
  readers_.NoteSent(kTransfer, 10);
  readers_.NoteSent(kTransfer, 25);
  readers_.NoteSent(kOther, 99);  // of nobody
  EXPECT_EQ(buffer_->bytes_sent().load(), 25U);
  readers_.NoteReleased(kTransfer, 40, "");
  EXPECT_EQ(buffer_->bytes_sent().load(), 40U);
}

TEST_F(ServedReadersTest, ARefusedReaderIsNotServed) {
  Ask(kTransfer);
  Decide(kTransfer, absl::PermissionDeniedError("another version"));
  ASSERT_THAT(answers_, SizeIs(1));
  EXPECT_THAT(answers_[0].status, StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_EQ(answers_[0].store, nullptr);
  EXPECT_TRUE(readers_.empty());
}

TEST_F(ServedReadersTest, AReaderThatHasGoneMeanwhileIsNotServed) {
  Ask(kTransfer);
  readers_.NoteReleased(kTransfer, 0, "");
  Decide(kTransfer, absl::OkStatus());
  EXPECT_THAT(answers_, SizeIs(1)) << "it is answered all the same";
  EXPECT_TRUE(readers_.empty());
}

TEST_F(ServedReadersTest, AReaderOfABufferThatIsGoneIsRefused) {
  Ask(kTransfer);
  buffer_ = nullptr;
  Decide(kTransfer, absl::OkStatus());
  ASSERT_THAT(answers_, SizeIs(1));
  EXPECT_THAT(answers_[0].status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("gone")));
  EXPECT_TRUE(readers_.empty());
}

TEST_F(ServedReadersTest, WhoWaitsIsHandedBackOnceForAnotherAnswer) {
  Ask(kTransfer);
  Ask(kOther);
  EXPECT_THAT(readers_.TakeWaiting(), SizeIs(2));
  EXPECT_THAT(readers_.TakeWaiting(), IsEmpty());
  Decide(kTransfer, absl::OkStatus());
  EXPECT_THAT(answers_, IsEmpty());
}

}  // namespace
}  // namespace th
