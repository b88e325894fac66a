// Shared memory of other processes of this host (th/memory/shared_memory.h), mapped read-only into
// this one: what readers copy from without a system call. A mapping costs about as much as a third
// of the copy that it serves, so it is kept for the next transfer.
//
//   MappedMemory mapped;
//   const auto range = mapped.Map(pid, offered);   // null: it cannot be mapped; read it otherwise
//   memcpy(to, range->data() + offset, bytes);
//
// A mapping that is kept and not in use costs addresses, not memory, while the owner lives: it
// takes its pages back when it frees them. Nobody takes back those of an owner that was killed;
// Trim gives such mappings up, and beyond kMaxIdleMappings the longest unused. Transports call
// TrimSoon whenever something happens on them: to unmap takes a tenth of a second a GB, which
// neither a data thread nor a fill has.
//
// Thread-safe. Mappings may outlive it. The thread `th-unmap` begins with the first TrimSoon that
// finds a mapping.
#ifndef TH_TRANSFER_SAME_HOST_MAPPED_MEMORY_H_
#define TH_TRANSFER_SAME_HOST_MAPPED_MEMORY_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "th/transfer/same_host/process_watch.h"
#include "th/transfer/task_thread.h"

namespace th::same_host {

inline constexpr size_t kMaxIdleMappings = 16;

// A range as its owner names it.
struct OfferedRange {
  uint64_t address = 0;  // in the owner
  uint64_t bytes = 0;
  uint64_t id = 0;
  uint64_t inode = 0;
  uint64_t file_descriptor = 0;  // of the owner's
};

class MappedRange {
 public:
  MappedRange(const std::byte* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  ~MappedRange();
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;
  const std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  const std::byte* const data_;
  const uint64_t bytes_;
};

// Maps the owner's file for reading. Null where the kernel does not let this process open it, or
// the file is not the one that was offered, or its size is not sealed or its pages are reserved
// ones: touching it might end in a signal.
std::shared_ptr<const MappedRange> MapOffered(pid_t owner, const OfferedRange& offered);

class MappedMemory {
 public:
  // Maps as MapOffered does, or returns the mapping that is kept.
  std::shared_ptr<const MappedRange> Map(pid_t owner, const OfferedRange& offered);
  // The owner offers these now: others of it are given up by the next Trim. The pages of one that
  // it has left to readers who use them in place (th/memory/shared_memory.h) would stay for as long
  // as they are mapped here.
  void KeepOnly(pid_t owner, absl::Span<const OfferedRange> offered);
  // Gives up what is not in use of owners that have ended, what its owner does not offer, and of
  // the others the longest unused beyond the limit.
  void Trim();
  // The same, on a thread of its own.
  void TrimSoon();

 private:
  struct Kept {
    uint64_t id = 0;
    std::unique_ptr<const ProcessWatch> owner;
    std::shared_ptr<const MappedRange> range;
    bool stale = false;  // its owner does not offer it any more
  };

  absl::Mutex mu_;
  std::list<Kept> kept_ ABSL_GUARDED_BY(mu_);  // the last used first
  bool trims_ ABSL_GUARDED_BY(mu_) = false;    // a Trim is posted and has not begun
  // Destroyed first: its task uses the rest.
  std::unique_ptr<TaskThread> unmapper_ ABSL_GUARDED_BY(mu_);
};

}  // namespace th::same_host

#endif  // TH_TRANSFER_SAME_HOST_MAPPED_MEMORY_H_
