// Versions that are used where they lie, against a real server and holders in this process.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/open_descriptors.h"
#include "testing/status_matchers.h"
#include "th/client/arena_shard.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"
#include "th/client/test_worker.h"
#include "th/memory/shared_memory.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::ArenaShard;
using ::th::testing::OpenDescriptors;
using ::th::testing::Rank;
using ::th::testing::StatusIs;
using ::th::testing::TestServer;
using ::th::testing::TestShard;
using ::th::testing::Worker;

size_t MappingsOfThisProcess() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  size_t arenas = 0;
  while (std::getline(maps, line)) arenas += line.find("tensorhub-arena") != std::string::npos;
  return arenas;
}

class AttachTest : public ::testing::Test {
 protected:
  // A rank whose tensors lie in an arena of ours.
  struct Holder {
    std::unique_ptr<ArenaShard> shard;
    std::unique_ptr<Client> client;
    WeightBuffer buffer;

    absl::Status PublishAndWait(int64_t step) {
      TH_RETURN_IF_ERROR(buffer.Publish(step));
      return buffer.AwaitPublished().status();
    }
  };
  std::unique_ptr<Client> Join(std::string group, uint32_t rank = 0, uint32_t ranks = 1) {
    ClientOptions options = Rank(server_, std::move(group), rank, ranks);
    options.attach_limit_bytes = limit_;
    options.snapshot_limit_bytes = uint64_t{64} << 20;
    auto joined = Client::Join(std::move(options));
    EXPECT_OK(joined.status());
    return joined.ok() ? *std::move(joined) : nullptr;
  }
  Holder Hold(const std::string& group, ReadersMay readers_may = ReadersMay::kAttach) {
    Holder holder{.shard = std::make_unique<ArenaShard>(3, uint64_t{1} << 20, readers_may),
                  .client = Join(group),
                  .buffer = {}};
    auto buffer = holder.client->Register(holder.shard->tensors);
    EXPECT_OK(buffer.status());
    if (buffer.ok()) holder.buffer = *std::move(buffer);
    return holder;
  }
  Holder Trainer(uint64_t seed) {
    Holder trainer = Hold("trainer");
    trainer.shard->FillWith(seed);
    EXPECT_OK(trainer.PublishAndWait(1));
    return trainer;
  }
  // A version that has been attached, which it must be.
  AttachedVersion Attach(const AttachOptions& options = {}) {
    if (engine_ == nullptr) engine_ = Join("engine");
    auto result = engine_->Attach(Latest(), options);
    EXPECT_OK(result.status());
    EXPECT_TRUE(result.ok() && result->attached());
    return std::move(*result->version);
  }
  absl::Status WhyNot(const AttachOptions& options = {}) {
    if (engine_ == nullptr) engine_ = Join("engine");
    return engine_->Attach(Latest(), options).status();
  }

  TestServer server_;
  std::optional<uint64_t> limit_;
  std::unique_ptr<Client> engine_;
};

TEST_F(AttachTest, TheBytesAreThoseOfTheVersion) {
  Holder trainer = Hold("trainer");
  trainer.shard->FillWith(1);
  ASSERT_OK(trainer.buffer.Publish(7, {.attributes = {{"loss", "0.5"}}}));
  ASSERT_OK(trainer.buffer.AwaitPublished().status());
  const AttachedVersion attached = Attach({.verify_bytes = true});
  EXPECT_EQ(attached.version().label.text(), "7");
  EXPECT_EQ(attached.version().attributes.at("loss"), "0.5");
  EXPECT_EQ(attached.source(), "trainer/0");
  EXPECT_EQ(attached.size(), 3U);
  EXPECT_TRUE(ArenaShard::IsContentOf(1, attached));
  EXPECT_EQ(attached.Find("t1").data, attached.tensor(1).data);
  EXPECT_EQ(attached.Find("t1").spec->shape, std::vector<int64_t>{1 << 20});
  EXPECT_NE(attached.Find("t1").data, static_cast<std::byte*>(trainer.shard->tensors[1].data));
  EXPECT_EQ(attached.Find("t9").spec, nullptr);
}

TEST_F(AttachTest, NobodyWaitsForWhoHasAttached) {
  Holder trainer = Trainer(1);
  const AttachedVersion attached = Attach();
  const absl::Time before = absl::Now();
  ASSERT_OK(trainer.buffer.Unpublish({.drain_timeout = absl::Seconds(20)}));
  EXPECT_LT(absl::Now() - before, absl::Seconds(10));
}

TEST_F(AttachTest, WhatTheHolderWritesNextIsNotSeen) {
  Holder trainer = Trainer(1);
  std::byte* const address = trainer.shard->data();
  const AttachedVersion first = Attach();
  ASSERT_OK(trainer.buffer.Unpublish());
  EXPECT_EQ(BytesLeftToReaders(), FindSharedMemory(address, 1)->bytes);
  EXPECT_TRUE(trainer.shard->HasContentOf(1)) << "a trainer goes on from what it had";
  trainer.shard->FillWith(2);
  ASSERT_OK(trainer.PublishAndWait(2));
  const AttachedVersion second = Attach({.verify_bytes = true});
  EXPECT_TRUE(ArenaShard::IsContentOf(1, first));
  EXPECT_OK(first.Verify());
  EXPECT_TRUE(ArenaShard::IsContentOf(2, second));
}

TEST_F(AttachTest, ReadersWhoCopyGetTheNewBytes) {
  Holder trainer = Trainer(1);
  Holder rollout = Hold("rollout");
  ASSERT_OK(rollout.buffer.Update(Latest()).status());  // it has the old arena mapped from now on
  const AttachedVersion attached = Attach();
  ASSERT_OK(trainer.buffer.Unpublish({.on_retention = OnRetention::kDrop}));
  trainer.shard->FillWith(2);
  ASSERT_OK(trainer.PublishAndWait(2));
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  EXPECT_TRUE(rollout.shard->HasContentOf(2));
  EXPECT_TRUE(ArenaShard::IsContentOf(1, attached));
}

TEST_F(AttachTest, HolderWhoseReadersAreGoneKeepsItsArena) {
  Holder trainer = Trainer(1);
  const uint64_t id = FindSharedMemory(trainer.shard->data(), 1)->id;
  { const AttachedVersion attached = Attach(); }
  ASSERT_OK(trainer.buffer.Unpublish());
  EXPECT_EQ(FindSharedMemory(trainer.shard->data(), 1)->id, id);
}

// The holder that the server names first may be one that cannot be attached.
TEST_F(AttachTest, AnotherHolderIsFoundWhereOneCannotBeAttached) {
  Worker trainer = Worker::Make(
      [this] {
        ClientOptions options = Rank(server_, "trainer");
        options.snapshot_limit_bytes = uint64_t{64} << 20;
        return options;
      }(),
      TestShard::Of(3, uint64_t{1} << 20));
  trainer.shard.FillWith(5);
  ASSERT_OK(trainer.PublishAndWait(1));
  EXPECT_THAT(WhyNot(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr("trainer/0"), HasSubstr("arenas of TensorHub"))));
  Worker rollout = Worker::Make(
      [this] {
        ClientOptions options = Rank(server_, "rollout");
        options.snapshot_limit_bytes = uint64_t{64} << 20;
        return options;
      }(),
      TestShard::Of(3, uint64_t{1} << 20));
  rollout.shard.FillWith(5);
  ASSERT_OK(rollout.PublishAndWait(1, {.snapshot = Snapshot::kHost}));
  const AttachedVersion attached = Attach({.verify_bytes = true});
  EXPECT_EQ(attached.source(), "rollout/0");
}

TEST_F(AttachTest, AnUpdateInPlaceLeavesTheArenaToo) {
  Holder trainer = Hold("trainer", ReadersMay::kCopy);  // so that the rollout is the one attached
  trainer.shard->FillWith(1);
  ASSERT_OK(trainer.PublishAndWait(1));
  Holder rollout = Hold("rollout");
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  const AttachedVersion first = Attach();
  EXPECT_EQ(first.source(), "rollout/0");
  ASSERT_OK(trainer.buffer.Unpublish({.on_retention = OnRetention::kDrop}));
  trainer.shard->FillWith(2);
  ASSERT_OK(trainer.PublishAndWait(2));
  ASSERT_OK_AND_ASSIGN(const UpdateResult updated, rollout.buffer.Update(Latest()));
  EXPECT_TRUE(updated.moved());
  EXPECT_TRUE(rollout.shard->HasContentOf(2));
  EXPECT_TRUE(ArenaShard::IsContentOf(1, first));
  EXPECT_TRUE(ArenaShard::IsContentOf(2, Attach({.verify_bytes = true})));
}

TEST_F(AttachTest, SnapshotsAreLeftAndNotUsedAgain) {
  Holder trainer = Hold("trainer", ReadersMay::kCopy);
  std::vector<AttachedVersion> attached;
  for (uint64_t step = 1; step <= 3; ++step) {
    trainer.shard->FillWith(step);
    ASSERT_OK(trainer.buffer.Publish(static_cast<int64_t>(step), {.snapshot = Snapshot::kHost}));
    ASSERT_OK(trainer.buffer.AwaitPublished().status());
    attached.push_back(Attach({.verify_bytes = true}));
    ASSERT_OK(trainer.buffer.Unpublish());
  }
  for (uint64_t step = 1; step <= 3; ++step) {
    EXPECT_TRUE(ArenaShard::IsContentOf(step, attached[step - 1])) << step;
  }
  EXPECT_GE(BytesLeftToReaders(), 3 * trainer.shard->bytes());
  attached.clear();
  EXPECT_EQ(BytesLeftToReaders(), 0U);
}

TEST_F(AttachTest, ABufferThatEndsLeavesItsArena) {
  Holder trainer = Trainer(1);
  const AttachedVersion attached = Attach();
  trainer.buffer = {};
  trainer.shard->FillWith(2);
  EXPECT_TRUE(ArenaShard::IsContentOf(1, attached));
  trainer.client.reset();
  trainer.shard.reset();
  EXPECT_TRUE(ArenaShard::IsContentOf(1, attached));
  EXPECT_OK(attached.Verify());
}

TEST_F(AttachTest, NothingThatIsNotOursIsAttached) {
  Worker trainer = Worker::Make([this] {
    ClientOptions options = Rank(server_, "trainer");
    options.snapshot_limit_bytes = uint64_t{64} << 20;
    return options;
  }());
  ASSERT_OK(trainer.PublishAndWait(1));
  EXPECT_THAT(WhyNot(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr("trainer/0"), HasSubstr("arenas of TensorHub"))));
}

TEST_F(AttachTest, BeyondTheLimitReadersAreRefused) {
  limit_ = uint64_t{5} << 20;  // one arena of 4 MiB
  Holder trainer = Trainer(1);
  std::optional<AttachedVersion> first = Attach();
  ASSERT_OK(trainer.buffer.Unpublish());
  ASSERT_OK(trainer.PublishAndWait(2));
  EXPECT_THAT(WhyNot(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr("trainer/0"), HasSubstr("limit of 5MiB"))));
  first.reset();
  EXPECT_TRUE(ArenaShard::IsContentOf(1, Attach()));
}

TEST_F(AttachTest, WithoutALimitNobodyAttaches) {
  limit_ = 0;
  Holder trainer = Trainer(1);
  EXPECT_THAT(WhyNot(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("limit of 0B")));
}

TEST_F(AttachTest, WhatIsNotThereIsNotAvailable) {
  Holder trainer = Hold("trainer");
  engine_ = Join("engine");
  ASSERT_OK_AND_ASSIGN(const AttachResult result,
                       engine_->Attach(Latest(), {.group = "trainer", .rank = 0}));
  EXPECT_FALSE(result.attached());
  EXPECT_EQ(result.outcome, UpdateOutcome::kNotAvailable);
}

TEST_F(AttachTest, TheRanksOfAGroupAttachTogether) {
  Holder trainer = Trainer(1);
  std::vector<std::unique_ptr<Client>> pair;
  pair.push_back(Join("pair", 0, 2));
  pair.push_back(Join("pair", 1, 2));
  std::vector<absl::StatusOr<AttachResult>> results(2);
  std::thread other([&] { results[1] = pair[1]->Attach(Latest()); });
  results[0] = pair[0]->Attach(Latest());
  other.join();
  for (const auto& result : results) {
    ASSERT_OK(result.status());
    ASSERT_TRUE(result->attached());
    EXPECT_TRUE(ArenaShard::IsContentOf(1, *result->version));
  }
}

TEST_F(AttachTest, ManyTimesLeakNothing) {
  Holder trainer = Trainer(1);
  { const AttachedVersion warm = Attach(); }
  const size_t descriptors = OpenDescriptors();
  const size_t mappings = MappingsOfThisProcess();
  for (int i = 0; i < 100; ++i) {
    const AttachedVersion attached = Attach();
    ASSERT_NE(attached.tensor(0).data, nullptr);
  }
  EXPECT_LE(OpenDescriptors(), descriptors + 4) << "connections that are just ending";
  EXPECT_EQ(MappingsOfThisProcess(), mappings);
  EXPECT_EQ(BytesLeftToReaders(), 0U);
}

}  // namespace
}  // namespace th
