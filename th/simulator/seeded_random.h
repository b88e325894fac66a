// A generator whose whole future is its seed: equal seeds give equal sequences on every machine, so
// that a seed names one simulated run for ever.
//
// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
#ifndef TH_SIMULATOR_SEEDED_RANDOM_H_
#define TH_SIMULATOR_SEEDED_RANDOM_H_

#include <cstdint>

#include "absl/time/time.h"

namespace th {

class SeededRandom {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // From [0, bound); 0 for a bound of 0. The bias of the remainder does not matter here.
  uint64_t Below(uint64_t bound) { return bound == 0 ? 0 : Next() % bound; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  // From [low, high), in microseconds.
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    const int64_t span = absl::ToInt64Microseconds(high - low);
    return low + absl::Microseconds(static_cast<int64_t>(Below(span > 0 ? span : 0)));
  }
  // Another sequence, so that what one part draws does not shift what another does.
  SeededRandom Fork() { return SeededRandom(Next()); }

 private:
  uint64_t state_;
};

}  // namespace th

#endif  // TH_SIMULATOR_SEEDED_RANDOM_H_
