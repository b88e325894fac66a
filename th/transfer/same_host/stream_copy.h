// A copy that leaves the processor's caches alone: for bytes that nobody reads soon. It saves the
// read of the destination that a store through the cache costs, a third of the memory's traffic.
#ifndef TH_TRANSFER_SAME_HOST_STREAM_COPY_H_
#define TH_TRANSFER_SAME_HOST_STREAM_COPY_H_

#include <sys/uio.h>

#include <cstddef>

#include "absl/types/span.h"
#include "th/weights/checksum.h"

namespace th::same_host {

// Like memcpy. All of it is seen by others once the call has returned.
void StreamCopy(char* to, const char* from, size_t bytes);

// Copies the pieces of `from` to those of `into`, which have the same sum of lengths.
void StreamCopyPieces(absl::Span<const iovec> from, absl::Span<const iovec> into);

// Does that, and returns the sum of the bytes as a segment's. Each is read once, and stored at its
// place and in a small buffer in the cache, where it is summed: to sum it at its place would read
// all from memory again. `hasher` is new, or has finished.
SegmentChecksum StreamCopyAndChecksum(absl::Span<const iovec> from, absl::Span<const iovec> into,
                                      SegmentHasher* hasher);

}  // namespace th::same_host

#endif  // TH_TRANSFER_SAME_HOST_STREAM_COPY_H_
