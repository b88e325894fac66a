// A random run that violated what must hold, as somebody who has to mend it wants to read it.
#ifndef TH_SIMULATOR_FAILED_RUN_H_
#define TH_SIMULATOR_FAILED_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "th/simulator/random_run.h"

namespace th {

struct FailedRun {
  uint64_t seed = 0;
  std::string command;  // that repeats the run
  std::vector<std::string> violations;
  std::string shortest_command;     // with the fewest faults that still violate something
  std::vector<std::string> faults;  // which these are

  // Several lines, each ended.
  std::string ToString() const;
};

// `result` is what the run of `spec` gave; it violates something. To find the fewest faults takes
// faults * (faults + 1) / 2 runs at most: one is left out at a time, from the last, as long as the
// run still violates something.
FailedRun DescribeFailedRun(const RandomRunSpec& spec, const RandomRunResult& result);

}  // namespace th

#endif  // TH_SIMULATOR_FAILED_RUN_H_
