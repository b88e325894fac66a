// The reader's side of shared GPU memory: the source's allocations, opened here once and kept for
// the next segment and the next transfer, until the source detaches them, has ended, or nobody uses
// its imports any more and others need the room.
//
//   ImportCache cache(devices, {});
//   TH_ASSIGN_OR_RETURN(auto source, cache.Of(pid, offered, reader));
//   std::vector<ImportedRange> ranges;
//   TH_RETURN_IF_ERROR(source->Find(slot, address, bytes, destination_device, &ranges));
//   ... copies of destination_device read the ranges, while they live ...
//
// A source that detaches waits for its readers: a thread `th-cuda-keep` for each source process
// hears of it at once, and closes.
#ifndef TH_TRANSFER_CUDA_IPC_IMPORTED_MEMORY_H_
#define TH_TRANSFER_CUDA_IPC_IMPORTED_MEMORY_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "th/memory/cuda/device.h"
#include "th/memory/cuda/shared_allocation.h"
#include "th/transfer/cuda_ipc/allocation_table.h"
#include "th/transfer/same_host/process_watch.h"
#include "th/transfer/task_thread.h"

namespace th::cuda_ipc {

// Processes whose imports are kept although no connection uses them.
inline constexpr size_t kMaxIdleSources = 16;

// How bytes get from the source's memory to a device of this process.
enum class CopyPath : uint8_t {
  kSameDevice,
  kPeerAccess,  // the devices reach each other: NVLink or PCIe
  kStaged,      // they do not: the driver copies through the host
};

// An allocation of the source's, at an address of this process. Closed when its last user drops it.
class Import {
 public:
  ~Import();
  Import(const Import&) = delete;
  Import& operator=(const Import&) = delete;

  CopyPath path() const { return path_; }
  // The device that has the address: the reading one, but for kStaged that of the memory.
  CudaDevice& device() const { return *device_; }
  // The address here of bytes that lie at `address` in the source, in its allocation of this slot.
  // Nullopt: they do not lie in it, or not all.
  std::optional<uint64_t> AddressHere(uint32_t slot, uint64_t address, uint64_t bytes) const {
    const uint64_t size = shared_.exported.bytes;
    const uint64_t offset = address - shared_.address;
    const bool inside =
        slot == slot_ && address >= shared_.address && bytes <= size && offset <= size - bytes;
    return inside ? std::optional(address_ + offset) : std::nullopt;
  }

 private:
  friend class SourceImports;
  Import() = default;

  std::shared_ptr<PeerTable> table_;
  uint32_t slot_ = 0;
  SharedAllocation shared_;
  CopyPath path_ = CopyPath::kSameDevice;
  CudaDevice* device_ = nullptr;
  std::unique_ptr<ImportedAllocation> imported_;  // null: it is this process's own
  uint64_t address_ = 0;                          // here
};

struct ImportedRange {
  std::shared_ptr<const Import> import;
  uint64_t address = 0;  // here
  uint64_t bytes = 0;
};

// The imports of one source process. Thread-safe.
class SourceImports {
 public:
  // `own`: memory of this very process is used as it is, which the driver does not import.
  SourceImports(std::shared_ptr<const CudaDevices> devices, pid_t source,
                std::shared_ptr<PeerTable> table, bool own);
  ~SourceImports();
  SourceImports(const SourceImports&) = delete;
  SourceImports& operator=(const SourceImports&) = delete;

  // Appends where the source's memory lies for copies by `device`, in order. Null: the memory's own
  // device. NOT_FOUND: the source does not share it (any more), or this process does not see its
  // device; INVALID_ARGUMENT: the source says what makes no sense; what FetchDescriptor and
  // ImportAllocation return.
  absl::Status Find(uint32_t slot, uint64_t address, uint64_t bytes, CudaDevice* device,
                    std::vector<ImportedRange>* ranges);
  // The device that the allocation of this slot lies on; null: it is not shared (any more), or this
  // process does not see its device.
  CudaDevice* DeviceOf(uint32_t slot) const;
  // False once the source process has ended.
  bool alive() const { return alive_; }

 private:
  using Place = std::pair<uint32_t, CudaDevice*>;  // slot, and for whom

  absl::StatusOr<std::shared_ptr<const Import>> FindOne(uint32_t slot, CudaDevice* device)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Where, by whom and how `device` can copy the allocation.
  absl::Status Choose(CudaDevice* device, Import* import) const;
  absl::Status Open(Import* import) const;
  void Keep();
  void DropRetired();

  const std::shared_ptr<const CudaDevices> devices_;
  const same_host::ProcessWatch source_;
  const std::shared_ptr<PeerTable> table_;
  const bool own_;
  std::atomic<bool> alive_{true};
  std::atomic<bool> ending_{false};
  absl::Mutex mu_;
  std::map<Place, std::shared_ptr<const Import>> imports_ ABSL_GUARDED_BY(mu_);
  // Destroyed first: its task uses the rest.
  std::unique_ptr<TaskThread> keeper_ ABSL_GUARDED_BY(mu_);
};

// Those of a transport. Thread-safe. Sources may outlive it.
class ImportCache {
 public:
  struct Options {
    // Memory of this very process is imported too, which only the fake driver bears.
    bool import_own = false;
  };
  ImportCache(std::shared_ptr<const CudaDevices> devices, Options options)
      : devices_(std::move(devices)), options_(options) {}

  // Errors of PeerTable::Open.
  absl::StatusOr<std::shared_ptr<SourceImports>> Of(pid_t source, const OfferedTable& offered,
                                                    uint32_t reader);

 private:
  struct Kept {
    uint64_t life = 0;
    std::shared_ptr<SourceImports> imports;
  };
  std::list<Kept> TakeUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<const CudaDevices> devices_;
  const Options options_;
  absl::Mutex mu_;
  std::list<Kept> kept_ ABSL_GUARDED_BY(mu_);  // the last used first
  // Closes what nobody uses: the driver may take its time, which a data thread has not.
  std::unique_ptr<TaskThread> closer_ ABSL_GUARDED_BY(mu_);
};

}  // namespace th::cuda_ipc

#endif  // TH_TRANSFER_CUDA_IPC_IMPORTED_MEMORY_H_
