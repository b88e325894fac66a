// Question: how fast is a transfer over RDMA between two devices of this machine, beside ib_read_bw
// over the same two? And what do many tensors, each allocated by itself, cost beside one of the
// same bytes?
//
//   bazel build //th/transfer/ibverbs:ibverbs_benchmark
//   ibverbs_benchmark SOURCE_DEVICE READER_DEVICE [MiB] [rounds] [checksum: on|off] [connections]
//                     [tensors]
//
// Source and reader are two processes. Prints a line a round, then the median, in MB/s, and how the
// READs were posted.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "th/transfer/ibverbs/ibverbs_transport.h"
#include "th/transfer/two_process_benchmark.h"

namespace th::ibverbs {
namespace {

// An emulated machine may stand still for longer than a fill waits by default.
constexpr absl::Duration kPatience = absl::Seconds(20);

struct Arguments {
  std::string source_device, reader_device;
  uint64_t bytes = 0;
  int rounds = 0;
  bool checksum = false;
  uint32_t connections = 0;
  uint64_t tensors = 1;
};

TransportLimits LimitsFor(const Arguments& arguments) {
  TransportLimits limits;
  limits.connections_per_pull = arguments.connections;
  limits.admission_silence = limits.admission_timeout = limits.connect_timeout = kPatience;
  return limits;
}

ChecksumAlgorithm ChecksumOf(const Arguments& arguments) {
  return arguments.checksum ? ChecksumAlgorithm::kXxh3Leaves : ChecksumAlgorithm::kNone;
}

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
  BenchmarkShard shard(arguments.bytes, ChecksumOf(arguments), arguments.tensors);
  shard.Write();
  shard.Publish();
  AdmitsAll holder(shard.store);
  auto transport = Begin(arguments, arguments.source_device, nullptr);
  const auto memory = transport->Attach(shard.store->regions());
  if (!memory.ok()) std::exit(1);
  transport->AddHolder(kBenchmarkWorker, &holder);
  const std::string address = transport->endpoints()[0].address;
  if (write(control, address.data(), address.size()) < 0) std::exit(1);
  char end = 0;
  while (read(control, &end, 1) == 1) continue;
  transport->RemoveHolder(kBenchmarkWorker);
}

void RunReader(int control, const Arguments& arguments) {
  BenchmarkShard shard(arguments.bytes, ChecksumOf(arguments), arguments.tensors);
  const auto counters = std::make_shared<ReadCounters>();
  auto transport = Begin(arguments, arguments.reader_device, counters);
  const auto memory = transport->Attach(shard.store->regions());
  if (!memory.ok()) std::exit(1);
  char address[256] = {};
  if (read(control, address, sizeof(address) - 1) <= 0) std::exit(1);
  const Endpoint source{.address = address, .transport = kIbverbsTransport, .site = ""};
  ReplicatorLimits patient;
  patient.silence = kPatience;
  std::vector<double> rates;
  for (int round = 0; round < arguments.rounds; ++round) {
    const double seconds = SecondsToReceive(shard.store, transport.get(), source, patient);
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
  arguments.tensors = argc > 7 ? std::strtoull(argv[7], nullptr, 10) : 1;
  if (arguments.bytes == 0 || arguments.rounds <= 0 || arguments.tensors == 0 ||
      arguments.tensors > arguments.bytes) {
    return 64;
  }
  return RunInTwoProcesses([&](int control) { RunSource(control, arguments); },
                           [&](int control) { RunReader(control, arguments); });
}

}  // namespace
}  // namespace th::ibverbs

int main(int argc, char** argv) { return th::ibverbs::Main(argc, argv); }
