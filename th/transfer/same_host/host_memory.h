// Both ends of the source's memory for readers of its host (remote_memory.h). The source names a
// word of its process, which the reader probes, and the ranges of its shared memory. The reader
// copies segments within Start: out of a mapping where they lie in such a range and it can be
// mapped (a third faster), else with process_vm_readv.
#ifndef TH_TRANSFER_SAME_HOST_HOST_MEMORY_H_
#define TH_TRANSFER_SAME_HOST_HOST_MEMORY_H_

#include <cstdint>
#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "th/memory/memory_region.h"
#include "th/transfer/same_host/mapped_memory.h"
#include "th/transfer/stream/medium.h"
#include "th/transfer/stream/remote_memory.h"
#include "th/transfer/transport.h"

namespace th::same_host {

// The ranges of this process that process_vm_readv cannot read although the process itself can:
// mappings of devices, and memory of GPUs. Each mapping that an attached region lies in is tried
// once (readable_memory.h). Thread-safe; shared with the handles of Attach.
class UnreadableMemory : public std::enable_shared_from_this<UnreadableMemory> {
 public:
  // Tries the regions, and remembers those that cannot be read until the result is destroyed. Only
  // of an object that a shared_ptr owns.
  std::unique_ptr<AttachedMemory> Attach(absl::Span<const MemoryRegion> regions);
  bool Overlaps(const iovec& piece) const;

 private:
  class Handle;

  mutable absl::Mutex mu_;
  std::set<const Handle*> handles_ ABSL_GUARDED_BY(mu_);  // almost always none
};

struct HostServingLimits {
  uint64_t attached_bytes = 0;                        // see SameHostOptions::attach_limit_bytes
  size_t offer_bytes = stream::kMaxControlBodyBytes;  // of the first words to the reader
};
// `fd`: the accepted, or the connected, Unix socket.
std::unique_ptr<stream::ServedMemory> ServeHostMemory(
    int fd, std::shared_ptr<const UnreadableMemory> unreadable, const HostServingLimits& limits);
// `mapped` is shared with the transport's other connections.
std::unique_ptr<stream::RemoteMemory> ReadHostMemory(const stream::Medium::ReadSetup& setup,
                                                     std::shared_ptr<MappedMemory> mapped);

}  // namespace th::same_host

#endif  // TH_TRANSFER_SAME_HOST_HOST_MEMORY_H_
