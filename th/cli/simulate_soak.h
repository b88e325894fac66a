// th simulate --soak: fresh seeds in as many processes as there are cores, for so long.
#ifndef TH_CLI_SIMULATE_SOAK_H_
#define TH_CLI_SIMULATE_SOAK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace th {

struct SoakOptions {
  std::string program;  // of `th`, which runs the seeds of one batch and reports them as JSON
  std::string folder;   // for what the processes write on stderr
  absl::Duration duration;
  uint64_t first_seed = 1;
  uint32_t processes = 1;
  uint32_t batch = 200;                                // seeds of one process
  std::function<void(const std::string&)> print_line;  // a line for people
  std::function<bool(absl::Duration)> stopped;         // whether a stop was asked for in that time
};

struct SoakResult {
  uint64_t first_seed = 0;
  uint64_t seeds = 0;  // that were run whole; those up to `next_seed` but for interrupted batches
  uint64_t next_seed = 0;
  uint64_t failed_seeds = 0;
  absl::Duration took;
  bool interrupted = false;
  std::vector<nlohmann::json> failures;  // as `th simulate --json` tells them
  std::vector<std::string> crashes;      // batches whose process ended without a report

  bool good() const { return failed_seeds == 0 && crashes.empty(); }
};

// Runs batches, one a process at least, until the duration is over and those under way have ended;
// tells failures and the rate as they come. A process that crashes is a failure of its batch, not
// of the soak. The errors of ChildProcess::Start.
absl::StatusOr<SoakResult> Soak(const SoakOptions& options);

nlohmann::json ToJson(const SoakResult& result);
std::string TextOf(const SoakResult& result);

}  // namespace th

#endif  // TH_CLI_SIMULATE_SOAK_H_
