// The speed of this host's memory: the same bytes, out of memory that two processes share into the
// reader's own, by plain memcpy on as many threads, without checksums. The yardstick of
// `th bench transfer --transport same_host`: no transport between processes copies with less.
//
//   TH_ASSIGN_OR_RETURN(auto shared, SharedCopy::Of(holders_memory));     // in one process
//   TH_ASSIGN_OR_RETURN(auto mapped, MappedCopy::Open(path, bytes));      // in the other
//   mapped.CopyTo(readers_memory, /*threads=*/2);                         // what is timed
#ifndef TH_PROCESSES_MEMORY_PROBE_H_
#define TH_PROCESSES_MEMORY_PROBE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "th/processes/raw_probe.h"  // MemoryStream

namespace th {

// The most threads of a copy.
inline constexpr uint32_t kMaxCopyThreads = 64;

// A copy of some memory in a file that exists in memory alone, as long as this does.
class SharedCopy {
 public:
  // RESOURCE_EXHAUSTED: no descriptor, no memory.
  static absl::StatusOr<std::unique_ptr<SharedCopy>> Of(const MemoryStream& memory);
  ~SharedCopy();
  // Where processes of the same user can open it.
  std::string path() const;

 private:
  explicit SharedCopy(int fd) : fd_(fd) {}
  const int fd_;
};

// A SharedCopy of another process, mapped here with all its pages.
class MappedCopy {
 public:
  // NOT_FOUND: it cannot be opened, or has another size.
  static absl::StatusOr<MappedCopy> Open(const std::string& path, uint64_t bytes);
  MappedCopy(MappedCopy&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  MappedCopy& operator=(MappedCopy&&) = delete;
  ~MappedCopy();

  // INVALID_ARGUMENT: `into` has another size, or there are no such number of threads.
  absl::Status CopyTo(const MemoryStream& into, uint32_t threads) const;

 private:
  MappedCopy(const char* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  const char* data_;
  uint64_t bytes_;
};

}  // namespace th

#endif  // TH_PROCESSES_MEMORY_PROBE_H_
