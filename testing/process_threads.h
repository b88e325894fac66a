// The threads of this process, as the kernel lists them: what a library brings into its host.
#ifndef TESTING_PROCESS_THREADS_H_
#define TESTING_PROCESS_THREADS_H_

#include <cstdint>
#include <map>
#include <string>

namespace th::testing {

struct ThreadInfo {
  std::string name;
  uint64_t blocked_signals = 0;  // signal s is bit s - 1

  bool Blocks(int signal) const { return (blocked_signals >> (signal - 1) & 1) != 0; }
};

// By the kernel's thread id. Threads that have ended are left out, also those that the kernel still
// lists for a moment after they were joined; one that ends meanwhile may be listed without a name.
std::map<int, ThreadInfo> ThreadsOfThisProcess();

}  // namespace th::testing

#endif  // TESTING_PROCESS_THREADS_H_
