// A number for the memory of one buffer, which follows from its regions: whoever transfers the
// buffer finds by it the registrations that were made for this buffer, and not those of another
// that overlap with it. The other may withdraw them at any time.
//
//   const MemoryOwner owner = OwnerOf(store->regions());
//   cache.Attach(ranges, owner);
//   cache.Find(piece.iov_base, piece.iov_len, device, owner);
#ifndef TH_TRANSFER_IBVERBS_MEMORY_OWNER_H_
#define TH_TRANSFER_IBVERBS_MEMORY_OWNER_H_

#include <cstddef>

#include "absl/hash/hash.h"
#include "absl/types/span.h"
#include "th/identifiers/identifiers.h"
#include "th/memory/memory_region.h"

namespace th::ibverbs {

// 0: nobody in particular.
using MemoryOwner = StrongInt<struct MemoryOwnerTag>;

// Regions that are the same, in the same order, have the same owner. That others have it too is as
// unlikely as a hash of 64 bits makes it, and costs what a registration of another buffer costs.
inline MemoryOwner OwnerOf(absl::Span<const MemoryRegion> regions) {
  size_t hash = regions.size();
  for (const MemoryRegion& region : regions) {
    hash = absl::HashOf(hash, region.address, region.bytes);
  }
  return MemoryOwner(hash == 0 ? 1 : hash);
}

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_MEMORY_OWNER_H_
