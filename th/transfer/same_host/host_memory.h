// Both ends of the source's memory for readers of its host (remote_memory.h): the source names a
// word of its process, the reader probes it, and then copies segments with process_vm_readv, each
// within its Start.
#ifndef TH_TRANSFER_SAME_HOST_HOST_MEMORY_H_
#define TH_TRANSFER_SAME_HOST_HOST_MEMORY_H_

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "th/memory/memory_region.h"
#include "th/transfer/stream/remote_memory.h"
#include "th/transfer/transport.h"

namespace th::same_host {

// The ranges of this process that process_vm_readv cannot read although the process itself can:
// mappings of devices (VM_PFNMAP, VM_IO), as some drivers make them for pinned memory. Each
// attached region is tried once at its first and its last byte. Thread-safe; shared with the
// handles of Attach.
class UnreadableMemory {
 public:
  static std::shared_ptr<UnreadableMemory> New();
  virtual ~UnreadableMemory() = default;
  virtual std::unique_ptr<AttachedMemory> Attach(absl::Span<const MemoryRegion> regions) = 0;
  virtual bool Overlaps(const iovec& piece) const = 0;
};

// `fd`: the accepted, or the connected, Unix socket.
std::unique_ptr<stream::ServedMemory> ServeHostMemory(
    int fd, std::shared_ptr<const UnreadableMemory> unreadable);
std::unique_ptr<stream::RemoteMemory> ReadHostMemory(int fd);

}  // namespace th::same_host

#endif  // TH_TRANSFER_SAME_HOST_HOST_MEMORY_H_
