// ib_read_bw of perftest beside our own transfers over RDMA, where it is installed.
//
//   TH_ASSIGN_OR_RETURN(const std::vector<RdmaPath> paths, PathsOfAPull(/*connections=*/2));
//   const PerftestOptions options{.paths = paths, .readers = 1, .bytes = 1 << 30};
//   TH_ASSIGN_OR_RETURN(const double gbytes_per_s, MeasurePerftest(options, stopped));
//
// It reads over the very devices that the connections of a pull between two processes of this
// machine take, with as many queue pairs, messages of 1 MiB, and the transport's own timeout. Its
// depth is 4 READs a queue pair: deeper queues make a busy peer's READs time out.
#ifndef TH_BENCH_PERFTEST_H_
#define TH_BENCH_PERFTEST_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace th {

// A device's port as perftest names it.
struct RdmaPort {
  std::string device;
  uint8_t port = 1;
  uint32_t gid_index = 0;

  friend bool operator==(const RdmaPort&, const RdmaPort&) = default;
};
// Two ports that connections join, and how many.
struct RdmaPath {
  RdmaPort source, reader;
  uint32_t connections = 1;
};

// The paths of a pull of so many connections between two processes of this machine. Opens the
// devices for a moment. UNAVAILABLE: no device can be used, with the reason of each and what to do.
absl::StatusOr<std::vector<RdmaPath>> PathsOfAPull(uint32_t connections);

struct PerftestOptions {
  std::vector<RdmaPath> paths;
  uint32_t readers = 1;  // that read at once
  uint64_t bytes = 0;    // that each of them reads
};

// GB/s that the slowest reader gets, over all its paths together. NOT_FOUND: ib_read_bw is not
// installed. UNAVAILABLE: it failed in each of five attempts, with how it ended. CANCELLED soon
// after `stopped()`.
absl::StatusOr<double> MeasurePerftest(const PerftestOptions& options,
                                       const std::function<bool()>& stopped);

// GB/s of the report that ib_read_bw's client prints. INVALID_ARGUMENT when it is none.
absl::StatusOr<double> GigabytesPerSecondOfPerftest(absl::string_view text);

// The arguments of ib_read_bw for one path, `bytes` of one reader; the client's end with the
// server's address. Pure.
struct PerftestArguments {
  std::vector<std::string> server, client;
};
PerftestArguments ArgumentsOfPerftest(const std::string& program, const RdmaPath& path,
                                      uint64_t bytes, uint16_t tcp_port);

}  // namespace th

#endif  // TH_BENCH_PERFTEST_H_
