#include "th/memory/page_backing.h"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "th/memory/arena_alignment.h"

namespace th {
namespace {

constexpr uint64_t kPageBytes = 4096;
// The time that backing 2 MiB of small pages of shared memory takes (measured: 1.2 ms, and a large
// page 0.13). A large page of memory that a virtual machine has not touched before takes 5 ms.
constexpr absl::Duration kCostOfSmallPages = absl::Microseconds(1250);

// Linux 5.14 and 6.1; the C library's headers may be older than the kernel.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

// Touching the pages instead would end in a signal where memory is short.
int BackWithSmallPages(std::byte* begin, uint64_t bytes) {
  if (bytes == 0 || madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  // An older kernel: write to each page what it holds.
  for (uint64_t offset = 0; offset < bytes; offset += kPageBytes) {
    auto* const byte = reinterpret_cast<volatile std::byte*>(begin + offset);
    *byte = *byte;
  }
  return 0;
}

// On a processor: what others run meanwhile is no cost of large pages.
absl::Duration TimeOfThisThread() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return absl::DurationFromTimespec(now);
}

// The bytes from `begin` on that now lie in large pages. Of a file the kernel makes a large page
// only out of a range that has a page already.
uint64_t BackWithLargePages(std::byte* begin, uint64_t bytes) {
  const absl::Duration start = TimeOfThisThread();
  const absl::Duration most = kCostOfSmallPages * static_cast<int64_t>(bytes / kArenaAlignment);
  for (uint64_t offset = 0; offset < bytes; offset += kArenaAlignment) {
    if (TimeOfThisThread() - start > most) return offset;
    if (madvise(begin + offset, kPageBytes, MADV_POPULATE_WRITE) != 0) return offset;
    if (madvise(begin + offset, kArenaAlignment, MADV_COLLAPSE) != 0) return offset;
  }
  return bytes;
}

int BackPiece(std::byte* begin, uint64_t bytes, MemoryBacking memory) {
  if (memory == MemoryBacking::kSharedFile) BackWithLargePages(begin, bytes);
  return BackWithSmallPages(begin, bytes);  // where large ones are, this costs nothing
}

}  // namespace

int BackWithPages(std::byte* begin, uint64_t bytes, const BackingOptions& options) {
  const uint64_t pieces = bytes / kArenaAlignment;
  if (pieces == 0) return 0;
  const uint64_t workers =
      std::clamp<uint64_t>(options.threads, 1, std::min<uint64_t>(pieces, kMaxBackingThreads));
  std::vector<int> errors(workers, 0);
  const auto back = [&](uint64_t worker) {
    const uint64_t first = pieces * worker / workers;
    const uint64_t last = pieces * (worker + 1) / workers;
    errors[worker] = BackPiece(begin + first * kArenaAlignment, (last - first) * kArenaAlignment,
                               options.memory);
  };
  std::vector<std::thread> others;
  for (uint64_t worker = 1; worker < workers; ++worker) others.emplace_back(back, worker);
  back(0);
  for (std::thread& other : others) other.join();
  const auto failed = std::find_if(errors.begin(), errors.end(), [](int e) { return e != 0; });
  return failed == errors.end() ? 0 : *failed;
}

}  // namespace th
