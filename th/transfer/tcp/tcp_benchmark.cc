// Question: how close does a transfer over TCP, checksums on, come to a raw blocking send/recv of
// the same cold bytes over as many connections with the same congestion control?
//
//   bazel run -c opt //th/transfer/tcp:tcp_benchmark -- [MiB] [rounds]
//
// Source and reader are two processes. Raw and transfer alternate, so that a neighbour's load hits
// both; read the ratio, not the figures. The sums were sealed beforehand.
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
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "th/transfer/fill.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/tcp/tcp_transport.h"

namespace th::stream {
namespace {

constexpr int kConnections = 2;
constexpr size_t kCall = size_t{1} << 20;
constexpr WorkerId kWorker(1);
constexpr BufferId kBuffer(1);

struct Buffer {
  explicit Buffer(uint64_t size) : bytes(size) {
    data = static_cast<char*>(mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    for (uint64_t i = 0; i < size; i += sizeof(uint64_t)) {
      const uint64_t value = i * 0x9E3779B97F4A7C15;
      std::memcpy(data + i, &value, sizeof(value));
    }
    TensorSpec tensor;
    tensor.name = "weights";
    tensor.dtype = DType::kU8;
    tensor.shape = {static_cast<int64_t>(size)};
    layout = std::make_shared<const ShardLayout>(*ShardLayout::Build({.tensors = {tensor}}));
    store = std::make_shared<SegmentStore>(layout, std::vector<void*>{data});
  }
  uint64_t bytes;
  char* data;
  std::shared_ptr<const ShardLayout> layout;
  std::shared_ptr<SegmentStore> store;
};

void WriteAll(int fd, const void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = send(fd, static_cast<const char*>(data) + done, std::min(kCall, bytes - done),
                           MSG_NOSIGNAL);
    if (n <= 0) std::exit(1);
    done += static_cast<size_t>(n);
  }
}

void ReadAll(int fd, void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = recv(fd, static_cast<char*>(data) + done, std::min(kCall, bytes - done), 0);
    if (n <= 0) std::exit(1);
    done += static_cast<size_t>(n);
  }
}

// Each connection carries a stripe.
template <typename Move>
void InStripes(const Buffer& buffer, const Move& move) {
  std::vector<std::thread> threads;
  threads.reserve(kConnections);
  const uint64_t stripe = buffer.bytes / kConnections;
  for (int i = 0; i < kConnections; ++i) {
    threads.emplace_back([&, i] { move(i, buffer.data + i * stripe, stripe); });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- the source's process

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

// Serves both ways until the reader closes its end of `control`.
void RunSource(int control, uint64_t bytes) {
  Buffer buffer(bytes);
  buffer.store->Publish(BufferGeneration(1));
  const std::atomic<bool> never{false};
  if (!buffer.store->Seal(never).ok()) std::exit(1);
  AdmitsAll holder(buffer.store);
  auto transport = *NewTcpTransport({});
  transport->AddHolder(kWorker, &holder);
  Socket listener(::socket(AF_INET, SOCK_STREAM, 0));
  const SocketAddress any = *SocketAddress::Parse("127.0.0.1:0");
  if (bind(listener.fd(), any.get(), any.size()) != 0 || listen(listener.fd(), 8) != 0)
    std::exit(1);
  const uint16_t ports[2] = {SocketAddress::Parse(transport->endpoints()[0].address)->port(),
                             SocketAddress::OfSelf(listener.fd()).port()};
  WriteAll(control, ports, sizeof(ports));
  std::vector<Socket> raw;
  for (int i = 0; i < kConnections; ++i) {
    raw.emplace_back(accept(listener.fd(), nullptr, nullptr));
    TuneTcpConnection(raw.back().fd(), "");
  }
  for (char go = 0; recv(control, &go, 1, 0) == 1;) {
    InStripes(buffer, [&](int i, char* data, uint64_t n) { WriteAll(raw[i].fd(), data, n); });
  }
  transport->RemoveHolder(kWorker);
}

// ---- the reader's process

class Done : public FillObserver {
 public:
  void Await() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&stopped_));
  }
  void AwaitReceived() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&received_));
  }
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
  void Set(bool* flag) {
    absl::MutexLock lock(&mu_);
    *flag = true;
  }
  absl::Mutex mu_;
  bool received_ = false, stopped_ = false;
};

double SecondsSince(absl::Time start) { return absl::ToDoubleSeconds(MonotonicNow() - start); }

double RunTransfer(Buffer& buffer, Transport* transport, uint16_t port) {
  buffer.store->BeginFill(BufferGeneration(1), {});
  Done done;
  const absl::Time start = MonotonicNow();
  auto fill = Fill::Start({.store = buffer.store}, {transport}, &done);
  AssignedSource source;
  source.buffer = {kWorker, kBuffer};
  source.endpoints = {{.address = "127.0.0.1:" + std::to_string(port)}};
  source.generation = BufferGeneration(1);
  source.capability.claims.source = source.buffer;
  fill->SetSources(AssignmentId(1), {source});
  done.AwaitReceived();
  const double seconds = SecondsSince(start);
  fill->Stop();
  done.Await();
  return seconds;
}

double RunRaw(Buffer& buffer, int control, const std::vector<Socket>& raw) {
  const absl::Time start = MonotonicNow();
  WriteAll(control, "g", 1);
  InStripes(buffer, [&](int i, char* data, uint64_t n) { ReadAll(raw[i].fd(), data, n); });
  return SecondsSince(start);
}

void RunReader(int control, uint64_t bytes, int rounds) {
  Buffer buffer(bytes);
  uint16_t ports[2];
  ReadAll(control, ports, sizeof(ports));
  auto transport = *NewTcpTransport({});
  std::vector<Socket> raw;
  for (int i = 0; i < kConnections; ++i) {
    const SocketAddress address = *SocketAddress::Parse("127.0.0.1:" + std::to_string(ports[1]));
    raw.emplace_back(::socket(AF_INET, SOCK_STREAM, 0));
    if (connect(raw.back().fd(), address.get(), address.size()) != 0) std::exit(1);
    TuneTcpConnection(raw.back().fd(), "");
  }
  std::vector<double> ratios;
  for (int round = 0; round < rounds; ++round) {
    const double raw_seconds = RunRaw(buffer, control, raw);
    const double seconds = RunTransfer(buffer, transport.get(), ports[0]);
    ratios.push_back(raw_seconds / seconds);
    std::printf("raw %.2f GB/s, transfer %.2f GB/s, ratio %.2f\n", bytes / raw_seconds / 1e9,
                bytes / seconds / 1e9, ratios.back());
  }
  std::sort(ratios.begin(), ratios.end());
  std::printf("median ratio %.2f over %d connections\n", ratios[ratios.size() / 2], kConnections);
}

int Main(int argc, char** argv) {
  const uint64_t bytes = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1024) << 20;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  if (bytes == 0 || rounds <= 0) return 64;
  int control[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, control) != 0) return 1;
  const pid_t source = fork();
  if (source == 0) {
    close(control[0]);
    RunSource(control[1], bytes);
    std::exit(0);
  }
  close(control[1]);
  RunReader(control[0], bytes, rounds);
  close(control[0]);
  waitpid(source, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace th::stream

int main(int argc, char** argv) { return th::stream::Main(argc, argv); }
