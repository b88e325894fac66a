// Runs seeds with one rule of the cores broken, until the simulator notices: whether it can.
//
//   TH_MUTATION=NAME catch_mutant    exit status 0: caught; 1: no seed noticed
//   catch_mutant                     exit status 0: nothing is broken, and nothing is noticed
#include <cstdint>
#include <cstdio>
#include <string>

#include "th/simulator/random_runs/random_run.h"
#include "tools/mutation/switch.h"

namespace th {
namespace {

constexpr uint64_t kMaxSeeds = 600;

// 0: no seed noticed anything.
uint64_t FirstSeedThatNotices() {
  for (uint64_t seed = 1; seed <= kMaxSeeds; ++seed) {
    const RandomRunResult result = RunAtRandom({.seed = seed});
    if (result.violations.empty()) continue;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
                result.violations.front().c_str());
    return seed;
  }
  return 0;
}

int Main() {
  const std::string mutation(MutationInForce());
  const bool noticed = FirstSeedThatNotices() > 0;
  if (noticed == !mutation.empty()) return 0;
  std::fprintf(stderr, "%s: %s of the first %llu seeds\n",
               mutation.empty() ? "nothing is broken" : mutation.c_str(),
               noticed ? "but a rule is violated by one" : "not noticed by any",
               static_cast<unsigned long long>(kMaxSeeds));
  return 1;
}

}  // namespace
}  // namespace th

int main() { return th::Main(); }
