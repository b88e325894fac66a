// Faults in the pages of memory that is about to be registered. Pinning does that too, by one
// thread, which clears some GB a second; several get on as fast as the machine's memory does.
//
//   PrefaultInParallel(begin, bytes, {});  // then reg_mr, which finds the pages there
//
// What the memory holds stays as it is, whoever writes to it meanwhile. Best effort: what cannot be
// faulted in (the kernel is older than Linux 5.14, it is not mapped) is left to the registration,
// which says so.
#ifndef TH_TRANSFER_IBVERBS_PARALLEL_PREFAULT_H_
#define TH_TRANSFER_IBVERBS_PARALLEL_PREFAULT_H_

#include <cstdint>

namespace th::ibverbs {

struct PrefaultLimits {
  // More take turns at the kernel's lock of the address space, and processors from whoever
  // computes.
  uint32_t max_threads = 8;
  // Below it a thread costs more than it brings.
  uint64_t min_bytes_per_thread = uint64_t{16} << 20;
};

// The threads that work on so many bytes, the caller among them: as the limits and the machine's
// processors allow. 1: it is left to the registration.
uint32_t PrefaultThreads(uint64_t bytes, const PrefaultLimits& limits);

// Returns when all threads have ended.
void PrefaultInParallel(uintptr_t begin, uint64_t bytes, const PrefaultLimits& limits);

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_PARALLEL_PREFAULT_H_
