// Which of its own memory the kernel does not read for other processes, though this process can:
// mappings of devices (VM_PFNMAP, VM_IO), as some drivers make them for pinned memory.
#ifndef TH_TRANSFER_SAME_HOST_READABLE_MEMORY_H_
#define TH_TRANSFER_SAME_HOST_READABLE_MEMORY_H_

#include <vector>

#include "absl/types/span.h"
#include "th/memory/memory_region.h"

namespace th::same_host {

// Those of the regions, in host memory, of which the kernel does not read all for others. It
// decides by the mapping, so one byte of each mapping that they lie in is tried and no other page
// is touched. Whether it reads anything at all for a given reader is that reader's question.
std::vector<MemoryRegion> FindUnreadable(absl::Span<const MemoryRegion> regions);

}  // namespace th::same_host

#endif  // TH_TRANSFER_SAME_HOST_READABLE_MEMORY_H_
