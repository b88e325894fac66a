// The memory of the fake's devices: files without a name, so that another process can map an
// allocation.
//
// A device address is reserved in the process but may not be touched: code that takes it for host
// memory crashes, as it would beside a GPU. The fake itself reads and writes the same bytes at an
// alias.
//
// Thread-safe. Part of the fake driver, which lives until the process ends.
#ifndef TESTING_FAKE_CUDA_FAKE_MEMORY_H_
#define TESTING_FAKE_CUDA_FAKE_MEMORY_H_

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "th/memory/cuda/kernels/host_warp.h"

namespace th::testing {

// Bytes of each device. Only what is written takes memory.
inline constexpr uint64_t kDeviceBytes = uint64_t{64} << 30;
// A mapping's address and size are multiples of the first, an allocation's of the second.
inline constexpr uint64_t kMappingGranularity = uint64_t{2} << 20;
inline constexpr uint64_t kAllocationGranularity = 512;
// Addresses for reservations and for what other processes export.
inline constexpr uint64_t kReservedBytes = uint64_t{256} << 30;
// Pinned memory of the process. Only what is written takes memory.
inline constexpr uint64_t kPinnedBytes = uint64_t{16} << 30;
inline constexpr uint64_t kPinnedGranularity = 4096;

// Free and used ranges of one address space.
class RangeAllocator {
 public:
  RangeAllocator(uint64_t begin, uint64_t bytes) { free_[begin] = bytes; }
  std::optional<uint64_t> Take(uint64_t bytes, uint64_t alignment);
  void Give(uint64_t begin, uint64_t bytes);

 private:
  std::map<uint64_t, uint64_t> free_;  // {begin: bytes}
};

// The bytes that cuMemCreate makes are in use until the last mapping and handle of them is gone, in
// whatever process. They lie in a file of their own; a descriptor for other processes is one of it.
struct Physical {
  int device = 0;
  uint64_t offset = 0;  // in the device's file, where the bytes are counted as taken
  uint64_t bytes = 0;
  int file = -1;
  bool exportable = false;
  bool imported = false;  // another process's: `offset` means nothing
};

class FakeMemory : public kernels::DeviceMemoryOnHost {
 public:
  enum class Kind : uint8_t { kPlain, kMapped, kImported, kPinnedHost };
  struct Allocation {
    Kind kind;
    uint64_t address;
    uint64_t bytes;
    int device;
    uint64_t buffer_id;                        // never given twice in a process
    bool accessible;                           // kMapped: cuMemSetAccess has been called
    std::shared_ptr<const Physical> physical;  // kMapped only
  };

  explicit FakeMemory(int devices);

  CUresult Allocate(int device, uint64_t bytes, uint64_t* address);
  CUresult Free(uint64_t address);
  CUresult AllocateHost(uint64_t bytes, void** address);
  CUresult FreeHost(void* address);

  CUresult Reserve(uint64_t bytes, uint64_t* address);
  CUresult Unreserve(uint64_t address, uint64_t bytes);
  // nullptr: no memory.
  std::shared_ptr<const Physical> Create(int device, uint64_t bytes, bool exportable);
  // A descriptor of the memory for other processes.
  CUresult ExportPhysical(const Physical& physical, int* descriptor) const;
  // nullptr: the descriptor is not one of those.
  std::shared_ptr<const Physical> ImportPhysical(int descriptor);
  CUresult Map(uint64_t address, uint64_t bytes, std::shared_ptr<const Physical> physical);
  CUresult Unmap(uint64_t address, uint64_t bytes);
  CUresult SetAccess(uint64_t address, uint64_t bytes, int device);

  // As on a host without NVLink whose platform does not let devices reach each other.
  void RefusePeers(bool refused) { peers_refused_ = refused; }
  bool Reaches(int device, int peer) const { return device == peer || !peers_refused_; }
  // The driver refuses to open a process's own handles. Tests in one process may.
  void AllowOwnImports(bool allowed) { own_imports_allowed_ = allowed; }

  CUresult Export(uint64_t address, CUipcMemHandle* handle) const;
  CUresult Import(const CUipcMemHandle& handle, int device, uint64_t* address);
  CUresult CloseImport(uint64_t address);

  // A descriptor in place of a DMA-BUF: of the file that has the bytes, and its position is where
  // the range begins in it. NOT_SUPPORTED of memory that does not lie in one file side by side.
  CUresult ExportRange(uint64_t address, uint64_t bytes, int* descriptor) const;

  // The allocation that `address` lies in.
  std::optional<Allocation> FindAllocation(uint64_t address) const;
  // True when all of a range is device memory that may be accessed, of one or more adjacent
  // allocations.
  bool IsDeviceMemory(uint64_t address, uint64_t bytes) const;
  // As of the driver's copies: a range of device memory lies in one allocation, or in adjacent
  // mappings; one of the host that begins in pinned memory lies in one allocation of it.
  bool IsCopyableOnDevice(uint64_t address, uint64_t bytes) const;
  bool IsCopyableOnHost(uint64_t address, uint64_t bytes) const {
    return EndsInItsAllocation(address, bytes);
  }
  // Where device memory or pinned memory lies for the fake; other addresses are the host's own.
  std::byte* Alias(uint64_t address) const;
  std::byte* Find(uint64_t address, uint64_t bytes) const override;

  // Allocations, mappings, imports and pinned memory that nobody has freed.
  uint64_t live() const;
  // The number of allocations of other processes that are open or mapped here.
  uint64_t imports() const;

 private:
  bool IsDeviceAddress(uint64_t address) const {
    return address >= base_ && address - base_ < span_;
  }
  uint64_t WindowOf(int device) const {
    return base_ + static_cast<uint64_t>(device) * kDeviceBytes;
  }
  // True, too, of what begins in none.
  bool EndsInItsAllocation(uint64_t address, uint64_t bytes) const;
  void Hide(uint64_t address, uint64_t bytes);
  std::optional<uint64_t> TakePhysical(int device, uint64_t bytes, uint64_t alignment);
  void Release(const Physical& physical);

  uint64_t base_ = 0;  // of all device addresses
  uint64_t span_ = 0;
  uint64_t alias_ = 0;                    // where base_ is for the fake itself
  std::vector<int> files_;                // by device
  std::mutex physical_mu_;                // taken last
  std::vector<RangeAllocator> physical_;  // by device: offsets in its file
  mutable std::mutex mu_;
  RangeAllocator addresses_;  // for reservations and imports
  RangeAllocator pinned_;     // of the host; allocations lie side by side, as the driver's may
  std::map<uint64_t, Allocation> allocations_;
  std::map<uint64_t, uint64_t> reservations_;
  uint64_t next_buffer_id_ = 1;
  std::atomic<bool> peers_refused_{false};
  std::atomic<bool> own_imports_allowed_{false};
};

}  // namespace th::testing

#endif  // TESTING_FAKE_CUDA_FAKE_MEMORY_H_
