// The source's side of shared GPU memory: which allocations there are, and in which slot of the
// table each is shared. An allocation is exported when a reader first needs it, once for all
// readers, tensors and transfers, and is shared until it is detached.
//
//   TH_ASSIGN_OR_RETURN(auto attached,
//                       exported->Attach(regions, ExportedMemory::OnDetach::kAwaitReaders));
//   TH_ASSIGN_OR_RETURN(const auto span, exported->SpanOf(address, bytes));
//   attached.reset();  // readers have closed their imports, or release_timeout is over
//
// Memory is known by the driver's buffer id: what was freed or mapped anew behind our back is not
// shared any more from the next SpanOf on. Thread-safe.
#ifndef TH_TRANSFER_CUDA_IPC_EXPORTED_MEMORY_H_
#define TH_TRANSFER_CUDA_IPC_EXPORTED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/memory/cuda/device_memory.h"
#include "th/memory/cuda/shared_allocation.h"
#include "th/memory/memory_region.h"
#include "th/transfer/cuda_ipc/allocation_table.h"
#include "th/transfer/transport.h"

namespace th::cuda_ipc {

class ExportedMemory : public std::enable_shared_from_this<ExportedMemory> {
 public:
  struct Options {
    // Descriptors of mapped allocations that are open at a time; the longest unused is closed, and
    // exported anew when somebody needs it. A reader needs one while it imports.
    size_t max_descriptors = 256;
    // One that was asked for so lately stays open beyond that limit: the reader that was told of it
    // may be about to fetch it.
    absl::Duration fetch_time = absl::Seconds(1);
    // Beyond this it is closed all the same.
    size_t max_recent_descriptors = 512;
    // How long a detach waits for readers that live and do not close their imports: they are
    // stopped.
    absl::Duration release_timeout = absl::Milliseconds(500);
  };
  // How an AttachedMemory ends once its slots are retired, so that nobody imports them any more and
  // readers that have them open are told to close them.
  enum class OnDetach : uint8_t {
    // Waits until no reader has them open, up to release_timeout: for whoever frees the memory
    // next.
    kAwaitReaders,
    // Waits for nobody: for data threads, which must not block, and memory that is gone already.
    // Allocations that a reader has open stay the driver's until it closes them.
    kGoOn,
  };

  static absl::StatusOr<std::shared_ptr<ExportedMemory>> Create(
      std::shared_ptr<const CudaDevices> devices, Options options);
  ~ExportedMemory();

  AllocationTable& table() { return *table_; }

  // Exports those of the regions that are a GPU's. INVALID_ARGUMENT: one is no device memory.
  absl::StatusOr<std::unique_ptr<AttachedMemory>> Attach(absl::Span<const MemoryRegion> regions,
                                                         OnDetach on_detach);
  // The bytes of one allocation, and its slot: theirs until `good_until`.
  struct SharedSpan {
    uint32_t slot = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
    absl::Time good_until = absl::InfinitePast();
  };
  // The allocation that the memory begins in; those that it goes on in are linked to its slot.
  // NOT_FOUND: some of it is not attached, or lies in other allocations than when it was;
  // UNIMPLEMENTED: it has no handle for other processes; RESOURCE_EXHAUSTED.
  absl::StatusOr<SharedSpan> SpanOf(uint64_t address, uint64_t bytes);
  // The reason why SpanOf would not find it, or the end of the last allocation that it lies in:
  // what else lies before that, from `address` on, is exportable too.
  absl::StatusOr<uint64_t> CheckExportable(uint64_t address, uint64_t bytes);

 private:
  class Handle;
  struct Known {
    DeviceAllocation allocation;
    std::unique_ptr<DeviceMemory> memory;  // the whole of it
    uint32_t attachments = 0;
    absl::Time verified_at = absl::InfinitePast();
    std::optional<absl::Status> exportable;
    std::optional<uint32_t> slot;
    std::unique_ptr<AllocationExport> shared;   // null: not exported, or its descriptor was closed
    std::list<uint64_t>::iterator use;          // in used_, where `shared` has a descriptor
    absl::Time used_at = absl::InfinitePast();  // likewise
  };
  // Slots that are being taken out of the table.
  struct Retired {
    std::vector<uint32_t> slots;
    std::vector<std::unique_ptr<AllocationExport>> exports;  // closed at the end
  };

  ExportedMemory(std::shared_ptr<const CudaDevices> devices, Options options,
                 std::unique_ptr<AllocationTable> table)
      : devices_(std::move(devices)), options_(options), table_(std::move(table)) {}

  absl::Status AddRange(const MemoryRegion& region, Retired* retired, Handle* handle)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Add(const DeviceAllocation& allocation, Retired* retired, Handle* handle)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(std::map<uint64_t, Known>::iterator known, Retired* retired)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Detach(absl::Span<const DeviceAllocation> allocations, OnDetach on_detach);
  void Finish(Retired retired, OnDetach on_detach);
  // The allocation that `address` lies in, if it is still the one that was attached.
  absl::StatusOr<Known*> Find(uint64_t address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Export(Known* known) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Closes what is beyond the limits.
  void CloseLongestUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<const CudaDevices> devices_;
  const Options options_;
  const std::unique_ptr<AllocationTable> table_;
  absl::Mutex mu_;
  std::map<uint64_t, Known> known_ ABSL_GUARDED_BY(mu_);  // by address; they do not overlap
  std::list<uint64_t> used_ ABSL_GUARDED_BY(mu_);         // with descriptors, the last used first
};

}  // namespace th::cuda_ipc

#endif  // TH_TRANSFER_CUDA_IPC_EXPORTED_MEMORY_H_
