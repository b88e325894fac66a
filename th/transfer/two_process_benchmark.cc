#include "th/transfer/two_process_benchmark.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

constexpr BufferId kBuffer(1);

char* MapBacked(uint64_t bytes) {
  return static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
}

std::shared_ptr<SegmentStore> StoreOf(char* data, uint64_t bytes, ChecksumAlgorithm checksum) {
  TensorSpec tensor;
  tensor.name = "weights";
  tensor.dtype = DType::kU8;
  tensor.shape = {static_cast<int64_t>(bytes)};
  auto layout = std::make_shared<const ShardLayout>(
      *ShardLayout::Build({.tensors = {tensor}, .checksum = checksum}));
  return std::make_shared<SegmentStore>(std::move(layout), std::vector<void*>{data});
}

class EndOfFill : public FillObserver {
 public:
  void AwaitReceived() { Await(&received_); }
  void AwaitStopped() { Await(&stopped_); }
  void OnFirstWrite() override {}
  void OnProgress(FillProgressed) override {}
  void OnAllReceived() override { Set(&received_); }
  void OnComplete(Digest) override {}
  void OnFailed(absl::Status) override { std::exit(1); }
  void OnSourceFailed(AssignmentId, BufferAddress, SourceFailure, std::string detail) override {
    std::fprintf(stderr, "lost: %s\n", detail.c_str());
    std::exit(1);
  }
  void OnSourceSuspected(AssignmentId, BufferAddress, std::string detail) override {
    std::fprintf(stderr, "suspected: %s\n", detail.c_str());
    std::exit(1);
  }
  void OnStopped() override { Set(&stopped_); }

 private:
  void Await(bool* flag) {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(flag));
  }
  void Set(bool* flag) {
    absl::MutexLock lock(&mu_);
    *flag = true;
  }
  absl::Mutex mu_;
  bool received_ = false, stopped_ = false;  // under mu_
};

}  // namespace

BenchmarkShard::BenchmarkShard(uint64_t size, ChecksumAlgorithm checksum)
    : bytes(size), data(MapBacked(size)), store(StoreOf(data, size, checksum)) {}

void BenchmarkShard::Write() {
  for (uint64_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    const uint64_t value = i * 0x9E3779B97F4A7C15;
    std::memcpy(data + i, &value, sizeof(value));
  }
}

void BenchmarkShard::Publish() {
  store->Publish(BufferGeneration(1));
  const std::atomic<bool> never{false};
  if (!store->Seal(never).ok()) std::exit(1);
}

double SecondsToReceive(BenchmarkShard& into, Transport* transport, const Endpoint& source,
                        const ReplicatorLimits& limits) {
  into.store->BeginFill(BufferGeneration(1), {});
  EndOfFill end;
  const absl::Time start = MonotonicNow();
  auto fill = Fill::Start({.store = into.store, .limits = limits}, {transport}, &end);
  AssignedSource assigned;
  assigned.buffer = {kBenchmarkWorker, kBuffer};
  assigned.endpoints = {source};
  assigned.generation = BufferGeneration(1);
  assigned.capability.claims.source = assigned.buffer;
  fill->SetSources(AssignmentId(1), {assigned});
  end.AwaitReceived();
  const double seconds = absl::ToDoubleSeconds(MonotonicNow() - start);
  fill->Stop();
  end.AwaitStopped();
  return seconds;
}

int RunInTwoProcesses(absl::FunctionRef<void(int control)> source,
                      absl::FunctionRef<void(int control)> reader) {
  int control[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, control) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) {
    close(control[0]);
    source(control[1]);
    std::exit(0);
  }
  close(control[1]);
  reader(control[0]);
  close(control[0]);
  waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace th
