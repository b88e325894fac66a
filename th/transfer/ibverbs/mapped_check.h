// The check that registered host memory is still mapped. The pages of a registration stay with its
// adapters whatever becomes of the addresses: a peer would go on reading what their owner has
// freed.
#ifndef TH_TRANSFER_IBVERBS_MAPPED_CHECK_H_
#define TH_TRANSFER_IBVERBS_MAPPED_CHECK_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "th/memory/memory_region.h"

namespace th::ibverbs {

// FAILED_PRECONDITION: a page with a byte of the regions in host memory is not mapped; with its
// place and what to do. Asks the kernel (msync), a call for each stretch of memory, and touches no
// page. Memory that was mapped anew at the same addresses is not told from what was there.
absl::Status CheckMapped(absl::Span<const MemoryRegion> regions);

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_MAPPED_CHECK_H_
