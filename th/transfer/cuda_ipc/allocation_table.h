// The device memory that a source shares, as readers of its host find it: a table in shared memory
// with a slot for each exported allocation. A reader learns of a slot by its number (the key
// of a piece), reads there how to import the allocation, and says there that it has.
//
//   source                                             reader
//   AllocationTable::Create(); ReaderOf(pid)           PeerTable::Open(pid, offered, reader)
//   slot = Take(); Share(slot, entry)  ── slot ──────► Read(slot); Enter(slot, id), imports
//   Retire(slot); AwaitReleased({slot}, …)             AwaitChange(): StillShared(slot, id)? no:
//   Give(slot)                        ◄── released ──  closes its import, Leave(slot)
//
// An allocation is known by a random id, never by slot or address alone. A reader that has entered
// a slot has the allocation open until it leaves; Retire makes the id void, and whoever enters
// later is refused. A reader process has one bit of each slot, so that what a killed one has left
// behind can be taken back.
//
// The table trusts processes of its own user: those could read its memory anyway.
#ifndef TH_TRANSFER_CUDA_IPC_ALLOCATION_TABLE_H_
#define TH_TRANSFER_CUDA_IPC_ALLOCATION_TABLE_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
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
#include "th/memory/cuda/shared_allocation.h"
#include "th/transfer/same_host/process_watch.h"
#include "th/transfer/stream/socket.h"

namespace th::cuda_ipc {

inline constexpr uint32_t kMaxSharedAllocations = 65536;
// Processes that may read one source over this transport.
inline constexpr uint32_t kMaxReaderProcesses = 64;

// The table as its owner names it.
struct OfferedTable {
  uint64_t life = 0;  // random
  uint64_t inode = 0;
  uint64_t file_descriptor = 0;  // of the owner's
};

// The content of a slot: its allocation, and how to import it.
struct SharedAllocation {
  uint64_t id = 0;       // random, not 0
  uint64_t address = 0;  // of the allocation in its owner
  uint32_t next = 0;     // one more than the slot of what lies behind it; 0: nobody has asked
  ExportedAllocation exported;
};

struct TableMemory;  // what is in the shared memory

// The mapping of a table, in whatever process. A forked child of that process has no mapping: there
// it may only be destroyed.
class MappedTable {
 public:
  explicit MappedTable(TableMemory* memory);
  ~MappedTable();
  MappedTable(const MappedTable&) = delete;
  MappedTable& operator=(const MappedTable&) = delete;
  TableMemory& operator*() const { return *memory_; }
  TableMemory* operator->() const { return memory_; }

 private:
  TableMemory* const memory_;
  const pid_t process_;  // that has mapped it
};

// The source's side. Thread-safe.
class AllocationTable {
 public:
  // RESOURCE_EXHAUSTED: no descriptor or no memory.
  static absl::StatusOr<std::unique_ptr<AllocationTable>> Create();
  ~AllocationTable();

  OfferedTable offered() const;
  // The reader's bit, which is its until the process ends. RESOURCE_EXHAUSTED: kMaxReaderProcesses
  // have one.
  absl::StatusOr<uint32_t> ReaderOf(pid_t process);

  // RESOURCE_EXHAUSTED: kMaxSharedAllocations are shared.
  absl::StatusOr<uint32_t> Take();
  // From now on readers may import it. `id` is drawn by this call, and returned.
  uint64_t Share(uint32_t slot, SharedAllocation allocation);
  // The same allocation, otherwise exported.
  void ShareAnew(uint32_t slot, const ExportedAllocation& exported);
  // The allocation of `next` lies right behind that of `slot`.
  void Link(uint32_t slot, uint32_t next);
  // Nobody imports it from now on; who has it open is told to close it.
  void Retire(uint32_t slot);
  // Waits until no process that lives has one of these open. False: one has after `timeout`.
  bool AwaitReleased(absl::Span<const uint32_t> slots, absl::Duration timeout);
  // The slot may be taken again, once nobody has its allocation open.
  void Give(uint32_t slot);
  uint32_t shared() const;  // slots that are taken

 private:
  struct Reader {
    std::unique_ptr<const same_host::ProcessWatch> process;  // null: nobody has the bit
  };

  AllocationTable(std::unique_ptr<MappedTable> memory, stream::Socket file, uint64_t inode);
  // Clears what processes that have ended left behind.
  void ForgetEndedReaders() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetReader(size_t reader) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AreReleased(absl::Span<const uint32_t> slots) const;

  const std::unique_ptr<MappedTable> memory_;
  const stream::Socket file_;
  const uint64_t inode_;
  mutable absl::Mutex mu_;
  std::vector<Reader> readers_ ABSL_GUARDED_BY(mu_);  // by bit
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mu_);   // slots that were given back
  std::vector<uint32_t> given_ ABSL_GUARDED_BY(mu_);  // likewise, but somebody may have them open
  uint32_t next_unused_ ABSL_GUARDED_BY(mu_) = 0;
};

// A source's table in a reader's process; one for all its transports. Thread-safe.
class PeerTable {
 public:
  // NOT_FOUND: the source has ended or names no such file. PERMISSION_DENIED: the kernel does not
  // let this process open it, with what to do. INVALID_ARGUMENT: it is no table.
  static absl::StatusOr<std::shared_ptr<PeerTable>> Open(pid_t owner, const OfferedTable& offered,
                                                         uint32_t reader);
  PeerTable(std::unique_ptr<MappedTable> memory, uint32_t reader);

  // NOT_FOUND: nothing is shared there (any more). INVALID_ARGUMENT: it makes no sense.
  absl::StatusOr<SharedAllocation> Read(uint32_t slot) const;
  // False: it is not shared any more, and must not be imported. True: it may, until as many Leave.
  bool Enter(uint32_t slot, uint64_t id);
  void Leave(uint32_t slot);
  bool StillShared(uint32_t slot, uint64_t id) const;
  // A number that grows when something is retired.
  uint32_t changes() const;
  // Returns once changes() is not `seen` any more, Wake was called, or the time is over.
  void AwaitChange(uint32_t seen, absl::Duration timeout) const;
  void Wake() const;

 private:
  const std::unique_ptr<MappedTable> memory_;
  const uint64_t bit_;
  absl::Mutex mu_;
  std::map<uint32_t, uint32_t> entered_ ABSL_GUARDED_BY(mu_);  // {slot: how often}
};

// Brings a descriptor of another process into this one (pidfd_getfd). PERMISSION_DENIED,
// NOT_FOUND, UNIMPLEMENTED: what the kernel says, with what to do.
absl::StatusOr<stream::Socket> FetchDescriptor(pid_t owner, uint64_t file_descriptor);

}  // namespace th::cuda_ipc

#endif  // TH_TRANSFER_CUDA_IPC_ALLOCATION_TABLE_H_
