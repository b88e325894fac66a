// Spreads numbered things evenly over an interval, however many of them there are: heartbeats of
// workers, pings of channels. What they do together does not make them speak together.
//
//   const uint64_t wait_ms = (uint64_t{interval_ms} * EvenSpread(worker.value)) >> 32;
#ifndef TH_WORKER_SESSION_EVEN_SPREAD_H_
#define TH_WORKER_SESSION_EVEN_SPREAD_H_

#include <cstdint>

namespace th {

// The place of `number` in its interval, as a fraction of 2^32. Successive numbers are multiples of
// the golden ratio modulo 1, which lie as far apart as they can (Knuth's multiplicative hashing).
constexpr uint32_t EvenSpread(uint64_t number) {
  constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;  // times 2^64
  return static_cast<uint32_t>((number * kGoldenRatio) >> 32);
}

}  // namespace th

#endif  // TH_WORKER_SESSION_EVEN_SPREAD_H_
