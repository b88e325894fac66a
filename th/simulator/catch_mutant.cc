// Runs seeds with one rule of the cores broken, until the simulator notices: whether it can.
//
//   catch_mutant MUTATION    exit status 0: caught; 1: no seed noticed
//   catch_mutant none        exit status 0: nothing is broken, and nothing is noticed
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "th/simulator/random_run.h"
#include "tools/mutation/mutation.h"

namespace th {
namespace {

constexpr uint64_t kMaxSeeds = 600;
std::string& MutationInForce() {
  static auto& name = *new std::string("none");
  return name;
}

}  // namespace

bool MutationIsOn(const char* name) { return MutationInForce() == name; }

namespace {

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

int Main(const char* mutation) {
  MutationInForce() = mutation;
  const bool broken = std::strcmp(mutation, "none") != 0;
  const bool noticed = FirstSeedThatNotices() > 0;
  if (noticed == broken) return 0;
  std::fprintf(stderr,
               broken ? "%s is not noticed by the first %llu seeds\n"
                      : "%s is broken, but one of the first %llu seeds is violated\n",
               broken ? mutation : "nothing", static_cast<unsigned long long>(kMaxSeeds));
  return 1;
}

}  // namespace
}  // namespace th

int main(int argc, char** argv) {
  if (argc == 2) return th::Main(argv[1]);
  std::fprintf(stderr, "usage: catch_mutant MUTATION|none\n");
  return 2;
}
