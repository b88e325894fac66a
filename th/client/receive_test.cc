// Streaming receives against a real server and publisher: bytes, memory, faults.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"
#include "th/client/test_worker.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using ::th::testing::kPatience;
using ::th::testing::Rank;
using ::th::testing::StatusIs;
using ::th::testing::TestServer;
using ::th::testing::TestShard;
using ::th::testing::Worker;

constexpr uint64_t kSegmentBytes = 16'384;
constexpr uint64_t kLimit = 4 * kSegmentBytes;
constexpr size_t kShardBytes = 2'000'000;  // far more than the limit

// Puts slices together, and checks their order on the way.
struct Assembly {
  absl::Status Take(const ReceivedSlice& slice) {
    std::string& tensor = tensors[slice.tensor.name];
    EXPECT_EQ(tensor.size(), slice.offset) << slice.tensor.name;
    EXPECT_LE(slice.bytes.size(), kSegmentBytes);
    tensor.append(slice.bytes.data(), slice.bytes.size());
    bytes += slice.bytes.size();
    if (slice.last()) order.push_back(slice.tensor.name);
    return absl::OkStatus();
  }
  bool IsBeginOf(TestShard& shard) const {
    for (size_t i = 0; i < shard.tensors.size(); ++i) {
      const auto found = tensors.find(shard.tensors[i].name);
      if (found == tensors.end()) continue;
      const std::vector<char>& published = shard.storage(i);
      if (std::string(published.data(), published.size())
              .compare(0, found->second.size(), found->second) != 0) {
        return false;
      }
    }
    return true;
  }

  std::map<std::string, std::string> tensors;
  std::vector<std::string> order;
  uint64_t bytes = 0;
};

class ReceiveTest : public ::testing::Test {
 protected:
  ReceiveTest() : engine_(Join(Rank(server_, "engine"))) {}

  static std::unique_ptr<Client> Join(ClientOptions options) {
    auto joined = Client::Join(std::move(options));
    EXPECT_OK(joined.status());
    return joined.ok() ? *std::move(joined) : nullptr;
  }
  // The two ranks of one group, "pair".
  std::vector<std::unique_ptr<Client>> PairOfReaders() {
    std::vector<std::unique_ptr<Client>> readers;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      readers.push_back(Join(Rank(server_, "pair", rank, 2)));
    }
    return readers;
  }
  Worker Holder(const std::string& group, TestShard shard = TestShard(kShardBytes)) {
    return Worker::Make(Rank(server_, group), std::move(shard), {.segment_bytes = kSegmentBytes});
  }
  Worker Trainer(uint64_t seed) {
    Worker trainer = Holder("trainer");
    trainer.shard.FillWith(seed);
    EXPECT_OK(trainer.PublishAndWait(1));
    return trainer;
  }
  absl::StatusOr<ReceiveResult> Receive(ReceiveOptions options,
                                        const std::function<void()>& at_first = nullptr) {
    return engine_->Receive(Latest(), std::move(options), [&](const ReceivedSlice& slice) {
      const bool first = assembly_.bytes == 0;
      const absl::Status taken = assembly_.Take(slice);
      if (first && at_first) at_first();
      return taken;
    });
  }
  std::vector<std::string> HolderGroups() {
    std::vector<std::string> groups;
    auto controller = Controller::Connect({server_.address(), "run", "model"});
    EXPECT_OK(controller.status());
    const absl::StatusOr<Catalog> catalog = (*controller)->List();
    EXPECT_OK(catalog.status());
    for (const CatalogVersion& version : catalog->models.at(0).versions) {
      for (const CatalogReplica& replica : version.replicas) groups.push_back(replica.group);
    }
    return groups;
  }

  TestServer server_;
  std::unique_ptr<Client> engine_;
  Assembly assembly_;
};

// ---- bytes and memory

TEST_F(ReceiveTest, AWholeShardPassesThroughAFewSegments) {
  Worker trainer = Trainer(3);
  ASSERT_OK_AND_ASSIGN(const ReceiveResult result, Receive({.limit_bytes = kLimit}));
  EXPECT_TRUE(result.received());
  EXPECT_EQ(result.version.label.text(), "1");
  EXPECT_EQ(result.ring_bytes, kLimit);
  EXPECT_EQ(result.tensors, 5u);
  EXPECT_EQ(result.bytes, trainer.buffer.bytes());
  EXPECT_EQ(result.bytes_received, trainer.buffer.bytes());
  EXPECT_THAT(result.sources, ElementsAre("trainer/0"));
  EXPECT_EQ(assembly_.bytes, trainer.buffer.bytes());
  EXPECT_THAT(assembly_.order, ElementsAre("embed", "empty", "norm", "scale", "zz_tail"));
  EXPECT_TRUE(assembly_.IsBeginOf(trainer.shard));
}

TEST_F(ReceiveTest, OnlySegmentsWithAnAskedTensorAreFetched) {
  Worker trainer = Trainer(4);
  ASSERT_OK_AND_ASSIGN(const ReceiveResult result,
                       Receive({.tensors = {"norm", "s*"}, .limit_bytes = kLimit}));
  EXPECT_THAT(assembly_.order, ElementsAre("norm", "scale"));
  EXPECT_TRUE(assembly_.IsBeginOf(trainer.shard));
  EXPECT_EQ(result.bytes, 70u);
  EXPECT_LE(result.bytes_received, 2 * kSegmentBytes);
}

TEST_F(ReceiveTest, TheShardOfARankIsChosenByItsGroup) {
  Worker trainer = Trainer(5);
  ASSERT_OK(Receive({.group = "trainer", .rank = 0, .limit_bytes = kLimit}).status());
  EXPECT_EQ(assembly_.bytes, trainer.buffer.bytes());
}

TEST_F(ReceiveTest, TheNextReceiveFindsTheNextVersion) {
  Worker trainer = Trainer(6);
  ASSERT_OK(Receive({.limit_bytes = kLimit}).status());
  ASSERT_OK(trainer.buffer.Unpublish());
  trainer.shard.FillWith(7);
  ASSERT_OK(trainer.PublishAndWait(2));
  assembly_ = {};
  ASSERT_OK_AND_ASSIGN(const ReceiveResult result, Receive({.limit_bytes = kLimit}));
  EXPECT_EQ(result.version.label.text(), "2");
  EXPECT_TRUE(assembly_.IsBeginOf(trainer.shard));
}

TEST_F(ReceiveTest, ASlowConsumerIsSentNoMoreThanItHasRoomFor) {
  Worker trainer = Trainer(8);
  Worker rollout = Holder("rollout");
  uint64_t sent_meanwhile = 0;
  ASSERT_OK(Receive({.limit_bytes = kLimit}, [&] {
              // As long as a whole update takes, nothing is given back.
              ASSERT_OK(rollout.buffer.Update(Latest()).status());
              sent_meanwhile = trainer.buffer.bytes_sent();
            }).status());
  EXPECT_LE(sent_meanwhile, rollout.buffer.bytes() + kLimit);
  EXPECT_TRUE(assembly_.IsBeginOf(trainer.shard));
}

// ---- what it is not

TEST_F(ReceiveTest, ItIsNeverASourceAndNeverAReplica) {
  Worker trainer = Trainer(9);
  Worker rollout = Holder("rollout");
  std::vector<SourceShare> sources;
  ASSERT_OK(Receive({.limit_bytes = kLimit}, [&] {
              const auto moved = rollout.buffer.Update(Latest());
              ASSERT_OK(moved.status());
              sources = moved->sources;
            }).status());
  ASSERT_THAT(sources, SizeIs(1));
  EXPECT_EQ(sources[0].name, "trainer/0");
  EXPECT_THAT(HolderGroups(), UnorderedElementsAre("trainer", "rollout"));
}

// ---- faults

TEST_F(ReceiveTest, ALostSourceIsReplacedAndNothingIsTakenTwice) {
  Worker trainer = Trainer(10);
  Worker rollout = Holder("rollout");
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  ASSERT_OK_AND_ASSIGN(const ReceiveResult result, Receive({.limit_bytes = kLimit}, [&] {
                         rollout.buffer = WeightBuffer();
                         rollout.client.reset();
                       }));
  EXPECT_THAT(result.sources, ElementsAre("rollout/0", "trainer/0"));
  EXPECT_EQ(result.reroutes, 1u);
  EXPECT_EQ(result.bytes_received, trainer.buffer.bytes());
  EXPECT_EQ(assembly_.bytes, trainer.buffer.bytes());
  EXPECT_TRUE(assembly_.IsBeginOf(trainer.shard));
}

TEST_F(ReceiveTest, WrongBytesAreNeverHandedOut) {
  Worker trainer = Trainer(11);
  ASSERT_OK(trainer.buffer.AwaitSealed(kPatience));
  TestShard published(kShardBytes);
  published.FillWith(11);
  trainer.shard.storage(0)[kShardBytes / 2] ^= 1;  // against the contract
  const auto result = Receive({.limit_bytes = kLimit});
  EXPECT_THAT(result.status(), StatusIs(absl::StatusCode::kUnavailable,
                                        AllOf(HasSubstr("0 of 5 tensors"), HasSubstr("embed"))));
  EXPECT_GT(assembly_.bytes, 0u);
  EXPECT_LE(assembly_.bytes, kShardBytes / 2);
  EXPECT_TRUE(assembly_.IsBeginOf(published));
}

TEST_F(ReceiveTest, APublisherThatTakesItsBufferBackEndsItAndWaitsNoLongerThanItsDrain) {
  Worker trainer = Trainer(12);
  absl::Status unpublished = absl::UnknownError("not called");
  const auto result = Receive({.limit_bytes = kLimit}, [&] {
    unpublished = trainer.buffer.Unpublish({.drain_timeout = absl::Milliseconds(200)});
    trainer.shard.FillWith(13);
  });
  EXPECT_OK(unpublished);
  EXPECT_THAT(result.status(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("0 of 5 tensors"), HasSubstr("the last one embed up to"))));
  TestShard published(kShardBytes);
  published.FillWith(12);
  EXPECT_TRUE(assembly_.IsBeginOf(published));
}

TEST_F(ReceiveTest, ARollBackEndsIt) {
  Worker trainer = Trainer(14);
  Worker keeper = Holder("keeper");
  ASSERT_OK(keeper.buffer.Update(Latest()).status());
  ASSERT_OK(trainer.buffer.Unpublish());
  ASSERT_OK(trainer.PublishAndWait(2));
  const auto result = Receive({.limit_bytes = kSegmentBytes},
                              [&] { ASSERT_OK(engine_->RollBack(testing::Label("1")).status()); });
  // The word of it comes on the stream of the roll-back's answer, ahead of that.
  EXPECT_THAT(result.status(), StatusIs(absl::StatusCode::kAborted, HasSubstr("0 of 5 tensors")));
}

TEST_F(ReceiveTest, AServerThatRestartsIsNotNoticed) {
  Worker trainer = Trainer(15);
  ASSERT_OK_AND_ASSIGN(const ReceiveResult result, Receive({.limit_bytes = kLimit}, [&] {
                         server_.Stop();
                         server_.Start();
                       }));
  EXPECT_TRUE(result.received());
  EXPECT_TRUE(assembly_.IsBeginOf(trainer.shard));
  EXPECT_EQ(assembly_.bytes, trainer.buffer.bytes());
}

// ---- the caller

TEST_F(ReceiveTest, AnErrorOfTheCallerEndsIt) {
  Worker trainer = Trainer(16);
  EXPECT_THAT(engine_
                  ->Receive(Latest(), {.limit_bytes = kLimit},
                            [](const ReceivedSlice&) {
                              return absl::ResourceExhaustedError("the engine is full");
                            })
                  .status(),
              StatusIs(absl::StatusCode::kResourceExhausted, "the engine is full"));
  EXPECT_OK(Receive({.limit_bytes = kLimit}).status());
  EXPECT_TRUE(assembly_.IsBeginOf(trainer.shard));
}

TEST_F(ReceiveTest, WhatTheCallerAsksWronglyIsToldBeforeAByteMoves) {
  Worker trainer = Trainer(17);
  EXPECT_THAT(Receive({.limit_bytes = kSegmentBytes - 1}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(absl::StrCat("the least is ", kSegmentBytes))));
  EXPECT_THAT(Receive({.tensors = {"embedd"}}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("the nearest are embed")));
  EXPECT_THAT(Receive({.group = "trainer", .rank = 1}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("trainer/1 has no buffer")));
  EXPECT_THAT(Receive({.layout = Digest()}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("is unknown")));
  EXPECT_THAT(Receive({.timeout = absl::ZeroDuration()}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("timeout")));
  EXPECT_EQ(trainer.buffer.bytes_sent(), 0u);
}

TEST_F(ReceiveTest, WhatIsNotPublishedIsNotAvailable) {
  Worker rollout = Holder("rollout");
  ASSERT_OK_AND_ASSIGN(const ReceiveResult result,
                       Receive({.group = "rollout", .limit_bytes = kLimit}));
  EXPECT_FALSE(result.received());
  EXPECT_EQ(result.outcome, UpdateOutcome::kNotAvailable);
  ASSERT_OK_AND_ASSIGN(const ReceiveResult only, Receive({.limit_bytes = kLimit}));
  EXPECT_EQ(only.outcome, UpdateOutcome::kNotAvailable);
  EXPECT_EQ(only.reason, NotAvailableReason::kNotPublished);
  EXPECT_THAT(assembly_.tensors, IsEmpty());
}

TEST_F(ReceiveTest, TheRanksOfAGroupReceiveTogether) {
  std::vector<Worker> trainers;
  const std::vector<std::unique_ptr<Client>> readers = PairOfReaders();
  std::vector<Assembly> assemblies(2);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    trainers.push_back(Worker::Make(Rank(server_, "trainer", rank, 2), TestShard(200'000 + rank),
                                    {.segment_bytes = kSegmentBytes}));
    trainers[rank].shard.FillWith(20 + rank);
    ASSERT_OK(trainers[rank].buffer.Publish(1));
  }
  ASSERT_OK(trainers[0].buffer.AwaitPublished().status());
  for (int round = 0; round < 2; ++round) {
    assemblies = std::vector<Assembly>(2);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto result = readers[rank]->Receive(
            Latest(), {.group = "trainer", .rank = rank, .limit_bytes = kLimit},
            [&](const ReceivedSlice& slice) { return assemblies[rank].Take(slice); });
        EXPECT_OK(result.status());
      });
    }
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(assemblies[rank].bytes, trainers[rank].buffer.bytes());
      EXPECT_TRUE(assemblies[rank].IsBeginOf(trainers[rank].shard)) << rank;
    }
  }
}

// Two ranks, of which the second asks for a tensor that is not there in its first receive.
TEST_F(ReceiveTest, ARankThatFailsAtOnceEndsItForItsGroupAndTheNextOneIsInCommon) {
  Worker trainer = Trainer(21);
  const std::vector<std::unique_ptr<Client>> readers = PairOfReaders();
  const auto take = [](const ReceivedSlice&) { return absl::OkStatus(); };
  const auto receive = [&](uint32_t rank, std::vector<std::string> tensors) {
    return readers[rank]
        ->Receive(Latest(), {.tensors = std::move(tensors), .limit_bytes = kLimit}, take)
        .status();
  };
  EXPECT_THAT(receive(1, {"embedd"}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(receive(0, {}), StatusIs(absl::StatusCode::kNotFound,
                                       AllOf(HasSubstr("rank pair/1"), HasSubstr("embedd"))));
  std::thread other([&] { EXPECT_OK(receive(1, {})); });
  EXPECT_OK(receive(0, {}));
  other.join();
}

// They cannot be one operation: the one that is under way ends, and waits for the other no longer.
TEST_F(ReceiveTest, RanksThatReceiveInTwoFormsBothHearSo) {
  Worker trainer = Trainer(22);
  const std::vector<std::unique_ptr<Client>> readers = PairOfReaders();
  const ReceiveOptions options{.layout = trainer.buffer.layout_digest(), .limit_bytes = kLimit};
  absl::Notification began;
  absl::Status first;
  std::thread other([&] {
    first = readers[0]
                ->Receive(Latest(), options,
                          [&](const ReceivedSlice&) {
                            if (!began.HasBeenNotified()) began.Notify();
                            return absl::OkStatus();
                          })
                .status();
  });
  EXPECT_TRUE(began.WaitForNotificationWithTimeout(kPatience));
  ReceiveOptions in_another_form = options;
  in_another_form.form = "fp8";
  const absl::Status second = readers[1]
                                  ->Receive(Latest(), in_another_form,
                                            [](const ReceivedSlice&) { return absl::OkStatus(); })
                                  .status();
  other.join();
  for (const absl::Status& status : {first, second}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("form fp8 at rank pair/1"),
                                       HasSubstr("all ranks must register it in one form"))));
  }
}

}  // namespace
}  // namespace th
