// Tensors in GPU memory, registered by their pointers: published, received, rebound, copied and
// lost. With the fake driver a dereferenced device pointer crashes the test.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"
#include "th/client/test_worker.h"
#include "th/memory/cuda/cuda_memory_devices.h"
#include "th/memory/cuda/device_memory.h"
#include "th/memory/cuda/stream.h"
#include "th/transfer/cuda_ipc/mapped_test_device.h"
#include "th/transfer/cuda_test_device.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::CudaTestDevice;
using ::th::testing::FakeCuda;
using ::th::testing::kPatience;
using ::th::testing::MappedTestDevice;
using ::th::testing::Rank;
using ::th::testing::StatusIs;
using ::th::testing::TestServer;
using ::th::testing::TestShard;

constexpr uint64_t kTensorBytes = 700'000;
constexpr size_t kTensors = 3;

// Three tensors on a GPU, or the second in host memory.
class DeviceShard {
 public:
  explicit DeviceShard(CudaTestDevice* device, bool mixed = false) : device_(device) {
    for (size_t i = 0; i < kTensors; ++i) {
      Tensor tensor;
      tensor.name = absl::StrCat("tensor.", i);
      tensor.dtype = DType::kU8;
      tensor.shape = {static_cast<int64_t>(kTensorBytes)};
      on_host_.push_back(mixed && i == 1);
      if (on_host_.back()) {
        host_.resize(kTensorBytes);
        tensor.data = host_.data();
      } else {
        tensor.data = device->Allocate(kTensorBytes);
      }
      tensors.push_back(std::move(tensor));
    }
  }
  ~DeviceShard() { Free(); }

  void Free() {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!on_host_[i]) device_->Free(tensors[i].data);
    }
  }
  static std::string Content(uint64_t seed, size_t tensor) {
    std::string bytes(kTensorBytes, 0);
    uint64_t state = seed * 31 + tensor + 1;
    for (char& byte : bytes) {
      state = state * 6364136223846793005 + 1442695040888963407;
      byte = static_cast<char>(state >> 56);
    }
    return bytes;
  }
  void FillWith(uint64_t seed) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::string bytes = Content(seed, i);
      if (on_host_[i]) {
        host_.replace(0, bytes.size(), bytes);  // where it is registered
      } else {
        device_->Write(tensors[i].data, bytes);
      }
    }
  }
  bool HasContentOf(uint64_t seed) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      std::string bytes = host_;
      if (!on_host_[i]) {
        bytes.resize(kTensorBytes);
        device_->Read(tensors[i].data, absl::MakeSpan(bytes.data(), bytes.size()));
      }
      if (bytes != Content(seed, i)) return false;
    }
    return true;
  }

  std::vector<Tensor> tensors;

 private:
  CudaTestDevice* const device_;
  std::vector<bool> on_host_;
  std::string host_;
};

class DeviceBufferTest : public ::testing::Test {
 protected:
  DeviceBufferTest() { SetProcessCudaLibrary(CudaTestDevice::DriverPath()); }

  struct Worker {
    std::unique_ptr<Client> client;
    WeightBuffer buffer;
  };
  Worker Join(const std::string& group, const DeviceShard& shard,
              std::vector<std::string> transports = {}, uint64_t snapshot_room = 0) {
    ClientOptions options = Rank(server_, group);
    options.transports = std::move(transports);
    options.snapshot_limit_bytes = snapshot_room;
    Worker worker;
    auto client = Client::Join(options);
    EXPECT_OK(client.status());
    worker.client = *std::move(client);
    auto buffer = worker.client->Register(shard.tensors, {});
    EXPECT_OK(buffer.status());
    worker.buffer = *std::move(buffer);
    return worker;
  }
  static void Publish(Worker& worker, int64_t step, PublishOptions options = {}) {
    ASSERT_OK(worker.buffer.Publish(step, std::move(options)));
    ASSERT_OK(worker.buffer.AwaitPublished().status());
  }

  TestServer server_;
  CudaTestDevice device_, other_device_{1};
};

TEST_F(DeviceBufferTest, GpuMemoryIsPublishedAndReceivedOverEachTransport) {
  int64_t step = 0;
  for (const char* transport : {"tcp", "same_host"}) {
    DeviceShard trained(&device_), received(&other_device_), mixed(&device_, /*mixed=*/true);
    Worker trainer = Join("trainer", trained, {transport});
    Worker rollout = Join("rollout", received, {transport});
    Worker other = Join("other", mixed, {transport});
    for (int i = 0; i < 2; ++i) {
      ++step;
      trained.FillWith(step);
      Publish(trainer, step);
      ASSERT_OK(rollout.buffer.Update(Latest()).status());
      EXPECT_TRUE(received.HasContentOf(step));
      ASSERT_OK(other.buffer.Update(Latest()).status());
      EXPECT_TRUE(mixed.HasContentOf(step));
      ASSERT_OK(trainer.buffer.Unpublish());
    }
  }
}

TEST_F(DeviceBufferTest, PublishingCopiesNoWeightsToTheHost) {
  const FakeCuda fake;
  DeviceShard trained(&device_);
  Worker trainer = Join("trainer", trained);
  trained.FillWith(1);
  const uint64_t before = fake.bytes_to_host();
  Publish(trainer, 1);
  ASSERT_OK(trainer.buffer.AwaitSealed(kPatience));  // the sums are taken after the publish
  // The sums of leaves, of 16 bytes for 8 KiB.
  EXPECT_GT(fake.bytes_to_host(), before);
  EXPECT_LT(fake.bytes_to_host() - before, trained.tensors.size() * kTensorBytes / 100);
}

TEST_F(DeviceBufferTest, SnapshotOfGpuMemoryIsServedWhileTheTensorsChange) {
  DeviceShard trained(&device_, /*mixed=*/true), received(&device_);
  Worker trainer = Join("trainer", trained, {}, /*snapshot_room=*/uint64_t{64} << 20);
  Worker rollout = Join("rollout", received);
  trained.FillWith(1);
  ASSERT_OK(trainer.buffer.Publish(1, {.snapshot = Snapshot::kHost}));
  trained.FillWith(2);
  ASSERT_OK(trainer.buffer.AwaitPublished().status());
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  EXPECT_TRUE(received.HasContentOf(1));
  ASSERT_OK(trainer.buffer.Unpublish());
  Publish(trainer, 3);  // in place: the tensors themselves
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  EXPECT_TRUE(received.HasContentOf(2));
}

TEST_F(DeviceBufferTest, EngineThatSleepsRebindsWhatItMapsWhenItWakes) {
  DeviceShard trained(&device_);
  auto asleep = std::make_unique<DeviceShard>(&device_);
  Worker trainer = Join("trainer", trained), rollout = Join("rollout", *asleep);
  trained.FillWith(1);
  Publish(trainer, 1);
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  DeviceShard awake(&other_device_);
  ASSERT_OK(rollout.buffer.Unpublish());
  ASSERT_OK(rollout.buffer.Rebind(awake.tensors));
  asleep.reset();
  ASSERT_OK(trainer.buffer.Unpublish());
  trained.FillWith(2);
  Publish(trainer, 2);
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  EXPECT_TRUE(awake.HasContentOf(2));
}

// Verbs of a buffer that is asleep.
void ExpectRefusedAsAsleep(WeightBuffer& buffer) {
  const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("asleep"));
  EXPECT_THAT(buffer.Publish(9), refused);
  EXPECT_THAT(buffer.Publish(9, {.snapshot = Snapshot::kHost}), refused);
  EXPECT_THAT(buffer.Update(Latest()).status(), refused);
  EXPECT_THAT(buffer.Unpublish(), refused);
}

TEST_F(DeviceBufferTest, EngineThatSleepsWakesAtTheSameAddressesWithOtherMemory) {
  const FakeCuda fake;
  fake.AllowOwnImports(true);
  int64_t step = 0;
  for (const char* transport : {"cuda_ipc", "same_host"}) {
    MappedTestDevice arena;
    DeviceShard trained(&device_), received(&arena), read(&other_device_);
    Worker trainer = Join("trainer", trained, {transport});
    Worker rollout = Join("rollout", received, {transport});
    Worker reader = Join("reader", read, {transport});
    trained.FillWith(++step);
    Publish(trainer, step);
    ASSERT_OK(rollout.buffer.Update(Latest()).status());
    ASSERT_OK(trainer.buffer.Unpublish());
    ASSERT_OK(reader.buffer.Update(Latest()).status());  // out of the rollout's memory

    ASSERT_OK(rollout.buffer.Sleep({.drain_timeout = absl::Milliseconds(100)}));
    EXPECT_TRUE(rollout.buffer.asleep());
    EXPECT_EQ(rollout.buffer.version().sequence, VersionSequence());
    arena.Unmap();
    ExpectRefusedAsAsleep(rollout.buffer);
    EXPECT_OK(rollout.buffer.Sleep()) << "it sleeps";
    EXPECT_THAT(rollout.buffer.Wake(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("tensor.0")));
    EXPECT_TRUE(rollout.buffer.asleep()) << "its memory is not there";

    arena.Map();
    ASSERT_OK(rollout.buffer.Wake());
    EXPECT_FALSE(rollout.buffer.asleep());
    ASSERT_OK(reader.buffer.Unpublish());
    trained.FillWith(++step);
    Publish(trainer, step);
    ASSERT_OK(rollout.buffer.Update(Latest()).status());
    EXPECT_TRUE(received.HasContentOf(step));
    ASSERT_OK(trainer.buffer.Unpublish());
    ASSERT_OK(reader.buffer.Update(Latest()).status());
    EXPECT_TRUE(read.HasContentOf(step)) << "out of the rollout's new memory";
  }
}

TEST_F(DeviceBufferTest, RebindWakesABufferWhoseMemoryIsElsewhere) {
  DeviceShard trained(&device_), awake(&other_device_);
  auto asleep = std::make_unique<DeviceShard>(&device_);
  Worker trainer = Join("trainer", trained), rollout = Join("rollout", *asleep);
  ASSERT_OK(rollout.buffer.Sleep());
  asleep.reset();
  ASSERT_OK(rollout.buffer.Rebind(awake.tensors));
  EXPECT_FALSE(rollout.buffer.asleep());
  trained.FillWith(1);
  Publish(trainer, 1);
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  EXPECT_TRUE(awake.HasContentOf(1));
}

TEST_F(DeviceBufferTest, OnlyABufferThatSleepsWakes) {
  DeviceShard shard(&device_);
  Worker worker = Join("rollout", shard);
  EXPECT_THAT(worker.buffer.Wake(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not asleep")));
}

TEST_F(DeviceBufferTest, BufferThatSleepsMayBeDestroyed) {
  DeviceShard shard(&device_);
  {
    Worker worker = Join("rollout", shard);
    ASSERT_OK(worker.buffer.Sleep());
    shard.Free();
  }
  EXPECT_EQ(ProcessMemoryDevices()->registrations().size(), 0);
}

TEST_F(DeviceBufferTest, MemoryThatIsFreedWhileItIsRegisteredIsRefusedWithTheReason) {
  DeviceShard trained(&device_);
  Worker trainer = Join("trainer", trained);
  trained.FillWith(1);
  trained.Free();
  Publish(trainer, 1);
  EXPECT_THAT(trainer.buffer.AwaitSealed(absl::InfiniteDuration()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not the memory")));
}

TEST_F(DeviceBufferTest, MemoryThatATransportHasNotLetGoOfIsNotGivenBack) {
  DeviceShard here(&device_), there(&device_);
  Worker worker = Join("rollout", here);
  const std::vector<std::function<absl::Status()>> verbs = {
      [&] { return worker.buffer.Rebind(there.tensors); },
      [&] { return worker.buffer.Sleep(); },
  };
  const DeviceShard* lies_in = &here;
  for (const auto& verb : verbs) {
    // As a transport does that has given up what a GPU has not ended.
    ASSERT_OK_AND_ASSIGN(const std::shared_ptr<DeviceMemory> apart,
                         ProcessMemoryDevices()->registrations().RegisterApart(
                             lies_in->tensors[1].data, kTensorBytes));
    std::optional<DeviceMemory::Use> landing(*apart->BeginUse());
    absl::Notification returned;
    std::thread calling([&] {
      EXPECT_OK(verb());
      returned.Notify();
    });
    EXPECT_FALSE(returned.WaitForNotificationWithTimeout(absl::Milliseconds(300)));
    landing.reset();
    calling.join();
    lies_in = &there;
  }
}

TEST_F(DeviceBufferTest, PublisherWhoseUpdateCameToNothingHasItsOwnSumsStill) {
  const FakeCuda fake;
  DeviceShard trained(&device_), newer(&other_device_);
  Worker trainer = Join("trainer", trained, {"tcp"}), other = Join("other", newer, {"tcp"});
  trained.FillWith(1);
  Publish(trainer, 1);
  ASSERT_OK(trainer.buffer.AwaitSealed(absl::Seconds(20)));
  newer.FillWith(2);
  Publish(other, 2);
  ASSERT_OK(other.buffer.AwaitSealed(absl::Seconds(20)));
  fake.HoldStreams(true);  // so that not a byte arrives
  EXPECT_THAT(trainer.buffer.Update(Latest(), {.timeout = absl::Milliseconds(300)}).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_OK(trainer.buffer.AwaitSealed(absl::ZeroDuration()));
  fake.HoldStreams(false);
}

TEST_F(DeviceBufferTest, UpdateIntoMemoryThatWasFreedFailsWithTheReason) {
  DeviceShard trained(&device_), received(&device_);
  Worker trainer = Join("trainer", trained), rollout = Join("rollout", received);
  trained.FillWith(1);
  Publish(trainer, 1);
  received.Free();
  const absl::StatusOr<UpdateResult> updated = rollout.buffer.Update(Latest());
  EXPECT_THAT(updated.status().ToString(), HasSubstr("not the memory"));
}

TEST_F(DeviceBufferTest, TensorThatReachesBeyondItsAllocationIsNamed) {
  DeviceShard shard(&device_);
  auto client = Client::Join(Rank(server_, "trainer"));
  ASSERT_OK(client.status());
  shard.tensors[1].shape = {int64_t{1} << 40};
  EXPECT_THAT((*client)->Register({shard.tensors[1]}, {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("tensor.1"), HasSubstr("memory of GPU"))));
}

TEST_F(DeviceBufferTest, PublishWaitsForAnEventOfTheGpu) {
  const FakeCuda fake;
  DeviceShard trained(&device_), received(&device_);
  Worker trainer = Join("trainer", trained), rollout = Join("rollout", received);
  ASSERT_OK_AND_ASSIGN(CudaDevice * device, device_.cuda()->devices().ByIndex(0));
  ASSERT_OK_AND_ASSIGN(const CudaStream stream, CudaStream::Create(device));
  ASSERT_OK_AND_ASSIGN(const CudaEvent event, CudaEvent::Create(device));
  trained.FillWith(1);
  fake.HoldStreams(true);
  ASSERT_OK(stream.Record(event));
  PublishOptions options;
  options.after_cuda_event = reinterpret_cast<uintptr_t>(event.handle());
  options.timeout = absl::Milliseconds(20);
  EXPECT_THAT(trainer.buffer.Publish(1, options),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("after_cuda_event")));
  fake.HoldStreams(false);
  options.timeout = absl::Seconds(20);
  Publish(trainer, 1, options);
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  EXPECT_TRUE(received.HasContentOf(1));
}

TEST_F(DeviceBufferTest, UpdateIntoAGpuThatHangsFailsAndNamesItAndThoseOfAnotherGoOn) {
  const FakeCuda fake;
  fake.AllowOwnImports(true);
  int64_t step = 0;
  for (const char* transport : {"tcp", "cuda_ipc"}) {
    DeviceShard trained(&other_device_), received(&device_), beside(&other_device_);
    Worker trainer = Join("trainer", trained, {transport});
    Worker rollout = Join("rollout", received, {transport});
    Worker other = Join("other", beside, {transport});
    trained.FillWith(++step);
    Publish(trainer, step);
    ASSERT_OK(trainer.buffer.AwaitSealed(absl::Seconds(20)));
    fake.HoldStreamsOf(0, true);
    absl::StatusOr<UpdateResult> updated = absl::UnknownError("not yet");
    std::thread updating([&] { updated = rollout.buffer.Update(Latest()); });
    fake.AwaitHeld();
    EXPECT_OK(other.buffer.Update(Latest()).status());
    EXPECT_TRUE(beside.HasContentOf(step));
    updating.join();
    EXPECT_THAT(updated.status(),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr(absl::StrCat("GPU ", device_.pci_address())),
                               HasSubstr("its processes have to end"))));
    EXPECT_TRUE(rollout.buffer.undefined());
    fake.HoldStreams(false);
    ASSERT_OK(rollout.buffer.Update(Latest()).status()) << "it has ended after all";
    EXPECT_TRUE(received.HasContentOf(step));
    ASSERT_OK(trainer.buffer.Unpublish());
  }
}

TEST_F(DeviceBufferTest, ResetLeavesABufferUndefinedThatAGpuStillWrites) {
  const FakeCuda fake;
  DeviceShard trained(&other_device_), received(&device_);
  Worker trainer = Join("trainer", trained, {"tcp"}), rollout = Join("rollout", received, {"tcp"});
  trained.FillWith(1);
  Publish(trainer, 1);
  ASSERT_OK(trainer.buffer.AwaitSealed(absl::Seconds(20)));
  fake.HoldStreamsOf(0, true);
  ASSERT_FALSE(rollout.buffer.Update(Latest()).ok());
  ASSERT_TRUE(rollout.buffer.undefined());
  const auto in_use = StatusIs(absl::StatusCode::kDeadlineExceeded,
                               HasSubstr(absl::StrCat("GPU ", device_.pci_address())));
  EXPECT_THAT(rollout.buffer.Reset(), in_use);
  EXPECT_TRUE(rollout.buffer.undefined());
  EXPECT_THAT(rollout.buffer.Publish(2), StatusIs(absl::StatusCode::kFailedPrecondition))
      << "its bytes may still change";
  absl::Notification reset;
  std::thread resetting([&] {
    EXPECT_OK(rollout.buffer.Reset());
    reset.Notify();
  });
  EXPECT_FALSE(reset.WaitForNotificationWithTimeout(absl::Milliseconds(300)));
  fake.HoldStreams(false);
  resetting.join();
  EXPECT_FALSE(rollout.buffer.undefined());
  received.FillWith(2);
  Publish(rollout, 2);
}

// A published buffer whose GPU does not end what it sums out of it, and one in host memory beside.
class StuckGpuTest : public DeviceBufferTest {
 protected:
  void SetUp() override {
    trained_.FillWith(1);
    worker_ = Join("trainer", trained_);
    auto beside = worker_.client->Register(beside_.tensors, {.name = "beside"});
    ASSERT_OK(beside.status());
    buffer_beside_ = *std::move(beside);
    fake_.HoldStreams(true);
    Publish(worker_, 1);
    fake_.AwaitHeld();
  }
  void TearDown() override { fake_.HoldStreams(false); }

  // True if `call`, on a thread of its own, returns within `time`, before the GPU goes on.
  bool ReturnsWhileStuck(absl::Duration time, const std::function<void()>& call) {
    absl::Notification returned;
    std::thread calling([&] {
      call();
      returned.Notify();
    });
    const bool returns = returned.WaitForNotificationWithTimeout(time);
    fake_.HoldStreams(false);
    calling.join();
    return returns;
  }
  // Begins to take the published buffer back: its readers have gone, and the GPU is waited for.
  std::thread TakingBack() {
    std::thread taking_back(
        [this] { EXPECT_OK(worker_.buffer.Unpublish({.drain_timeout = absl::Milliseconds(10)})); });
    while (worker_.buffer.version().sequence != VersionSequence()) std::this_thread::yield();
    return taking_back;
  }

  // Until the server has taken the worker out.
  void EndSession() {
    ASSERT_OK_AND_ASSIGN(auto controller, Controller::Connect({server_.address(), "run", "model"}));
    ASSERT_OK(worker_.client->Preempt(absl::Now() + absl::Milliseconds(200)));
    for (bool listed = true; listed; std::this_thread::yield()) {
      ASSERT_OK_AND_ASSIGN(const Catalog catalog, controller->List());
      const CatalogModel* const model = FindModel(catalog, {"run", "model"});
      listed = model != nullptr && absl::c_any_of(model->versions, [](const auto& one) {
                 return !one.replicas.empty();
               });
    }
  }

  // Shorter than a GPU is waited for.
  static constexpr absl::Duration kSoon = absl::Seconds(5);
  // Longer than a call takes that nothing holds up.
  static constexpr absl::Duration kHeldUp = absl::Milliseconds(300);

  const FakeCuda fake_;
  DeviceShard trained_{&device_};
  TestShard beside_;
  Worker worker_;
  WeightBuffer buffer_beside_;
};

TEST_F(StuckGpuTest, RefusedVerbOfAnotherBufferDoesNotWait) {
  std::thread taking_back = TakingBack();
  absl::Status refused;
  EXPECT_TRUE(ReturnsWhileStuck(kSoon, [&] { refused = buffer_beside_.Unpublish(); }));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition));
  taking_back.join();
}

TEST_F(StuckGpuTest, MemoryThatTheGpuReadsDoesNotFallAsleep) {
  EXPECT_FALSE(ReturnsWhileStuck(kHeldUp, [&] {
    EXPECT_OK(worker_.buffer.Sleep({.drain_timeout = absl::Milliseconds(10)}));
  }));
  EXPECT_TRUE(worker_.buffer.asleep());
}

TEST_F(StuckGpuTest, RefusedVerbOfAPublishedBufferDoesNotWait) {
  absl::Status refused;
  EXPECT_TRUE(ReturnsWhileStuck(kSoon, [&] { refused = worker_.buffer.Publish(2); }));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(StuckGpuTest, NothingIsPublishedIsHeardWhenTheGpuHasEnded) {
  std::thread taking_back = TakingBack();
  absl::Status refused;
  EXPECT_FALSE(ReturnsWhileStuck(kHeldUp, [&] { refused = worker_.buffer.Unpublish(); }));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition));
  taking_back.join();
}

TEST_F(StuckGpuTest, AsynchronousUnpublishThatIsRefusedTellsSoLikewiseAndHoldsUpNobody) {
  std::thread taking_back = TakingBack();
  absl::Status refused;
  absl::Notification reported;
  EXPECT_TRUE(ReturnsWhileStuck(kSoon, [&] {
    worker_.buffer.UnpublishAsync({}, [&](absl::Status status) {
      refused = std::move(status);
      reported.Notify();
    });
    EXPECT_FALSE(reported.WaitForNotificationWithTimeout(kHeldUp));
  }));
  reported.WaitForNotification();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition));
  taking_back.join();
}

TEST_F(StuckGpuTest, EndOfTheSessionIsHeardWhenTheGpuHasEnded) {
  EndSession();
  absl::Status refused;
  EXPECT_FALSE(ReturnsWhileStuck(kHeldUp, [&] { refused = worker_.buffer.Publish(2); }));
  EXPECT_THAT(refused,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("membership is over")));
}

TEST_F(StuckGpuTest, AsynchronousVerbTellsTheEndOfTheSessionLikewiseAndHoldsUpNobody) {
  EndSession();
  absl::Status refused;
  absl::Notification reported;
  EXPECT_TRUE(ReturnsWhileStuck(kSoon, [&] {
    worker_.buffer.UnpublishAsync({}, [&](absl::Status status) {
      refused = std::move(status);
      reported.Notify();
    });
    EXPECT_FALSE(reported.WaitForNotificationWithTimeout(kHeldUp));
  }));
  reported.WaitForNotification();
  EXPECT_THAT(refused,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("membership is over")));
}

TEST_F(DeviceBufferTest, AGpuThatDoesNotEndHoldsUpTheSumsOfNoOtherMemory) {
  const FakeCuda fake;
  DeviceShard trained(&device_);
  Worker trainer = Join("trainer", trained);
  trained.FillWith(1);
  testing::TestShard in_host;
  auto other = Client::Join(Rank(server_, "other"));
  ASSERT_OK(other.status());
  auto other_buffer = (*other)->Register(in_host.tensors, {});
  ASSERT_OK(other_buffer.status());
  fake.HoldStreams(true);
  Publish(trainer, 1);
  fake.AwaitHeld();
  ASSERT_OK(other_buffer->Publish(2, {}));
  EXPECT_OK(other_buffer->AwaitSealed(absl::Seconds(20)));
  EXPECT_THAT(trainer.buffer.AwaitSealed(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  fake.HoldStreams(false);
  EXPECT_OK(trainer.buffer.AwaitSealed(absl::Seconds(20)));
}

TEST_F(DeviceBufferTest, EventWithoutGpuMemoryIsRefused) {
  testing::TestShard host;
  auto client = Client::Join(Rank(server_, "trainer"));
  ASSERT_OK(client.status());
  auto buffer = (*client)->Register(host.tensors, {});
  ASSERT_OK(buffer.status());
  PublishOptions options;
  options.after_cuda_event = 1;
  EXPECT_THAT(buffer->Publish(1, options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("none of the buffer's")));
}

TEST_F(DeviceBufferTest, UnregisteringLeavesNoRegistration) {
  DeviceShard shard(&device_);
  {
    Worker trainer = Join("trainer", shard);
    EXPECT_EQ(ProcessMemoryDevices()->registrations().size(), kTensors);
  }
  EXPECT_EQ(ProcessMemoryDevices()->registrations().size(), 0);
}

TEST_F(DeviceBufferTest, WithoutADriverInTheProcessNothingIsLookedAt) {
  SetProcessCudaLibrary("libcuda-that-nobody-has-loaded.so.1");
  EXPECT_EQ(ProcessMemoryDevices(), nullptr);
}

}  // namespace
}  // namespace th
