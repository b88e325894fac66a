// Finds out which ranges of its own memory this process cannot read, before anything reads them: a
// pointer that leads nowhere would otherwise end the process in the thread that sums or sends.
//
//   if (const auto found = FindUnreadable(ranges)) Refuse(found->index, found->why);
//
// It reads /proc/self/maps, which says what is mapped and may be read, at the cost of about a
// millisecond for 1,000 mappings of the process, whatever the ranges' sizes. What a file that
// shrank has lost stays mapped: of each mapping of a file the last byte that is asked about is
// tried, by a write of it into a pipe, which fails where a read would raise SIGBUS. A file loses
// its end first, so that this byte answers for those before it.
//
// It says how things are at the time of the call: what is unmapped later is not noticed.
#ifndef TH_MEMORY_READABLE_MEMORY_H_
#define TH_MEMORY_READABLE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/types/span.h"

namespace th {

struct MemoryRange {
  const void* address = nullptr;
  uint64_t bytes = 0;  // an empty range can always be read
};

struct UnreadableRange {
  size_t index = 0;  // of the first such range
  std::string why;   // "nothing is mapped at 0x7f0000001000, byte 4096 of 8192"
};

// Nothing where all ranges can be read, and where /proc is not mounted, so that nobody can tell.
// Thread-safe.
std::optional<UnreadableRange> FindUnreadable(absl::Span<const MemoryRange> ranges);

}  // namespace th

#endif  // TH_MEMORY_READABLE_MEMORY_H_
