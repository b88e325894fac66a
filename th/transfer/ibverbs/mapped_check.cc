#include "th/transfer/ibverbs/mapped_check.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/transfer/ibverbs/host_registrations.h"

namespace th::ibverbs {

absl::Status CheckMapped(absl::Span<const MemoryRegion> regions) {
  static const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::vector<MemoryRange> ranges;
  ranges.reserve(regions.size());
  for (const MemoryRegion& region : regions) {
    if (region.kind == MemoryKind::kDevice) continue;
    ranges.push_back({reinterpret_cast<uintptr_t>(region.address), region.bytes});
  }
  for (const MemoryRange& range : MergeRanges(std::move(ranges), page_bytes)) {
    const uintptr_t begin = range.begin / page_bytes * page_bytes;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): ranges are compared as numbers.
    void* const first_page = reinterpret_cast<void*>(begin);
    // Asks for nothing to be written: the kernel only looks whether all of it is mapped.
    if (msync(first_page, range.end() - begin, MS_ASYNC) == 0 || errno != ENOMEM) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "memory at 0x", absl::Hex(range.begin), " (", range.bytes,
        " bytes) was unmapped while it was registered: rebind or destroy the buffer before its "
        "memory is freed"));
  }
  return absl::OkStatus();
}

}  // namespace th::ibverbs
