#include "th/transfer/ibverbs/parallel_prefault.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace th::ibverbs {
namespace {

// Linux 5.14; the C library's headers may be older than the kernel.
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

// Pages that are mapped read-only can only be read.
void Prefault(uintptr_t begin, uint64_t bytes) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): ranges are compared as numbers.
  void* const address = reinterpret_cast<void*>(begin);
  if (madvise(address, bytes, MADV_POPULATE_WRITE) == 0) return;
  static_cast<void>(madvise(address, bytes, MADV_POPULATE_READ));
}

}  // namespace

uint32_t PrefaultThreads(uint64_t bytes, const PrefaultLimits& limits) {
  const uint64_t worth = bytes / std::max<uint64_t>(limits.min_bytes_per_thread, 1);
  const uint64_t processors = std::max(std::thread::hardware_concurrency(), 1U);
  return static_cast<uint32_t>(std::clamp<uint64_t>(
      worth, 1, std::min<uint64_t>(processors, std::max(limits.max_threads, 1U))));
}

void PrefaultInParallel(uintptr_t begin, uint64_t bytes, const PrefaultLimits& limits) {
  const uint32_t workers = PrefaultThreads(bytes, limits);
  if (workers == 1) return;
  static const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t first_page = begin / page_bytes;
  const uint64_t pages = (begin + bytes - 1) / page_bytes + 1 - first_page;
  const auto prefault = [&](uint64_t worker) {
    const uint64_t first = pages * worker / workers;
    const uint64_t last = pages * (worker + 1) / workers;
    Prefault((first_page + first) * page_bytes, (last - first) * page_bytes);
  };
  std::vector<std::thread> others;
  others.reserve(workers - 1);
  for (uint64_t worker = 1; worker < workers; ++worker) others.emplace_back(prefault, worker);
  prefault(0);
  for (std::thread& other : others) other.join();
}

}  // namespace th::ibverbs
