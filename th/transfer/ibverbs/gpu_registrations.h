// GPU memory that the adapters may read and write (GPUDirect RDMA): whole allocations, registered
// once with every adapter, found again for any piece of them.
//
//   GpuRegistrations gpus(adapters, &ProcessMemoryDevices, budget);
//   TH_ASSIGN_OR_RETURN(const GpuRegistrations::Attached attached, gpus.Attach(regions, owner));
//   attached.how;   // "memory of GPU 0000:3b:00.0 registered by DMA-BUF with mlx5_0, mlx5_1"
//   const auto found = gpus.Find(piece.iov_base, piece.iov_len, /*adapter=*/0, owner);
//   gpus.Detach(attached.number);   // before any of the memory is freed or unmapped
//
// Each adapter is tried with a DMA-BUF of the memory, which the CUDA driver makes, and then with
// its plain address, which works where the kernel has nvidia_peermem. Where neither does, Attach
// says why not, and the memory is staged through the host over other transports.
//
// A registration is known by the driver's ids of its allocations, and found by address only while
// they lie there: memory that was freed, or mapped anew at the same address by an engine that
// slept, is not found, whoever has forgotten to detach it. Allocations that one tensor spans
// (mappings side by side, as torch's expandable segments have them) are one registration.
// Attachments share a registration if its allocations are the same; otherwise each has its own, so
// that none keeps an allocation registered in which it has no byte. Whoever transfers a buffer
// names its owner (memory_owner.h) and gets no key that another buffer may withdraw.
//
// Thread-safe. Attach and Detach take as long as the kernel does; Find asks the driver about an
// allocation once a millisecond at most.
#ifndef TH_TRANSFER_IBVERBS_GPU_REGISTRATIONS_H_
#define TH_TRANSFER_IBVERBS_GPU_REGISTRATIONS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "th/memory/cuda/cuda_memory_devices.h"
#include "th/memory/cuda/device_memory.h"
#include "th/memory/memory_region.h"
#include "th/transfer/ibverbs/attachment_table.h"
#include "th/transfer/ibverbs/memory_owner.h"
#include "th/transfer/ibverbs/rdma_device.h"
#include "th/transfer/ibverbs/registration_budget.h"

namespace th::ibverbs {

// The GPUs of this process as far as there are any now; null: none.
using FindGpus = std::function<std::shared_ptr<CudaMemoryDevices>()>;

class GpuRegistrations {
 public:
  // A buffer's Attach ends with its first refusal, so this is a number of buffers. The reasons of
  // older ones are forgotten: WhyStaged returns OK for them.
  static constexpr size_t kMaxRefusals = 256;

  struct Attached {
    uint64_t number = 0;
    std::string how;  // for logs: which way each GPU's memory was registered
  };
  struct Found {
    uint32_t local_key = 0;
    uint32_t remote_key = 0;
    std::shared_ptr<DeviceMemory> memory;  // of the whole registration; shared with its users
    uint64_t offset = 0;                   // of the piece in it
  };

  GpuRegistrations(std::vector<std::shared_ptr<const RdmaDevice>> adapters, FindGpus gpus,
                   std::shared_ptr<RegistrationBudget> budget);
  ~GpuRegistrations();

  // Registers the allocations that the regions of kind kDevice lie in; others are skipped.
  // FAILED_PRECONDITION: an adapter cannot reach a GPU's memory, with the reason of each way, or
  // the process has loaded no CUDA driver; RESOURCE_EXHAUSTED: the budget, or a bound of an
  // adapter; INVALID_ARGUMENT: the driver knows no allocation at a region. On an error nothing that
  // this call registered stays.
  absl::StatusOr<Attached> Attach(absl::Span<const MemoryRegion> regions, MemoryOwner owner = {});
  // Deregisters what no other attachment shares. Unknown numbers are ignored.
  void Detach(uint64_t attachment);

  // The registration of the owner's that holds all of [address, address + bytes), while it is still
  // that memory; of anybody's where the owner is nobody in particular.
  std::optional<Found> Find(const void* address, uint64_t bytes, size_t adapter,
                            MemoryOwner owner = {}) const;

  // Why the region's memory is not registered: the refusal of the latest registration that was to
  // hold all of it. OK: Find finds the region, or nobody has tried with the memory that lies there
  // now. Only the latest kMaxRefusals are known.
  absl::Status WhyStaged(const MemoryRegion& region, MemoryOwner owner = {}) const;

  // The GPUs whose memory Find finds; null: none.
  std::shared_ptr<CudaMemoryDevices> gpus() const { return find_gpus_(); }
  // The number of registrations, each with every adapter.
  size_t count() const { return count_; }

 private:
  class Registration;
  using Shared = std::shared_ptr<const Registration>;
  // Memory that an adapter could not be given.
  struct Refusal {
    std::shared_ptr<const DeviceMemory> memory;  // shared with nobody: it was not registered
    absl::Status why;
  };

  Shared FindSame(const DeviceMemory& memory) const;
  absl::StatusOr<Shared> Register(std::shared_ptr<DeviceMemory> memory)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(changing_);
  // `tried` says what came of the registration of `memory`. If it is OK, refusals of memory that
  // lies within are forgotten; else it takes the place of the refusal of the same bytes.
  void RememberTried(std::shared_ptr<const DeviceMemory> memory, const absl::Status& tried);

  const std::vector<std::shared_ptr<const RdmaDevice>> adapters_;
  const FindGpus find_gpus_;
  const std::shared_ptr<RegistrationBudget> budget_;  // with the registrations of host memory

  absl::Mutex changing_ ABSL_ACQUIRED_BEFORE(mu_);  // held by Attach and Detach throughout
  mutable absl::Mutex mu_;
  // May hold old memory beside the new at the same address, where an owner has not detached.
  const std::unique_ptr<AttachmentTable<Registration>> table_ ABSL_PT_GUARDED_BY(mu_);
  // The oldest first; of the same bytes there is one at most.
  std::deque<Refusal> refused_ ABSL_GUARDED_BY(mu_);
  std::atomic<size_t> count_{0};
};

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_GPU_REGISTRATIONS_H_
