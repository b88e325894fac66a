#include "testing/fake_cuda/fake_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace th::testing {
namespace {

// The content of a CUipcMemHandle: it says where another process finds the memory's file.
struct Exported {
  static constexpr uint64_t kMagic = 0x7468666b63756461;
  uint64_t magic;
  int32_t process;
  int32_t file;
  uint64_t offset;
  uint64_t bytes;
  int32_t device;
};
static_assert(sizeof(Exported) <= sizeof(CUipcMemHandle));

// The name of a Physical's file begins so; the number of its device follows.
constexpr char kPhysicalName[] = "fake_cuda_mapped_";

uint64_t RoundUp(uint64_t bytes, uint64_t granularity) {
  return (bytes + granularity - 1) / granularity * granularity;
}

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::abort();
}

uint64_t ReserveAddresses(uint64_t bytes, int protection = PROT_NONE) {
  void* address =
      mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) Die("fake_cuda: cannot reserve addresses");
  return reinterpret_cast<uint64_t>(address);
}

void MapFile(uint64_t address, uint64_t bytes, int file, uint64_t offset) {
  void* mapped = mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) Die("fake_cuda: cannot map a device's memory");
}

}  // namespace

std::optional<uint64_t> RangeAllocator::Take(uint64_t bytes, uint64_t alignment) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [begin, length] = *it;
    const uint64_t aligned = RoundUp(begin, alignment);
    if (aligned - begin + bytes > length) continue;
    free_.erase(it);
    if (aligned > begin) free_[begin] = aligned - begin;
    if (begin + length > aligned + bytes) free_[aligned + bytes] = begin + length - aligned - bytes;
    return aligned;
  }
  return std::nullopt;
}

void RangeAllocator::Give(uint64_t begin, uint64_t bytes) {
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && begin + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  }
  free_[begin] = bytes;
}

FakeMemory::FakeMemory(int devices)
    : addresses_(0, 0),
      pinned_(ReserveAddresses(kPinnedBytes, PROT_READ | PROT_WRITE), kPinnedBytes) {
  const uint64_t windows = static_cast<uint64_t>(devices) * kDeviceBytes;
  span_ = windows + kReservedBytes;
  base_ = RoundUp(ReserveAddresses(span_ + kMappingGranularity), kMappingGranularity);
  alias_ = RoundUp(ReserveAddresses(span_ + kMappingGranularity), kMappingGranularity);
  addresses_ = RangeAllocator(base_ + windows, kReservedBytes);
  for (int device = 0; device < devices; ++device) {
    const int file = memfd_create("fake_cuda_device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, kDeviceBytes) != 0) Die("fake_cuda: no file for a device");
    MapFile(alias_ + static_cast<uint64_t>(device) * kDeviceBytes, kDeviceBytes, file, 0);
    files_.push_back(file);
    physical_.emplace_back(0, kDeviceBytes);
  }
}

// ---- allocations ----

CUresult FakeMemory::Allocate(int device, uint64_t bytes, uint64_t* address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(mu_);
  const std::optional<uint64_t> offset =
      TakePhysical(device, RoundUp(bytes, kAllocationGranularity), kAllocationGranularity);
  if (!offset) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = WindowOf(device) + *offset;
  allocations_[*address] = {Kind::kPlain,      *address, bytes,  device,
                            next_buffer_id_++, true,     nullptr};
  return CUDA_SUCCESS;
}

CUresult FakeMemory::Free(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mu_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end() || found->second.kind != Kind::kPlain) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Allocation freed = found->second;
  allocations_.erase(found);
  Release({freed.device, address - WindowOf(freed.device),
           RoundUp(freed.bytes, kAllocationGranularity)});
  return CUDA_SUCCESS;
}

std::optional<uint64_t> FakeMemory::TakePhysical(int device, uint64_t bytes, uint64_t alignment) {
  const std::lock_guard<std::mutex> lock(physical_mu_);
  return physical_[device].Take(bytes, alignment);
}

// Freed bytes are gone: whoever reads the same memory later sees others.
void FakeMemory::Release(const Physical& physical) {
  if (fallocate(files_[physical.device], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(physical.offset), static_cast<off_t>(physical.bytes)) != 0) {
    Die("fake_cuda: cannot free a device's memory");
  }
  const std::lock_guard<std::mutex> lock(physical_mu_);
  physical_[physical.device].Give(physical.offset, physical.bytes);
}

CUresult FakeMemory::AllocateHost(uint64_t bytes, void** address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(mu_);
  const std::optional<uint64_t> begin =
      pinned_.Take(RoundUp(bytes, kPinnedGranularity), kPinnedGranularity);
  if (!begin) return CUDA_ERROR_OUT_OF_MEMORY;
  allocations_[*begin] = {Kind::kPinnedHost, *begin, bytes, 0, next_buffer_id_++, true, nullptr};
  *address = reinterpret_cast<void*>(*begin);
  return CUDA_SUCCESS;
}

CUresult FakeMemory::FreeHost(void* address) {
  const std::lock_guard<std::mutex> lock(mu_);
  const auto found = allocations_.find(reinterpret_cast<uint64_t>(address));
  if (found == allocations_.end() || found->second.kind != Kind::kPinnedHost) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t bytes = RoundUp(found->second.bytes, kPinnedGranularity);
  allocations_.erase(found);
  if (madvise(address, bytes, MADV_DONTNEED) != 0) Die("fake_cuda: cannot free pinned memory");
  pinned_.Give(reinterpret_cast<uint64_t>(address), bytes);
  return CUDA_SUCCESS;
}

// ---- virtual memory management ----

CUresult FakeMemory::Reserve(uint64_t bytes, uint64_t* address) {
  if (bytes == 0 || bytes % kMappingGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(mu_);
  const std::optional<uint64_t> taken = addresses_.Take(bytes, kMappingGranularity);
  if (!taken) return CUDA_ERROR_OUT_OF_MEMORY;
  reservations_[*taken] = bytes;
  *address = *taken;
  return CUDA_SUCCESS;
}

CUresult FakeMemory::Unreserve(uint64_t address, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mu_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = allocations_.lower_bound(address);
  if (mapped != allocations_.end() && mapped->first < address + bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  reservations_.erase(found);
  addresses_.Give(address, bytes);
  return CUDA_SUCCESS;
}

std::shared_ptr<const Physical> FakeMemory::Create(int device, uint64_t bytes, bool exportable) {
  const std::optional<uint64_t> offset = TakePhysical(device, bytes, kMappingGranularity);
  if (!offset) return nullptr;
  // The name is what tells another process which device it is of.
  const std::string name = kPhysicalName + std::to_string(device);
  const int file = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    Die("fake_cuda: no file for mapped memory");
  }
  return {new Physical{device, *offset, bytes, file, exportable}, [this](const Physical* physical) {
            close(physical->file);
            Release(*physical);
            delete physical;
          }};
}

CUresult FakeMemory::ExportPhysical(const Physical& physical, int* descriptor) const {
  if (!physical.exportable) return CUDA_ERROR_INVALID_VALUE;
  *descriptor = fcntl(physical.file, F_DUPFD_CLOEXEC, 0);
  return *descriptor < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

std::shared_ptr<const Physical> FakeMemory::ImportPhysical(int descriptor) {
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  std::array<char, 256> target = {};
  struct stat file = {};
  if (readlink(link.c_str(), target.data(), target.size() - 1) < 0 ||
      fstat(descriptor, &file) != 0) {
    return nullptr;
  }
  const std::string prefix = "/memfd:" + std::string(kPhysicalName);
  const std::string name(target.data());
  if (name.rfind(prefix, 0) != 0) return nullptr;
  const int device = std::atoi(name.c_str() + prefix.size());
  const int own = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return nullptr;
  return {new Physical{device, 0, static_cast<uint64_t>(file.st_size), own, true, true},
          [](const Physical* physical) {
            close(physical->file);
            delete physical;
          }};
}

CUresult FakeMemory::Map(uint64_t address, uint64_t bytes,
                         std::shared_ptr<const Physical> physical) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (bytes != physical->bytes || address % kMappingGranularity != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto reservation = reservations_.upper_bound(address);
  if (reservation == reservations_.begin()) return CUDA_ERROR_INVALID_VALUE;
  --reservation;
  if (address + bytes > reservation->first + reservation->second) return CUDA_ERROR_INVALID_VALUE;
  const auto overlapped = allocations_.lower_bound(address);
  if (overlapped != allocations_.end() && overlapped->first < address + bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  MapFile(address - base_ + alias_, bytes, physical->file, 0);
  const int device = physical->device;
  allocations_[address] = {Kind::kMapped,      address, bytes, device, next_buffer_id_++, false,
                           std::move(physical)};
  return CUDA_SUCCESS;
}

CUresult FakeMemory::Unmap(uint64_t address, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mu_);
  const uint64_t end = address + bytes;
  for (uint64_t at = address; at < end;) {
    const auto found = allocations_.find(at);
    if (found == allocations_.end() || found->second.kind != Kind::kMapped) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    at += found->second.bytes;
    Hide(found->second.address, found->second.bytes);
    allocations_.erase(found);
  }
  return CUDA_SUCCESS;
}

void FakeMemory::Hide(uint64_t address, uint64_t bytes) {
  if (mmap(reinterpret_cast<void*>(address - base_ + alias_), bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED) {
    Die("fake_cuda: cannot unmap");
  }
}

CUresult FakeMemory::SetAccess(uint64_t address, uint64_t bytes, int device) {
  const std::lock_guard<std::mutex> lock(mu_);
  for (uint64_t at = address; at < address + bytes;) {
    const auto found = allocations_.find(at);
    if (found == allocations_.end()) return CUDA_ERROR_INVALID_VALUE;
    if (!Reaches(device, found->second.device)) return CUDA_ERROR_INVALID_DEVICE;
    found->second.accessible = true;
    at += found->second.bytes;
  }
  return CUDA_SUCCESS;
}

// ---- other processes ----

CUresult FakeMemory::Export(uint64_t address, CUipcMemHandle* handle) const {
  const std::optional<Allocation> allocation = FindAllocation(address);
  // As the driver: the handle is of a whole allocation, and mappings have handles of another kind.
  if (!allocation || allocation->kind != Kind::kPlain) return CUDA_ERROR_INVALID_VALUE;
  const Exported exported = {
      Exported::kMagic,           getpid(),
      files_[allocation->device], allocation->address - WindowOf(allocation->device),
      allocation->bytes,          allocation->device};
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &exported, sizeof(exported));
  return CUDA_SUCCESS;
}

CUresult FakeMemory::Import(const CUipcMemHandle& handle, int device, uint64_t* address) {
  Exported exported;
  std::memcpy(&exported, &handle, sizeof(exported));
  if (exported.magic != Exported::kMagic || exported.offset > kDeviceBytes ||
      exported.bytes > kDeviceBytes - exported.offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (exported.process == getpid() && !own_imports_allowed_) return CUDA_ERROR_INVALID_CONTEXT;
  if (!Reaches(device, exported.device)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  const std::string path =
      "/proc/" + std::to_string(exported.process) + "/fd/" + std::to_string(exported.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return CUDA_ERROR_INVALID_VALUE;
  // A page of the file may hold other allocations too; the first of ours may begin within it.
  const uint64_t skipped = exported.offset % 4096;
  const uint64_t mapped_bytes = RoundUp(skipped + exported.bytes, kMappingGranularity);
  const std::lock_guard<std::mutex> lock(mu_);
  const std::optional<uint64_t> taken = addresses_.Take(mapped_bytes, kMappingGranularity);
  if (!taken) {
    close(file);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  MapFile(*taken - base_ + alias_, RoundUp(skipped + exported.bytes, 4096), file,
          exported.offset - skipped);
  close(file);
  *address = *taken + skipped;
  allocations_[*address] = {Kind::kImported,   *address, exported.bytes, device,
                            next_buffer_id_++, true,     nullptr};
  return CUDA_SUCCESS;
}

CUresult FakeMemory::CloseImport(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mu_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end() || found->second.kind != Kind::kImported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t skipped = address % 4096;
  const uint64_t mapped_bytes = RoundUp(skipped + found->second.bytes, kMappingGranularity);
  Hide(address - skipped, mapped_bytes);
  addresses_.Give(address - skipped, mapped_bytes);
  allocations_.erase(found);
  return CUDA_SUCCESS;
}

// ---- looking up ----

CUresult FakeMemory::ExportRange(uint64_t address, uint64_t bytes, int* descriptor) const {
  constexpr uint64_t kHostPage = 4096;
  if (bytes == 0 || address % kHostPage != 0 || bytes % kHostPage != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The first allocation may begin within the page.
  std::optional<Allocation> first;
  for (uint64_t at = address; !first && at < address + bytes; at += kAllocationGranularity) {
    first = FindAllocation(at);
  }
  if (!first || first->kind == Kind::kPinnedHost) return CUDA_ERROR_INVALID_VALUE;
  int file = -1;
  uint64_t offset = 0;
  if (first->kind == Kind::kPlain) {
    file = files_[first->device];
    offset = address - WindowOf(first->device);
  } else if (first->kind == Kind::kMapped && address == first->address && bytes == first->bytes) {
    file = first->physical->file;
  } else {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  // Opened anew: a position of its own.
  *descriptor = open(("/proc/self/fd/" + std::to_string(file)).c_str(), O_RDWR | O_CLOEXEC);
  if (*descriptor < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  return lseek(*descriptor, static_cast<off_t>(offset), SEEK_SET) < 0 ? CUDA_ERROR_OPERATING_SYSTEM
                                                                      : CUDA_SUCCESS;
}

std::optional<FakeMemory::Allocation> FakeMemory::FindAllocation(uint64_t address) const {
  const std::lock_guard<std::mutex> lock(mu_);
  auto found = allocations_.upper_bound(address);
  if (found == allocations_.begin()) return std::nullopt;
  --found;
  if (address - found->first >= found->second.bytes) return std::nullopt;
  return found->second;
}

bool FakeMemory::IsDeviceMemory(uint64_t address, uint64_t bytes) const {
  for (const uint64_t end = address + bytes; address < end;) {
    const std::optional<Allocation> allocation = FindAllocation(address);
    if (!allocation || allocation->kind == Kind::kPinnedHost || !allocation->accessible) {
      return false;
    }
    address = allocation->address + allocation->bytes;
  }
  return true;
}

bool FakeMemory::IsCopyableOnDevice(uint64_t address, uint64_t bytes) const {
  if (!IsDeviceMemory(address, bytes)) return false;
  return EndsInItsAllocation(address, bytes) || FindAllocation(address)->kind == Kind::kMapped;
}

bool FakeMemory::EndsInItsAllocation(uint64_t address, uint64_t bytes) const {
  const std::optional<Allocation> first = FindAllocation(address);
  return !first || address + bytes <= first->address + first->bytes;
}

std::byte* FakeMemory::Alias(uint64_t address) const {
  return reinterpret_cast<std::byte*>(IsDeviceAddress(address) ? address - base_ + alias_
                                                               : address);
}

std::byte* FakeMemory::Find(uint64_t address, uint64_t bytes) const {
  const std::optional<Allocation> allocation = FindAllocation(address);
  if (!allocation || (allocation->kind != Kind::kPinnedHost && !IsDeviceMemory(address, bytes))) {
    std::fprintf(stderr,
                 "fake_cuda: a kernel touches %llu bytes at %#llx, which is no device memory\n",
                 static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(address));
    std::abort();
  }
  return Alias(address);
}

uint64_t FakeMemory::live() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return allocations_.size() + reservations_.size();
}

uint64_t FakeMemory::imports() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return static_cast<uint64_t>(
      std::count_if(allocations_.begin(), allocations_.end(), [](const auto& entry) {
        const Allocation& allocation = entry.second;
        return allocation.kind == Kind::kImported ||
               (allocation.physical != nullptr && allocation.physical->imported);
      }));
}

}  // namespace th::testing
