// Registrations of whole allocations, found again by any pointer into them: thousands of tensors in
// one allocation are one registration.
//
//   RegistrationCache cache(*devices, {});
//   TH_ASSIGN_OR_RETURN(const RegistrationCache::Found found, cache.Find(tensor.data(),
//   tensor.bytes()));
//   ... bytes [found.offset, + tensor.bytes()) of *found.memory ...
//   // Before an engine sleeps:
//   TH_RETURN_IF_ERROR(cache.Revoke(arena, arena_bytes, absl::Seconds(10)));
//
// A registration is found by address but counts only while the same allocations lie there: a stale
// one is dropped, and the memory that lies there now is registered. Thread-safe.
#ifndef TH_MEMORY_CUDA_REGISTRATION_CACHE_H_
#define TH_MEMORY_CUDA_REGISTRATION_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/memory/cuda/device.h"
#include "th/memory/cuda/device_memory.h"
#include "th/memory/memory_region.h"

namespace th {

class RegistrationCache {
 public:
  struct Options {
    size_t max_registrations = 65536;
  };
  struct Found {
    std::shared_ptr<DeviceMemory>
        memory;           // shared with transfers that outlast its place in the cache
    uint64_t offset = 0;  // of the pointer in it
  };

  // `devices` outlives the cache.
  RegistrationCache(const CudaDevices& devices, Options options)
      : devices_(devices), options_(options) {}

  // The registration of all allocations that the range lies in. Errors of DeviceMemory::Register;
  // RESOURCE_EXHAUSTED also where there are max_registrations already.
  absl::StatusOr<Found> Find(const void* pointer, uint64_t bytes);
  // A registration of exactly the allocations that the range lies in, where Find may know a larger
  // one. The cache does not keep it and never finds it, but Revoke waits for its uses too. Errors
  // of DeviceMemory::Register.
  absl::StatusOr<std::shared_ptr<DeviceMemory>> RegisterApart(const void* pointer, uint64_t bytes);
  // Revokes and forgets every registration that has a byte of the range. DEADLINE_EXCEEDED: one is
  // in use still; the call may be repeated, and finds it again.
  absl::Status Revoke(const void* pointer, uint64_t bytes, absl::Duration timeout);
  // Waits for the uses under way of these regions alone, in every registration there is, and
  // refuses none: others may own memory beside them, in the same registrations. DEADLINE_EXCEEDED
  // names one.
  absl::Status AwaitUses(absl::Span<const MemoryRegion> regions, absl::Duration timeout) const;

  // Forgets the registrations that nobody but the cache has.
  void DropUnused();

  size_t size() const;

 private:
  using Registrations =
      std::map<uint64_t, std::shared_ptr<DeviceMemory>>;  // by address; they do not overlap

  std::vector<std::shared_ptr<DeviceMemory>> Overlapping(uint64_t address, uint64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::shared_ptr<DeviceMemory>> RegisterWhole(const void* pointer,
                                                              uint64_t bytes) const;
  void AddApart(const std::shared_ptr<DeviceMemory>& memory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const CudaDevices& devices_;
  const Options options_;
  mutable absl::Mutex mu_;
  Registrations registrations_ ABSL_GUARDED_BY(mu_);
  // Registered apart, or taken out of the cache by a larger one or as stale, and perhaps in use
  // still: Revoke waits for them too.
  std::vector<std::weak_ptr<DeviceMemory>> apart_ ABSL_GUARDED_BY(mu_);
};

}  // namespace th

#endif  // TH_MEMORY_CUDA_REGISTRATION_CACHE_H_
