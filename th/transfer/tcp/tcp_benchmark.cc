// Question: how close does a transfer over TCP, checksums on, come to a raw blocking send/recv of
// the same cold bytes over as many connections with the same congestion control?
//
//   bazel run -c opt //th/transfer/tcp:tcp_benchmark -- [MiB] [rounds]
//
// Source and reader are two processes. Raw and transfer alternate, so that a neighbour's load hits
// both; read the ratio, not the figures. The sums were sealed beforehand.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "th/transfer/monotonic_clock.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/tcp/tcp_transport.h"
#include "th/transfer/two_process_benchmark.h"

namespace th::stream {
namespace {

constexpr int kConnections = 2;
constexpr size_t kCall = size_t{1} << 20;

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
void InStripes(const BenchmarkShard& shard, const Move& move) {
  std::vector<std::thread> threads;
  threads.reserve(kConnections);
  const uint64_t stripe = shard.bytes / kConnections;
  for (int i = 0; i < kConnections; ++i) {
    threads.emplace_back([&, i] { move(i, shard.data + i * stripe, stripe); });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- the source's process

// Serves both ways until the reader closes its end of `control`.
void RunSource(int control, uint64_t bytes) {
  BenchmarkShard shard(bytes, ChecksumAlgorithm::kXxh3Leaves);
  shard.Write();
  shard.Publish();
  AdmitsAll holder(shard.store);
  auto transport = *NewTcpTransport({});
  transport->AddHolder(kBenchmarkWorker, &holder);
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
    InStripes(shard, [&](int i, char* data, uint64_t n) { WriteAll(raw[i].fd(), data, n); });
  }
  transport->RemoveHolder(kBenchmarkWorker);
}

// ---- the reader's process

double SecondsSince(absl::Time start) { return absl::ToDoubleSeconds(MonotonicNow() - start); }

double RunRaw(BenchmarkShard& shard, int control, const std::vector<Socket>& raw) {
  const absl::Time start = MonotonicNow();
  WriteAll(control, "g", 1);
  InStripes(shard, [&](int i, char* data, uint64_t n) { ReadAll(raw[i].fd(), data, n); });
  return SecondsSince(start);
}

void RunReader(int control, uint64_t bytes, int rounds) {
  BenchmarkShard shard(bytes, ChecksumAlgorithm::kXxh3Leaves);
  shard.Write();
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
  const Endpoint source{.address = "127.0.0.1:" + std::to_string(ports[0])};
  std::vector<double> ratios;
  for (int round = 0; round < rounds; ++round) {
    const double raw_seconds = RunRaw(shard, control, raw);
    const double seconds = SecondsToReceive(shard, transport.get(), source, {});
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
  return RunInTwoProcesses([&](int control) { RunSource(control, bytes); },
                           [&](int control) { RunReader(control, bytes, rounds); });
}

}  // namespace
}  // namespace th::stream

int main(int argc, char** argv) { return th::stream::Main(argc, argv); }
