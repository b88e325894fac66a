// Question: how fast is a transfer over RDMA between two devices of this machine, beside ib_read_bw
// over the same two?
//
//   bazel build //th/transfer/ibverbs:ibverbs_benchmark
//   ibverbs_benchmark SOURCE_DEVICE READER_DEVICE [MiB] [rounds] [checksum: on|off] [connections]
//
// Source and reader are two processes. Prints a line a round, then the median, in MB/s, and how the
// READs were posted.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "th/transfer/fill.h"
#include "th/transfer/ibverbs/ibverbs_transport.h"
#include "th/transfer/monotonic_clock.h"

namespace th::ibverbs {
namespace {

constexpr WorkerId kWorker(1);
constexpr BufferId kBuffer(1);
// An emulated machine may stand still for longer than a fill waits by default.
constexpr absl::Duration kPatience = absl::Seconds(20);

struct Arguments {
  std::string source_device, reader_device;
  uint64_t bytes = 0;
  int rounds = 0;
  bool checksum = false;
  uint32_t connections = 0;
};

TransportLimits LimitsFor(const Arguments& arguments) {
  TransportLimits limits;
  limits.connections_per_pull = arguments.connections;
  limits.admission_silence = limits.admission_timeout = limits.connect_timeout = kPatience;
  return limits;
}

struct Buffer {
  explicit Buffer(const Arguments& arguments) {
    data = static_cast<char*>(mmap(nullptr, arguments.bytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    TensorSpec tensor;
    tensor.name = "weights";
    tensor.dtype = DType::kU8;
    tensor.shape = {static_cast<int64_t>(arguments.bytes)};
    layout = std::make_shared<const ShardLayout>(
        *ShardLayout::Build({.tensors = {tensor},
                             .checksum = arguments.checksum ? ChecksumAlgorithm::kXxh3Leaves
                                                            : ChecksumAlgorithm::kNone}));
    store = std::make_shared<SegmentStore>(layout, std::vector<void*>{data});
  }
  char* data = nullptr;
  std::shared_ptr<const ShardLayout> layout;
  std::shared_ptr<SegmentStore> store;
};

class AdmitsAll : public HolderDelegate {
 public:
  explicit AdmitsAll(std::shared_ptr<SegmentStore> store) : store_(std::move(store)) {}
  void OnAdmission(AdmissionRequest, std::function<void(Admission)> decide) override {
    decide({.store = store_, .generation = BufferGeneration(1)});
  }
  void OnReaderBytes(TransferId, uint64_t) override {}
  void OnReaderReleased(TransferId, uint64_t) override {}

 private:
  const std::shared_ptr<SegmentStore> store_;
};

std::unique_ptr<Transport> Begin(const Arguments& arguments, const std::string& device,
                                 std::shared_ptr<ReadCounters> counters) {
  auto transport = NewIbverbsTransport({.devices = {device},
                                        .limits = LimitsFor(arguments),
                                        .deadlines = {.probe = kPatience, .read = kPatience},
                                        .counters = std::move(counters)});
  if (transport.ok()) return *std::move(transport);
  std::fprintf(stderr, "%s\n", transport.status().ToString().c_str());
  std::exit(1);
}

// Serves until the reader closes its end of `control`.
void RunSource(int control, const Arguments& arguments) {
  Buffer buffer(arguments);
  for (uint64_t i = 0; i < arguments.bytes; i += sizeof(uint64_t)) {
    const uint64_t value = i * 0x9E3779B97F4A7C15;
    std::memcpy(buffer.data + i, &value, sizeof(value));
  }
  buffer.store->Publish(BufferGeneration(1));
  const std::atomic<bool> never{false};
  if (!buffer.store->Seal(never).ok()) std::exit(1);
  AdmitsAll holder(buffer.store);
  auto transport = Begin(arguments, arguments.source_device, nullptr);
  const auto memory = transport->Attach(buffer.store->regions());
  if (!memory.ok()) std::exit(1);
  transport->AddHolder(kWorker, &holder);
  const std::string address = transport->endpoints()[0].address;
  if (write(control, address.data(), address.size()) < 0) std::exit(1);
  char end = 0;
  while (read(control, &end, 1) == 1) continue;
  transport->RemoveHolder(kWorker);
}

class Done : public FillObserver {
 public:
  void Await(bool Done::*flag) {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&(this->*flag)));
  }
  void OnFirstWrite() override {}
  void OnProgress(FillProgressed) override {}
  void OnAllReceived() override { Set(&received); }
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
  void OnStopped() override { Set(&stopped); }

  bool received = false, stopped = false;  // under mu_

 private:
  void Set(bool* flag) {
    absl::MutexLock lock(&mu_);
    *flag = true;
  }
  absl::Mutex mu_;
};

double RunTransfer(Buffer& buffer, Transport* transport, const std::string& address) {
  buffer.store->BeginFill(BufferGeneration(1), {});
  Done done;
  ReplicatorLimits patient;
  patient.silence = kPatience;
  const absl::Time start = MonotonicNow();
  auto fill = Fill::Start({.store = buffer.store, .limits = patient}, {transport}, &done);
  AssignedSource source;
  source.buffer = {kWorker, kBuffer};
  source.endpoints = {{.address = address, .transport = kIbverbsTransport, .site = ""}};
  source.generation = BufferGeneration(1);
  source.capability.claims.source = source.buffer;
  fill->SetSources(AssignmentId(1), {source});
  done.Await(&Done::received);
  const double seconds = absl::ToDoubleSeconds(MonotonicNow() - start);
  fill->Stop();
  done.Await(&Done::stopped);
  return seconds;
}

void RunReader(int control, const Arguments& arguments) {
  Buffer buffer(arguments);
  const auto counters = std::make_shared<ReadCounters>();
  auto transport = Begin(arguments, arguments.reader_device, counters);
  const auto memory = transport->Attach(buffer.store->regions());
  if (!memory.ok()) std::exit(1);
  char address[256] = {};
  if (read(control, address, sizeof(address) - 1) <= 0) std::exit(1);
  std::vector<double> rates;
  for (int round = 0; round < arguments.rounds; ++round) {
    const double seconds = RunTransfer(buffer, transport.get(), address);
    rates.push_back(static_cast<double>(arguments.bytes) / seconds / 1e6);
    std::printf("%.1f MB/s\n", rates.back());
  }
  std::sort(rates.begin(), rates.end());
  transport.reset();
  std::printf("median %.1f MB/s; READs posted %llu, signalled %llu, most outstanding %u\n",
              rates[rates.size() / 2], static_cast<unsigned long long>(counters->posted.load()),
              static_cast<unsigned long long>(counters->signalled.load()),
              counters->most_outstanding.load());
}

int Main(int argc, char** argv) {
  if (argc < 3) return 64;
  Arguments arguments;
  arguments.source_device = argv[1];
  arguments.reader_device = argv[2];
  arguments.bytes = (argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 256) << 20;
  arguments.rounds = argc > 4 ? std::atoi(argv[4]) : 5;
  arguments.checksum = argc > 5 && std::string(argv[5]) == "on";
  arguments.connections = argc > 6 ? static_cast<uint32_t>(std::atoi(argv[6])) : 2;
  if (arguments.bytes == 0 || arguments.rounds <= 0) return 64;
  int control[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, control) != 0) return 1;
  const pid_t source = fork();
  if (source == 0) {
    close(control[0]);
    RunSource(control[1], arguments);
    std::exit(0);
  }
  close(control[1]);
  RunReader(control[0], arguments);
  close(control[0]);
  waitpid(source, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace th::ibverbs

int main(int argc, char** argv) { return th::ibverbs::Main(argc, argv); }
