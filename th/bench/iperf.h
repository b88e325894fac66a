// iperf3 beside our own measurement, where it is installed.
#ifndef TH_BENCH_IPERF_H_
#define TH_BENCH_IPERF_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace th {

// GB/s received, of the JSON that `iperf3 -c --json` prints. INVALID_ARGUMENT when it is none, or
// its error.
absl::StatusOr<double> GigabytesPerSecondOfIperf(absl::string_view text);

// Sends so many bytes over loopback. NOT_FOUND when iperf3 is not installed; CANCELLED soon after
// `stopped()`.
absl::StatusOr<double> MeasureIperf(uint64_t bytes, uint32_t connections,
                                    const std::function<bool()>& stopped);

}  // namespace th

#endif  // TH_BENCH_IPERF_H_
