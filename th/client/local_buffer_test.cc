// A registered buffer lets others read as the session's word about it says.
#include "th/client/local_buffer.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/one_tensor.h"

namespace th {
namespace {

constexpr BufferId kBuffer(7);
constexpr VersionSequence kStep1(3);

class LocalBufferTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::iota(memory_.begin(), memory_.end(), 0);
    ASSERT_OK_AND_ASSIGN(TensorBinding binding, testing::BindOneTensor(memory_));
    buffer_ = std::make_shared<LocalBuffer>(LocalBuffer::Spec{
        .id = kBuffer, .form = "hf", .binding_options = {}, .binding = std::move(binding)});
  }
  void Serve(BufferState state, uint64_t generation) {
    buffer_->Serve({kBuffer, state, kStep1, BufferGeneration(generation)});
  }
  SegmentStore& store() { return *buffer_->store(); }
  std::vector<SegmentChecksum> Sealed() {
    const std::atomic<bool> never{false};
    EXPECT_OK(store().Seal(never).status());
    return store().checksums();
  }

  std::vector<uint8_t> memory_ = std::vector<uint8_t>(300'000);
  std::shared_ptr<LocalBuffer> buffer_;
};

TEST_F(LocalBufferTest, TheGenerationWordHasRisenWhenTheBufferIsWritableAgain) {
  Serve(BufferState::kPublished, 1);
  EXPECT_EQ(store().generation(), BufferGeneration(1));
  Serve(BufferState::kDraining, 1);
  Serve(BufferState::kWritable, 2);
  EXPECT_EQ(store().generation(), BufferGeneration(2));
  EXPECT_EQ(store().ReadinessOf(SegmentIndex(0)), SegmentStore::Readiness::kClosed);
}

TEST_F(LocalBufferTest, TheGenerationWordRisesWhenTheBufferIsClosedForGood) {
  Serve(BufferState::kPublished, 1);
  buffer_->Close();
  EXPECT_GT(store().generation(), BufferGeneration(1));
}

TEST_F(LocalBufferTest, ThePublishersSumsStandAfterAnUpdateThatWroteNothing) {
  Serve(BufferState::kPublished, 1);
  const std::vector<SegmentChecksum> published = Sealed();
  Serve(BufferState::kDraining, 1);
  memory_[0] ^= 1;  // gone bad: a sum that is taken now would hide it
  Serve(BufferState::kPublished, 2);
  EXPECT_EQ(store().generation(), BufferGeneration(2));
  EXPECT_EQ(store().checksums(), published);
}

TEST_F(LocalBufferTest, AnUndefinedBufferServesUnderTheGenerationThatItAnnounces) {
  SegmentSet first = SegmentSet::AllOf(1);
  store().BeginFill(BufferGeneration(4), first);
  Serve(BufferState::kUndefined, 4);
  Serve(BufferState::kDraining, 4);
  Serve(BufferState::kUndefined, 5);  // the update was given up before its fill began
  EXPECT_EQ(store().generation(), BufferGeneration(5));
  EXPECT_EQ(store().held(), first);
}

TEST_F(LocalBufferTest, NewContentGetsSumsOfItsOwn) {
  Serve(BufferState::kPublished, 1);
  const std::vector<SegmentChecksum> published = Sealed();
  Serve(BufferState::kWritable, 2);
  memory_[0] ^= 1;
  Serve(BufferState::kPublished, 2);
  EXPECT_NE(Sealed(), published);
}

}  // namespace
}  // namespace th
