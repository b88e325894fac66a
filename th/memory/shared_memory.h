// Host memory of this process that other processes of its host can map: files that exist in memory
// alone (memfd) and whose size is sealed, so that nobody who maps one ever meets its end.
//
//   TH_ASSIGN_OR_RETURN(std::byte* data, MapSharedMemory(bytes));
//   FindSharedMemory(data + 4096, 100)->file_descriptor;  // where others can open it
//   UnmapSharedMemory(data);
//
// A process that has mapped a range to copy from it keeps its address range after
// UnmapSharedMemory, and not the pages: they go back to the system at once, and read as zeros
// there.
//
// Attached ranges. A reader may also use a range where it lies (ReadersMay::kAttach): it then holds
// a lease (reader_lease.h) on it, and the pages that it sees are never written again and never
// taken back, whatever the owner does:
//
//   TH_ASSIGN_OR_RETURN(OfferedToReaders offer, OfferToReaders(data, bytes, limit_bytes));
//   // ... the reader takes its lease and looks whether the content is still what it was offered
//   ...
//   // The owner makes the content invalid for new readers, then, before it writes:
//   RenewSharedMemory(data, absl::Seconds(2));  // the same addresses, content, and other pages
//
// UnmapSharedMemory leaves the pages of a leased range to its readers in the same way.
//
// Thread-safe. A forked child shares its parent's pages, and leaves them to it when it unmaps.
#ifndef TH_MEMORY_SHARED_MEMORY_H_
#define TH_MEMORY_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/memory/reader_lease.h"

namespace th {

// The use that others may make of a range.
enum class ReadersMay : uint8_t {
  kCopy,    // map it for as long as they copy from it
  kAttach,  // use it where it lies too: see RenewSharedMemory for what that asks of the owner
};

struct SharedMemoryRange {
  std::byte* address = nullptr;
  uint64_t bytes = 0;
  int file_descriptor = -1;
  // A random number that no other range of any process has: the file's descriptor and inode may be
  // given out again. Another one once the range has other pages.
  uint64_t id = 0;
  uint64_t inode = 0;
  LeasePlace lease;  // number 0: ReadersMay::kCopy
};

// Maps `bytes`, a multiple of kArenaAlignment (host_arena.h), at a multiple of it; its pages are
// not backed yet. RESOURCE_EXHAUSTED, UNAVAILABLE: the system gives no such file, or no addresses.
absl::StatusOr<std::byte*> MapSharedMemory(uint64_t bytes,
                                           ReadersMay readers_may = ReadersMay::kCopy);
// False: `data` is no begin of a mapped range, and nothing was done.
bool UnmapSharedMemory(std::byte* data);

// The range that holds all of [address, address + bytes).
std::optional<SharedMemoryRange> FindSharedMemory(const void* address, uint64_t bytes);
// All ranges of this process, by address.
std::vector<SharedMemoryRange> AllSharedMemory();

// ---- ranges that readers attach

struct OfferedToReaders {
  SharedMemoryRange range;
  // While it lives the range counts as attached: until the reader has taken its lease, or given up.
  // Shared by the offers to one reader, which end together.
  std::shared_ptr<const void> pin;
};
// Offers the range that holds all of [address, address + bytes) to one more reader.
// FAILED_PRECONDITION: there is none that readers may attach. RESOURCE_EXHAUSTED: the ranges that
// readers have attached and those that were left to them would be more than `limit_bytes`.
absl::StatusOr<OfferedToReaders> OfferToReaders(const void* address, uint64_t bytes,
                                                uint64_t limit_bytes);
// True when readers have attached, or are about to attach, the range that begins at `data`.
bool IsAttached(const std::byte* data);
// The bytes of ranges that this process has unmapped or renewed while readers had attached them,
// and that they still have.
uint64_t BytesLeftToReaders();

enum class Renewal : uint8_t {
  kNotAttached,  // nothing was done
  // The range has pages of its own again, in a new file.
  kRenewed,
  // There was no memory, or no time, for a copy: from here on what this process writes in the range
  // goes to private copies of single pages. The range is no shared memory any more.
  kPrivate,
};
// Leaves the pages of the range that begins at `data` to the readers that have attached it. This
// process goes on at the same addresses with the same content. Whoever has pinned the pages
// otherwise (RDMA registrations, other processes that have mapped the file) has the old ones. The
// copy is given up after `patience`; with none the range becomes private at once, whatever its
// size. Unless `patience` is zero nobody may write to the range meanwhile. Of two calls at once for
// one range the one that is done first counts, and the other returns no sooner. The pages change
// hands in some 0.1 s a GB: UnmapSharedMemory, of any range, waits for that; offers and
// FindSharedMemory do not.
Renewal RenewSharedMemory(std::byte* data, absl::Duration patience);

}  // namespace th

#endif  // TH_MEMORY_SHARED_MEMORY_H_
