// The mappings of this process, as /proc/self/maps lists them.
//
//   for (const MemoryMapping& mapping : MappingsOfThisProcess()) ...   // by address
#ifndef TH_MEMORY_MEMORY_MAPPINGS_H_
#define TH_MEMORY_MEMORY_MAPPINGS_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

namespace th {

struct MemoryMapping {
  uintptr_t begin = 0, end = 0;
  bool readable = false;
  bool of_file = false;  // shared memory without a name too
  friend bool operator==(const MemoryMapping&, const MemoryMapping&) = default;
};

// The mappings in the text of /proc/PID/maps, in its order, which is that of the addresses. Pure;
// other lines are left out.
std::vector<MemoryMapping> ParseMappings(absl::string_view maps);

// Empty where there is no /proc. Takes about a millisecond for 1,000 mappings. Thread-safe.
std::vector<MemoryMapping> MappingsOfThisProcess();

}  // namespace th

#endif  // TH_MEMORY_MEMORY_MAPPINGS_H_
