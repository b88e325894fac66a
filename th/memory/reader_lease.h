// Leases on memory of a process that readers of its host hold while they use it where it lies.
//
// A lease is a lock on one byte of a file that the owner has for this alone (fcntl, F_OFD_SETLK).
// The kernel keeps it for exactly as long as a descriptor of the reader's lives, however the reader
// ends; no connection and no word between the two is needed. The owner never locks; it asks.
//
//   owner                                     reader
//   place = NewLeasePlace()  ─── place ───►   lease = ReaderLease::Take(pid, place)
//                                             check that the memory is still valid
//   invalidate the memory for readers         ... use it ...
//   if (IsLeased(place.number)) leave it      lease.reset()
//
// Of a reader that takes its lease before it looks, and an owner that invalidates before it asks,
// at least one sees the other.
//
// Thread-safe. A forked child of a reader shares its leases, as it shares its mappings.
#ifndef TH_MEMORY_READER_LEASE_H_
#define TH_MEMORY_READER_LEASE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace th {

// Where a lease is taken: the owner's file, and the byte in it.
struct LeasePlace {
  int file_descriptor = -1;  // of the owner's
  uint64_t inode = 0;
  uint64_t number = 0;  // from 1; never given out again by this process
};

// ---- the owner's process
// RESOURCE_EXHAUSTED: the system gives no file.
absl::StatusOr<LeasePlace> NewLeasePlace();
// True when anybody holds a lease with this number.
bool IsLeased(uint64_t number);

// ---- the reader's
class ReaderLease {
 public:
  // NOT_FOUND: the owner has ended, or the file is not the one named. PERMISSION_DENIED,
  // RESOURCE_EXHAUSTED, UNAVAILABLE: as the system says.
  static absl::StatusOr<std::unique_ptr<ReaderLease>> Take(pid_t owner, const LeasePlace& place);
  ~ReaderLease();
  ReaderLease(const ReaderLease&) = delete;
  ReaderLease& operator=(const ReaderLease&) = delete;

 private:
  explicit ReaderLease(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace th

#endif  // TH_MEMORY_READER_LEASE_H_
