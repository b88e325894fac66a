// The transport with one end in another process: this program, started anew as a source. On the
// fake driver, and on the GPU that TH_TEST_CUDA_DRIVER names, where tests that hold, fail or count
// what a driver does are skipped.
#include "th/transfer/cuda_ipc/cuda_ipc_transport.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/open_descriptors.h"
#include "testing/process_threads.h"
#include "testing/status_matchers.h"
#include "th/memory/cuda/cuda_test_fixture.h"
#include "th/transfer/cuda_ipc/allocation_table.h"
#include "th/transfer/cuda_ipc/device_address.h"
#include "th/transfer/cuda_ipc/mapped_test_device.h"
#include "th/transfer/cuda_test_device.h"
#include "th/transfer/same_host/host_address.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/test_peers.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using testing::CudaTestDevice;
using ::testing::Each;
using testing::FakeCuda;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kHolderWorker;
using testing::kPatience;
using testing::MappedTestDevice;
using ::testing::Not;
using ::testing::Pair;
using testing::PatientLimits;
using testing::StatusIs;
using testing::TestHolder;
using testing::TestShard;
using testing::TestSink;
using testing::ThreadsOfThisProcess;

std::unique_ptr<Transport> NewTransport(std::shared_ptr<cuda_ipc::CopyCounters> counters = nullptr,
                                        bool import_own = false,
                                        const TransportLimits& limits = PatientLimits()) {
  auto transport = NewCudaIpcTransport({.driver = CudaTestDevice::DriverPath(),
                                        .limits = limits,
                                        .exports = {.release_timeout = kPatience},
                                        .imports = {.import_own = import_own},
                                        .counters = std::move(counters)});
  EXPECT_OK(transport.status());
  return *std::move(transport);
}

std::unique_ptr<AttachedMemory> Attached(Transport& transport, const TestShard& shard) {
  auto attached = transport.Attach(shard.store()->regions());
  EXPECT_OK(attached.status());
  return *std::move(attached);
}

// Several segments of several pieces, and such as go over from one tensor to another.
const std::vector<uint64_t>& Tensors() {
  static const auto* const tensors = new std::vector<uint64_t>{700'000, 3, 0, 5'000, 262'144};
  return *tensors;
}

// ---- the source's process

// Which memory its shard lies in, as an argument of the program.
constexpr char kAllocated[] = "allocated";
constexpr char kOnSecondDevice[] = "second-device";
constexpr char kMapped[] = "mapped";
constexpr char kUnexportable[] = "unexportable";
constexpr char kHost[] = "host";
constexpr char kMixed[] = "mixed";

std::unique_ptr<testing::TestDevice> SourceDevice(const std::string& memory) {
  if (memory == kHost) return nullptr;
  if (memory == kMapped || memory == kUnexportable) {
    return std::make_unique<MappedTestDevice>(memory == kMapped);
  }
  return std::make_unique<CudaTestDevice>(memory == kOnSecondDevice ? 1 : 0);
}

class Source {
 public:
  explicit Source(const std::string& memory)
      : memory_(memory), device_(SourceDevice(memory)), transport_(NewTransport()) {}
  ~Source() { transport_ = nullptr; }

  void Publish(uint64_t seed, bool attach) {
    shard_ = std::make_unique<TestShard>(TestShard::Spec{.tensor_bytes = Tensors(),
                                                         .device = device_.get(),
                                                         .every_other_on_host = memory_ == kMixed});
    shard_->FillWith(seed);
    shard_->store()->Publish(BufferGeneration(1));
    const std::atomic<bool> never{false};
    EXPECT_OK(shard_->store()->Seal(never).status());
    if (attach) attached_ = Attached(*transport_, *shard_);
    holder_ = std::make_unique<TestHolder>(shard_->store());
    transport_->AddHolder(kHolderWorker, holder_.get());
  }
  void Unpublish() {
    transport_->RemoveHolder(kHolderWorker);
    shard_ = nullptr;
  }
  void Detach() { attached_ = nullptr; }
  void Remap() { static_cast<MappedTestDevice&>(*device_).Remap(); }
  std::string address() const { return transport_->endpoints()[0].address; }

 private:
  const std::string memory_;
  std::unique_ptr<testing::TestDevice> device_;
  std::unique_ptr<TestShard> shard_;
  std::unique_ptr<TestHolder> holder_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<AttachedMemory> attached_;
};

// The objects of the driver and the kernel that a process keeps.
struct Kept {
  uint64_t imports = 0, objects = 0, descriptors = 0;

  static Kept Here() {
    return {FakeCuda().imports(), FakeCuda().live(), testing::OpenDescriptors()};
  }
  static Kept Parse(const std::string& text) {
    Kept kept;
    std::istringstream(text) >> kept.imports >> kept.objects >> kept.descriptors;
    return kept;
  }
  std::string ToString() const { return absl::StrCat(imports, " ", objects, " ", descriptors); }
};

// Objects that a transfer leaves behind for a moment count for nothing, those that each leaves for
// ever do.
void ExpectNoGrowth(const Kept& before, const Kept& after) {
  constexpr uint64_t kForAMoment = 10;
  EXPECT_EQ(after.imports, before.imports);
  EXPECT_LE(after.objects, before.objects + kForAMoment);
  EXPECT_LE(after.descriptors, before.descriptors + kForAMoment);
  EXPECT_GT(before.objects, 0);
  EXPECT_GT(before.descriptors, 0);
}

// Does what it is told, a line each, and answers each with a line.
int SourceMain(const std::string& memory) {
  Source source(memory);
  source.Publish(1, /*attach=*/true);
  std::cout << source.address() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "detach") source.Detach();
    // An engine that sleeps, and wakes with other weights at the same address.
    if (line == "sleep and wake") {
      source.Unpublish();
      source.Detach();
      source.Remap();
      source.Publish(2, /*attach=*/true);
    }
    if (line == "remap behind our back") {
      source.Unpublish();
      source.Remap();
      source.Publish(2, /*attach=*/false);
    }
    std::cout << (line == "say what is kept" ? Kept::Here().ToString() : "done") << std::endl;
  }
  source.Unpublish();
  source.Detach();
  return ::testing::Test::HasFailure() ? 1 : 0;
}

std::string OwnPath() {
  std::array<char, 4096> path = {};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return std::string(path.data(), length > 0 ? static_cast<size_t>(length) : 0);
}

class SourceProcess {
 public:
  explicit SourceProcess(const std::string& memory,
                         const std::vector<std::string>& environment = {}) {
    int to[2], from[2];
    EXPECT_EQ(pipe2(to, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from, O_CLOEXEC), 0);
    const std::string path = OwnPath();
    process_ = fork();
    if (process_ == 0) {
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      for (const std::string& each : environment) putenv(const_cast<char*>(each.c_str()));
      execl(path.c_str(), path.c_str(), "--source", memory.c_str(), nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    to_ = fdopen(to[1], "w");
    from_ = fdopen(from[0], "r");
    address_ = ReadLine();
  }
  ~SourceProcess() {
    if (to_ != nullptr) fclose(to_);
    fclose(from_);
    int status = 0;
    waitpid(process_, &status, 0);
    EXPECT_TRUE(killed_ || status == 0) << status;
  }
  std::string Ask(const std::string& what) {
    fprintf(to_, "%s\n", what.c_str());
    fflush(to_);
    return ReadLine();
  }
  void Send(const std::string& what) { EXPECT_EQ(Ask(what), "done"); }
  Kept WhatIsKept() { return Kept::Parse(Ask("say what is kept")); }
  void Kill() {
    killed_ = true;
    kill(process_, SIGKILL);
  }
  // Kills it, and returns once its memory is gone. Its sockets stay open for as long as what is
  // returned, as for a moment they do in any process that ends.
  std::vector<stream::Socket> KillButKeepSocketsOpen() {
    std::vector<stream::Socket> kept;
    const std::string descriptors = absl::StrCat("/proc/", process_, "/fd");
    for (const auto& each : std::filesystem::directory_iterator(descriptors)) {
      std::error_code ended;  // one that was closed meanwhile
      if (!std::filesystem::is_socket(each.path(), ended)) continue;
      auto copy = cuda_ipc::FetchDescriptor(process_, std::stoul(each.path().filename()));
      EXPECT_OK(copy.status());
      if (copy.ok()) kept.push_back(*std::move(copy));
    }
    Kill();
    siginfo_t end{};
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(process_), &end, WEXITED | WNOWAIT), 0);
    return kept;
  }
  pid_t process() const { return process_; }
  Endpoint endpoint() const {
    return {.address = address_, .transport = kCudaIpcTransport, .site = ""};
  }

 private:
  std::string ReadLine() const {
    std::string line;
    for (int c = fgetc(from_); c != EOF && c != '\n'; c = fgetc(from_))
      line += static_cast<char>(c);
    return line;
  }
  pid_t process_ = 0;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
  std::string address_;
  bool killed_ = false;
};

// ---- the reader

// Expects every segment's sum to be that of the source.
class InPlaceSink : public PullSink {
 public:
  explicit InPlaceSink(SegmentStore* into) : into_(into) {}
  void AwaitSegments(uint64_t count) {
    absl::MutexLock lock(&mu_);
    const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return segments_ >= count || closed_.HasBeenNotified();
    };
    testing::AwaitOrFail(mu_, absl::Condition(&done), "the segments arrive");
  }
  void AwaitClosed() { closed_.WaitForNotification(); }
  void OnAdmitted(BufferGeneration, bool) override {}
  void OnChecksums(SegmentIndex, absl::Span<const SegmentChecksum>) override {}
  bool OnSegmentBegins(SegmentIndex segment, std::vector<iovec>*) override {
    ADD_FAILURE() << "segment " << segment.value << " comes as payload";
    return false;
  }
  bool OnSegmentBeginsInPlace(SegmentIndex segment, CanWrite, std::vector<iovec>* iov) override {
    into_->AppendPieces(segment, iov);
    return true;
  }
  void OnSegment(SegmentIndex segment, SegmentChecksum sent, SegmentChecksum computed) override {
    EXPECT_EQ(sent, computed) << segment.value;
    absl::MutexLock lock(&mu_);
    ++segments_;
  }
  void OnAlive() override {}
  void OnClosed(SourceFailure, std::string detail) override {
    absl::MutexLock lock(&mu_);
    EXPECT_EQ(detail, "closed by the reader");
    closed_.Notify();
  }

 private:
  SegmentStore* const into_;
  absl::Notification closed_;
  absl::Mutex mu_;
  uint64_t segments_ ABSL_GUARDED_BY(mu_) = 0;
};

class CudaIpcTest : public ::testing::Test {
 protected:
  CudaIpcTest() {
    if (IsFakeDriver()) FakeCuda().AllowOwnImports(false);
  }

  // A shard with the bytes that the source's has after Publish(seed).
  static std::unique_ptr<TestShard> Expected(uint64_t seed) {
    auto shard =
        std::make_unique<TestShard>(TestShard::Spec{.tensor_bytes = Tensors(), .device = nullptr});
    shard->FillWith(seed);
    return shard;
  }
  std::unique_ptr<TestShard> NewShard(testing::TestDevice* device) {
    return std::make_unique<TestShard>(
        TestShard::Spec{.tensor_bytes = Tensors(), .device = device});
  }
  PullTarget Target(const SourceProcess& source, const TestShard& into) {
    return TestHolder(into.store()).Target(source.endpoint(), into.store()->shared_layout());
  }
  // Pulls all of the source's shard, and expects what it is after Publish(seed).
  void ExpectArrives(const SourceProcess& source, uint64_t seed, testing::TestDevice* into) {
    const auto received = NewShard(into);
    const auto attached = Attached(*reader_, *received);
    TestSink sink(received.get());
    auto pull = reader_->Open(Target(source, *received), &sink);
    pull->Ask(received->all());
    sink.AwaitSegments(received->segment_count());
    EXPECT_THAT(sink.segments(), Each(Pair(::testing::_, true)));
    EXPECT_TRUE(received->Equals(*Expected(seed)));
    pull->Close();
    sink.AwaitClosed();
  }
  // How the pull ends that the source, or this process, cannot serve.
  std::pair<SourceFailure, std::string> FailureOf(const SourceProcess& source,
                                                  testing::TestDevice* into) {
    const auto received = NewShard(into);
    const auto attached = Attached(*reader_, *received);
    TestSink sink(received.get());
    auto pull = reader_->Open(Target(source, *received), &sink);
    pull->Ask(received->all());
    auto failure = sink.AwaitClosed();
    EXPECT_THAT(sink.segments(), IsEmpty());
    return failure;
  }
  // The thread that keeps imports hears of it a little later.
  static void AwaitImports(uint64_t imports) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (FakeCuda().imports() != imports && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_EQ(FakeCuda().imports(), imports);
  }

  CudaDevice& Device() const { return *device_.cuda()->devices().all()[0]; }
  MemoryRegion Region(uint64_t address, uint64_t bytes) {
    return {reinterpret_cast<void*>(address), bytes, MemoryKind::kDevice, device_.pci_address()};
  }

  const std::shared_ptr<cuda_ipc::CopyCounters> counters_ =
      std::make_shared<cuda_ipc::CopyCounters>();
  CudaTestDevice device_;
  std::unique_ptr<Transport> reader_ = NewTransport(counters_);
};

// Tests that a driver must be told how to behave for, or asked what it has done.
class FakeCudaIpcTest : public CudaIpcTest {
 protected:
  void SetUp() override {
    if (!IsFakeDriver()) GTEST_SKIP() << "the fake driver alone can be held, failed and counted";
  }
  ~FakeCudaIpcTest() override {
    if (!IsFakeDriver()) return;
    FakeCuda().HoldStreams(false);
    FakeCuda().RefusePeers(false);
  }
};

// Allocations of the source's shard that have bytes.
constexpr uint64_t kAllocations = 4;

TEST_F(CudaIpcTest, AnotherProcesssGpuMemoryArrives) {
  const SourceProcess source(kAllocated);
  ExpectArrives(source, 1, &device_);
  EXPECT_EQ(counters_->same_device_bytes, Expected(1)->layout().bytes());
  EXPECT_EQ(counters_->staged_bytes + counters_->peer_access_bytes + counters_->host_bytes, 0);
}

TEST_F(CudaIpcTest, MappedMemoryOfAnotherProcessArrives) {
  const SourceProcess source(kMapped);
  ExpectArrives(source, 1, &device_);
  MappedTestDevice mapped;
  ExpectArrives(source, 1, &mapped);
}

// ---- imports

TEST_F(FakeCudaIpcTest, ImportsAreKeptForTheNextTransferAndClosedWhenTheSourceDetaches) {
  SourceProcess source(kAllocated);
  ExpectArrives(source, 1, &device_);
  EXPECT_EQ(FakeCuda().imports(), kAllocations);
  FakeCuda().Fail("cuIpcOpenMemHandle", CUDA_ERROR_INVALID_VALUE);
  ExpectArrives(source, 1, &device_);  // opens none
  FakeCuda().Fail("cuIpcOpenMemHandle", CUDA_SUCCESS, 0, 0);
  EXPECT_EQ(FakeCuda().imports(), kAllocations);
  source.Send("detach");  // which waits for us
  EXPECT_EQ(FakeCuda().imports(), 0);
}

TEST_F(FakeCudaIpcTest, ImportsOfASourceThatWasKilledAreClosed) {
  SourceProcess source(kMapped);
  ExpectArrives(source, 1, &device_);
  EXPECT_GT(FakeCuda().imports(), 0);
  source.Kill();
  AwaitImports(0);
}

TEST_F(FakeCudaIpcTest, ATransportThatEndsClosesItsImports) {
  const SourceProcess source(kAllocated);
  ExpectArrives(source, 1, &device_);
  reader_.reset();
  AwaitImports(0);
}

class ManyTransfersTest : public FakeCudaIpcTest,
                          public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Memory, ManyTransfersTest, ::testing::Values(kAllocated, kMapped));

TEST_P(ManyTransfersTest, LeaveNoImportAndNoExportBehind) {
  SourceProcess source(GetParam());
  // Each thread that copies makes what it needs at its first transfer.
  for (int i = 0; i < 5; ++i) ExpectArrives(source, 1, &device_);
  const Kept here = Kept::Here(), there = source.WhatIsKept();
  for (int i = 0; i < 200; ++i) ExpectArrives(source, 1, &device_);
  ExpectNoGrowth(here, Kept::Here());
  ExpectNoGrowth(there, source.WhatIsKept());
}

TEST_F(FakeCudaIpcTest, AnEngineThatSleepsAndWakesOftenIsImportedAnewAndNotOnceMore) {
  SourceProcess source(kMapped);
  source.Send("sleep and wake");
  for (int i = 0; i < 5; ++i) ExpectArrives(source, 2, &device_);
  const Kept here = Kept::Here(), there = source.WhatIsKept();
  EXPECT_GT(here.imports, 0);
  for (int i = 0; i < 20; ++i) {
    source.Send("sleep and wake");
    EXPECT_EQ(FakeCuda().imports(), 0);
    ExpectArrives(source, 2, &device_);
  }
  ExpectNoGrowth(here, Kept::Here());
  ExpectNoGrowth(there, source.WhatIsKept());
}

// ---- memory that becomes another

TEST_F(CudaIpcTest, AnEngineThatSleptIsReadAnewThoughItsAddressesAreTheSame) {
  SourceProcess source(kMapped);
  ExpectArrives(source, 1, &device_);
  source.Send("sleep and wake");
  ExpectArrives(source, 2, &device_);
}

TEST_F(CudaIpcTest, MemoryThatWasMappedAnewBehindOurBackIsReadAsItIs) {
  SourceProcess source(kMapped);
  ExpectArrives(source, 1, &device_);
  source.Send("remap behind our back");
  ExpectArrives(source, 2, &device_);
}

TEST_F(CudaIpcTest, MappedMemoryWithoutAHandleIsLeftToOtherTransports) {
  const SourceProcess source(kUnexportable);
  EXPECT_THAT(FailureOf(source, &device_),
              Pair(SourceFailure::kConnect, AllOf(HasSubstr("expandable_segments:False"),
                                                  HasSubstr("no handle for other processes"))));
}

// ---- other devices

TEST_F(FakeCudaIpcTest, DevicesThatReachEachOtherCopyDirectly) {
  const SourceProcess source(kOnSecondDevice);
  ExpectArrives(source, 1, &device_);
  EXPECT_EQ(counters_->peer_access_bytes, Expected(1)->layout().bytes());
}

TEST_F(FakeCudaIpcTest, DevicesThatDoNotReachEachOtherCopyThroughTheHost) {
  FakeCuda().RefusePeers(true);
  const SourceProcess source(kOnSecondDevice);
  ExpectArrives(source, 1, &device_);
  EXPECT_EQ(counters_->staged_bytes, Expected(1)->layout().bytes());
  EXPECT_EQ(counters_->peer_access_bytes, 0);
}

// A device that is neither seen nor reached.
TEST_F(FakeCudaIpcTest, AnImportThatTheDriverRefusesIsLeftToOtherTransportsWithTheReason) {
  const SourceProcess source(kAllocated);
  FakeCuda().Fail("cuIpcOpenMemHandle", CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 0, 100);
  EXPECT_THAT(FailureOf(source, &device_),
              Pair(SourceFailure::kConnect, HasSubstr("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED")));
  FakeCuda().Fail("cuIpcOpenMemHandle", CUDA_SUCCESS, 0, 0);
}

// ---- memory of the host

TEST_F(CudaIpcTest, MemoryOfTheHostArrivesOnAGpu) {
  const SourceProcess source(kHost);
  ExpectArrives(source, 1, &device_);
  EXPECT_EQ(counters_->host_bytes, Expected(1)->layout().bytes());
}

TEST_F(CudaIpcTest, AGpusMemoryArrivesInTheHost) {
  const SourceProcess source(kAllocated);
  ExpectArrives(source, 1, nullptr);
  EXPECT_EQ(counters_->host_bytes, Expected(1)->layout().bytes());
}

TEST_F(CudaIpcTest, ShardsInBothKindsOfMemoryArriveInEither) {
  const SourceProcess source(kMixed);
  ExpectArrives(source, 1, &device_);
  ExpectArrives(source, 1, nullptr);
}

// ---- tiny tensors

// As a model of many small tensors in the arena of torch's allocator, with odd gaps between them.
TEST_F(CudaIpcTest, SixtyThousandTinyTensorsAreOneAllocationAndArePacked) {
  constexpr uint64_t kTensors = 61'000;
  ShardLayout::Spec spec{.segment_bytes = 262'144};
  StorageMemory published, received;
  const auto source_arena = *DeviceBuffer::Allocate(&Device(), kTensors * 160);
  const auto reader_arena = *DeviceBuffer::Allocate(&Device(), kTensors * 160);
  for (uint64_t i = 0; i < kTensors; ++i) {
    TensorSpec tensor;
    tensor.name = absl::StrCat("tensor.", i);
    tensor.dtype = DType::kU8;
    tensor.shape = {static_cast<int64_t>(1 + i * 7 % 149)};
    spec.tensors.push_back(std::move(tensor));
  }
  const auto layout = std::make_shared<const ShardLayout>(*ShardLayout::Build(std::move(spec)));
  uint64_t at = 1;
  for (const ShardLayout::Storage& storage : layout->storages()) {
    published.regions.push_back(Region(source_arena.address() + at, storage.bytes));
    received.regions.push_back(Region(reader_arena.address() + at, storage.bytes));
    at += storage.bytes + 1 + at % 11;
  }
  ASSERT_LE(at, source_arena.bytes());
  std::string weights(at, 0);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<char>(i * 2654435761 >> 16);
  device_.Write(source_arena.pointer(), weights);
  ASSERT_OK_AND_ASSIGN(published.device, device_.devices()->Register(published.regions));
  ASSERT_OK_AND_ASSIGN(received.device, device_.devices()->Register(received.regions));
  const auto from = std::make_shared<SegmentStore>(layout, published);
  const auto into = std::make_shared<SegmentStore>(layout, received);
  from->Publish(BufferGeneration(1));
  // A driver opens no handle of its own process; a GPU then copies the same pieces without one.
  if (IsFakeDriver()) FakeCuda().AllowOwnImports(true);
  const auto source = NewTransport();
  reader_ = NewTransport(counters_, /*import_own=*/IsFakeDriver());
  ASSERT_OK_AND_ASSIGN(const auto source_memory, source->Attach(from->regions()));
  ASSERT_OK_AND_ASSIGN(const auto reader_memory, reader_->Attach(into->regions()));
  TestHolder holder(from);
  source->AddHolder(kHolderWorker, &holder);
  InPlaceSink sink(into.get());
  auto pull = reader_->Open(holder.Target(source->endpoints()[0], layout), &sink);
  pull->Ask({SegmentIndex(0), SegmentIndex(layout->segment_count())});
  sink.AwaitSegments(layout->segment_count());
  if (IsFakeDriver()) {
    EXPECT_EQ(FakeCuda().imports(), 1);
  }
  EXPECT_EQ(counters_->same_device_bytes, layout->bytes());
  EXPECT_GE(counters_->kernel_pieces, kTensors);
  for (uint64_t i = 0; i < kTensors; i += 997) {
    const MemoryRegion& region = received.regions[i];
    std::string landed(region.bytes, 0);
    device_.Read(region.address, absl::MakeSpan(landed.data(), landed.size()));
    EXPECT_EQ(landed,
              weights.substr(reinterpret_cast<uint64_t>(region.address) - reader_arena.address(),
                             region.bytes))
        << i;
  }
  pull->Close();
  sink.AwaitClosed();
  source->RemoveHolder(kHolderWorker);
}

// ---- the end

// The bytes of a closed pull may not land: its owner frees the memory.
TEST_F(FakeCudaIpcTest, APullIsNotClosedWhileItsCopiesAreUnderWay) {
  const SourceProcess source(kAllocated);
  const auto received = NewShard(&device_);
  const auto attached = Attached(*reader_, *received);
  TestSink sink(received.get());
  FakeCuda().HoldStreams(true);
  auto pull = reader_->Open(Target(source, *received), &sink);
  pull->Ask(received->all());
  sink.AwaitBegun(1);
  while (counters_->same_device_bytes == 0) absl::SleepFor(absl::Milliseconds(1));
  pull->Close();
  EXPECT_FALSE(sink.closed());
  FakeCuda().HoldStreams(false);
  sink.AwaitClosed();
  const std::string landed = received->BytesOf(SegmentIndex(0));
  EXPECT_EQ(received->BytesOf(SegmentIndex(0)), landed);
}

TEST_F(FakeCudaIpcTest, APullWhoseCopiesAreUnderWayHoldsUpNoOther) {
  TransportLimits one_thread = PatientLimits();
  one_thread.data_threads = 1;
  const auto reader = NewTransport(counters_, /*import_own=*/false, one_thread);
  const SourceProcess source(kAllocated), source_in_host(kHost);
  const auto received = NewShard(&device_), other_received = NewShard(nullptr);
  const auto attached = Attached(*reader, *received);
  TestSink sink(received.get()), other_sink(other_received.get());
  FakeCuda().HoldStreams(true);
  auto pull = reader->Open(Target(source, *received), &sink);
  pull->Ask(received->all());
  sink.AwaitBegun(1);
  while (counters_->same_device_bytes == 0) absl::SleepFor(absl::Milliseconds(1));
  pull->Close();
  auto other = reader->Open(Target(source_in_host, *other_received), &other_sink);
  other->Ask(other_received->all());
  other_sink.AwaitSegments(other_received->segment_count());
  EXPECT_TRUE(other_received->Equals(*Expected(1)));
  EXPECT_FALSE(sink.closed()) << "the GPU still writes its memory";
  other->Close();
  other_sink.AwaitClosed();
  FakeCuda().HoldStreams(false);
  sink.AwaitClosed();
}

// The source has nothing to say while its memory is copied. A first copy takes long where kernels
// are loaded for it, and a fill would take that for silence.
TEST_F(FakeCudaIpcTest, WhatThisProcessCopiesByItselfIsASignOfLife) {
  const SourceProcess source(kAllocated);
  const auto received = NewShard(&device_);
  const auto attached = Attached(*reader_, *received);
  TestSink sink(received.get());
  FakeCuda().HoldStreams(true);
  auto pull = reader_->Open(Target(source, *received), &sink);
  pull->Ask(received->all());
  sink.AwaitBegun(received->segment_count());
  sink.AwaitAlive(5);
  EXPECT_THAT(sink.segments(), IsEmpty());
  FakeCuda().HoldStreams(false);
  sink.AwaitSegments(received->segment_count());
  pull->Close();
  sink.AwaitClosed();
}

// Nothing can be told before the copy has ended, as it may still write.
TEST_F(FakeCudaIpcTest, ASourceThatIsKilledWhileItsMemoryIsCopiedIsHeardOfOnceTheCopyHasEnded) {
  SourceProcess source(kAllocated);
  const auto received = NewShard(&device_);
  const auto attached = Attached(*reader_, *received);
  TestSink sink(received.get());
  FakeCuda().HoldStreams(true);
  auto pull = reader_->Open(Target(source, *received), &sink);
  pull->Ask(received->all());
  sink.AwaitBegun(received->segment_count());
  sink.AwaitAlive(1);
  const auto kept = source.KillButKeepSocketsOpen();
  EXPECT_THAT(kept, Not(IsEmpty()));
  FakeCuda().HoldStreams(false);
  EXPECT_EQ(
      sink.AwaitClosed(),
      std::pair(SourceFailure::kClosed, absl::StrCat("process ", source.process(), " has ended")));
}

TEST_F(CudaIpcTest, ADestinationThatItsOwnerHasFreedIsNoFailureOfTheSource) {
  const SourceProcess source(kAllocated);
  auto received = NewShard(&device_);
  const auto attached = Attached(*reader_, *received);
  TestSink sink(received.get());
  auto pull = reader_->Open(Target(source, *received), &sink);
  sink.AwaitAdmitted();
  received->FreeMemory();
  pull->Ask(received->all());
  EXPECT_EQ(sink.AwaitClosed().first, SourceFailure::kConnect);
  EXPECT_THAT(sink.segments(), IsEmpty());
}

TEST_F(CudaIpcTest, ASourceThatIsKilledIsHeardOf) {
  SourceProcess source(kAllocated);
  const auto received = NewShard(&device_);
  const auto attached = Attached(*reader_, *received);
  TestSink sink(received.get());
  auto pull = reader_->Open(Target(source, *received), &sink);
  sink.AwaitAdmitted();
  source.Kill();
  EXPECT_EQ(sink.AwaitClosed().first, SourceFailure::kClosed);
}

// ---- who can be reached

TEST_F(CudaIpcTest, WhoIsOutOfReachIsSaidWithTheReason) {
  const auto here = reader_->endpoints()[0];
  EXPECT_THAT(reader_->Reach(here),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("attached no GPU memory")));
  const auto shard = NewShard(&device_);
  auto attached = Attached(*reader_, *shard);
  EXPECT_OK(reader_->Reach(here));
  Endpoint elsewhere = here;
  elsewhere.address = "0000000000000000/1/tensorhub-1-a/0000:01:00.0";
  EXPECT_THAT(reader_->Reach(elsewhere),
              StatusIs(absl::StatusCode::kOutOfRange, "on another host"));
  elsewhere.address = "10.0.0.7:4711";
  EXPECT_THAT(reader_->Reach(elsewhere), StatusIs(absl::StatusCode::kInvalidArgument));
  attached.reset();
  EXPECT_FALSE(reader_->Reach(here).ok());
}

TEST(CudaIpcTransportTest, WhereThereIsNoDriverTheReasonIsSaid) {
  EXPECT_THAT(NewCudaIpcTransport({.driver = "/nowhere/libcuda.so.1"}),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("no CUDA driver here: "), HasSubstr("/nowhere"))));
}

TEST_F(FakeCudaIpcTest, TheEndpointNamesTheDevices) {
  ASSERT_OK_AND_ASSIGN(const auto address,
                       cuda_ipc::DeviceAddress::Parse(reader_->endpoints()[0].address));
  EXPECT_EQ(address.devices.size(), 2);
  EXPECT_EQ(address.devices[0], device_.pci_address());
}

TEST_F(CudaIpcTest, ThreadsAreNamedAndBlockSignals) {
  SourceProcess source(kAllocated);
  ExpectArrives(source, 1, &device_);
  // A thread names itself first thing, and each of them has done something by now: th-cuda-keep has
  // closed the imports.
  source.Send("detach");
  std::vector<std::string> names;
  for (const auto& [id, thread] : ThreadsOfThisProcess()) {
    if (thread.name.rfind("th-cuda-", 0) != 0) continue;
    names.push_back(thread.name);
    EXPECT_TRUE(thread.Blocks(SIGTERM)) << thread.name;
  }
  EXPECT_THAT(names,
              AllOf(Contains("th-cuda-0"), Contains("th-cuda-copy-0"), Contains("th-cuda-keep")));
}

}  // namespace
}  // namespace th

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--source") return th::SourceMain(argv[2]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
