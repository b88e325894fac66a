// How fast a version moves from one holder to some readers, beside what the machine can do.
//
// The question: which part of the raw speed is left when a version is resolved, pulled, checked and
// committed? Over TCP that is blocking send and recv over as many connections; on the same host it
// is memcpy out of shared memory by as many threads; between GPUs the driver's own copy; over RDMA
// ib_read_bw over the same devices, if it is there. Each round publishes other bytes, evicts both
// sides' caches, and measures the update and the raw probe in turn, in the same processes over the
// same memory (ib_read_bw has processes of its own); the order alternates from round to round, and
// medians count. The first round warms up. A reader's time ends when Update returns: the bytes are
// in its buffer and checked.
#ifndef TH_BENCH_TRANSFER_BENCH_H_
#define TH_BENCH_TRANSFER_BENCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "th/bench/perftest.h"
#include "th/controlled_rank/local_cluster.h"

namespace th {

enum class TransferBaseline : uint8_t {
  kTcp,           // raw_probe.h
  kSharedMemory,  // memory_probe.h
  kGpuCopy,       // the driver's copy from the holder's GPU to each reader's
  kRdma           // perftest.h, between processes of its own
};

struct TransferBenchOptions {
  LocalClusterOptions cluster;
  uint32_t readers = 1;
  uint32_t rounds = 5;  // besides the first
  uint64_t evict_bytes = 0;
  TransferBaseline baseline = TransferBaseline::kTcp;
  // The GPUs of this machine that the weights are on: the holder's on the first, those of the
  // readers on the others in turn, or all on the only one. 0: in host memory.
  uint32_t gpus = 0;
  std::vector<RdmaPath> rdma_paths;  // with kRdma, those of a pull
  // A line when the processes are started and one after each round; may be empty.
  std::function<void(const std::string& line)> progress;
  // Asked while a program of others runs as the baseline, true to end it; may be empty.
  std::function<bool()> interrupted;
};

struct TransferRound {
  double update_seconds = 0;  // from the first reader's start to the last one's end
  double probe_seconds = 0;
  double publish_seconds = 0;  // how long Publish kept its caller, the slowest rank
  uint64_t holder_bytes_sent = 0;
  uint64_t peak_extra_bytes = 0;  // of any reader
  // The most that any reader received beside the version and threw away.
  uint64_t packing_overhead_bytes = 0;
  uint64_t control_bytes = 0;  // of any rank, from one round's publish to the next one's
  // Processor time during the update, of the holder's process and of all readers'.
  double holder_cpu_seconds = 0;
  double readers_cpu_seconds = 0;
  // The most that was resident in any rank's process during the update, beyond what was before.
  uint64_t rss_growth_bytes = 0;
};

struct TransferMeasurement {
  uint64_t bytes = 0;  // of the version
  uint64_t tensors = 0;
  uint32_t readers = 1;
  bool verified = false;              // readers have the holder's SHA-256 sums
  std::string congestion_control;     // of the raw probe; empty: it was no TCP
  std::string baseline_missing;       // why there is none; empty: there is
  std::vector<TransferRound> rounds;  // without the first
};

absl::StatusOr<TransferMeasurement> MeasureTransfer(const TransferBenchOptions& options);

// The middle one; of an even number the mean of the two. 0 of none.
double Median(std::vector<double> values);

// Pure: what a measurement comes to. `iperf3_gbytes_per_s` 0: none was taken.
struct TransferFigures {
  double gbytes_per_s = 0;  // bytes of the version over the last reader's seconds
  double last_reader_seconds = 0;
  double baseline_gbytes_per_s = 0;  // 0: there is none
  double ratio = 0;                  // 0: likewise
  double holder_copies_sent = 0;
  double publish_seconds = 0;  // the worst
  uint64_t peak_extra_bytes = 0;
  uint64_t packing_overhead_bytes = 0;  // the worst
  uint64_t control_bytes = 0;
  uint64_t rss_growth_bytes = 0;  // the worst
  // Processor seconds of each side for a GB (1e9 bytes) that a reader received, all readers' added.
  double holder_cpu_seconds_per_gb = 0;
  double readers_cpu_seconds_per_gb = 0;
};
TransferFigures FiguresOf(const TransferMeasurement& measurement);
nlohmann::json ToJson(const TransferMeasurement& measurement);

// Enough to push everything else out of this machine's caches.
uint64_t DefaultEvictBytes();

}  // namespace th

#endif  // TH_BENCH_TRANSFER_BENCH_H_
