#include "th/transfer/two_process_benchmark.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

constexpr BufferId kBuffer(1);
constexpr uint64_t kFirstName = 100'000'000;

std::vector<iovec> Allocate(uint64_t bytes, uint64_t tensors) {
  if (tensors == 1) {
    return {{mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0),
             bytes}};
  }
  std::vector<iovec> allocated;
  for (uint64_t i = 0; i < tensors; ++i) {
    const uint64_t size = i + 1 < tensors ? bytes / tensors : bytes - bytes / tensors * i;
    allocated.push_back({std::memset(new char[size], 0, size), size});
  }
  return allocated;
}

std::shared_ptr<SegmentStore> StoreOf(const std::vector<iovec>& tensors,
                                      ChecksumAlgorithm checksum) {
  ShardLayout::Spec spec{.checksum = checksum};
  std::vector<void*> data;
  for (const iovec& each : tensors) {
    TensorSpec tensor;
    // As wide as the others: the layout goes by names.
    tensor.name = "weights." + std::to_string(kFirstName + data.size());
    tensor.dtype = DType::kU8;
    tensor.shape = {static_cast<int64_t>(each.iov_len)};
    spec.tensors.push_back(std::move(tensor));
    data.push_back(each.iov_base);
  }
  auto layout = std::make_shared<const ShardLayout>(*ShardLayout::Build(std::move(spec)));
  return std::make_shared<SegmentStore>(std::move(layout), std::move(data));
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
  void OnSourceFailed(FillSourceFailed lost) override {
    std::fprintf(stderr, "lost: %s\n", lost.detail.c_str());
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

BenchmarkShard::BenchmarkShard(uint64_t size, ChecksumAlgorithm checksum, uint64_t tensors)
    : bytes(size),
      tensors(Allocate(size, tensors)),
      data(tensors == 1 ? static_cast<char*>(this->tensors[0].iov_base) : nullptr),
      store(StoreOf(this->tensors, checksum)) {}

void BenchmarkShard::Write() {
  for (const iovec& tensor : tensors) {
    for (uint64_t i = 0; i + sizeof(uint64_t) <= tensor.iov_len; i += sizeof(uint64_t)) {
      const uint64_t value = (reinterpret_cast<uintptr_t>(&tensor) + i) * 0x9E3779B97F4A7C15;
      std::memcpy(static_cast<char*>(tensor.iov_base) + i, &value, sizeof(value));
    }
  }
}

void BenchmarkShard::Publish() {
  store->Publish(BufferGeneration(1));
  const std::atomic<bool> never{false};
  if (!store->Seal(never).ok()) std::exit(1);
}

double SecondsToReceive(const std::shared_ptr<SegmentStore>& into, Transport* transport,
                        const Endpoint& source, const ReplicatorLimits& limits, WorkerId worker) {
  into->BeginFill(BufferGeneration(1), {});
  EndOfFill end;
  const absl::Time start = MonotonicNow();
  auto fill = Fill::Start({.store = into, .limits = limits}, {transport}, &end);
  AssignedSource assigned;
  assigned.buffer = {worker, kBuffer};
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
