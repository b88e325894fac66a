// Copies whose stores go past the processor's caches to their place: for bytes that nobody reads
// soon. That saves the read of the destination that a store through the cache costs, a third of the
// memory's traffic.
#ifndef TH_TRANSFER_SAME_HOST_STREAM_COPY_H_
#define TH_TRANSFER_SAME_HOST_STREAM_COPY_H_

#include <sys/uio.h>

#include <cstddef>

#include "absl/types/span.h"
#include "th/weights/checksum.h"

namespace th::same_host {

// Copies as memcpy does. All stores are visible to others once the call has returned.
void StreamCopy(char* to, const char* from, size_t bytes);

// Copies the pieces of `from` to those of `into`, which have the same sum of lengths.
void StreamCopyPieces(absl::Span<const iovec> from, absl::Span<const iovec> into);

// Copies as StreamCopyPieces does, and returns the sum of the bytes as a segment's. Every byte is
// read once, and stored both at its destination and in a small buffer in the cache, which is
// summed: the sum is that of the bytes that were stored, and memory is not read again. Before the
// call `hasher` is new, or its Finish was called last.
SegmentChecksum StreamCopyAndChecksum(absl::Span<const iovec> from, absl::Span<const iovec> into,
                                      SegmentHasher* hasher);

}  // namespace th::same_host

#endif  // TH_TRANSFER_SAME_HOST_STREAM_COPY_H_
