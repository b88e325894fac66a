// A random run that violated what must hold: how to repeat it, and the faults that it needs.
#ifndef TH_SIMULATOR_RANDOM_RUNS_FAILED_RUN_H_
#define TH_SIMULATOR_RANDOM_RUNS_FAILED_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "th/simulator/random_runs/random_run.h"

namespace th {

struct FailedRun {
  uint64_t seed = 0;
  std::string command;  // repeats the run
  std::vector<std::string> violations;
  // Repeats it with faults none of which can be left out: it still violates something, if not the
  // same, and nothing without any one of them.
  std::string shortest_command;
  std::vector<std::string> faults;  // those of `shortest_command`

  // Lines, each with its end.
  std::string ToString() const;
};

// `result` is what the run of `spec` gave; it violates something. Faults are left out one at a
// time, from the last, as long as the run still violates something: faults * (faults + 1) / 2 runs
// at most.
FailedRun DescribeFailedRun(const RandomRunSpec& spec, const RandomRunResult& result);

}  // namespace th

#endif  // TH_SIMULATOR_RANDOM_RUNS_FAILED_RUN_H_
