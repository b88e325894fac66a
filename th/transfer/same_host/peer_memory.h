// The memory of the process at the other end of a Unix socket, read without its help
// (process_vm_readv): one copy, no page of it mapped here.
//
//   TH_ASSIGN_OR_RETURN(PeerMemory memory, PeerMemory::Of(socket.fd()));
//   TH_RETURN_IF_ERROR(memory.Probe(probe));  // may it be read at all?
//   TH_RETURN_IF_ERROR(memory.Read(from, into));
//
// The kernel may give the number of a process to another one once it has ended, so no read proves
// whose bytes it has returned: compare the buffer's ControlBlock after each Read.
//
// A value; thread-safe.
#ifndef TH_TRANSFER_SAME_HOST_PEER_MEMORY_H_
#define TH_TRANSFER_SAME_HOST_PEER_MEMORY_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace th::same_host {

// A random word of a process, and where it lies there until the process ends. A reader that finds
// the value at the address reads the memory of the process that named them.
struct MemoryProbe {
  uint64_t address = 0;
  uint64_t value = 0;
};
MemoryProbe OwnProbe();

class PeerMemory {
 public:
  // UNAVAILABLE: the peer cannot be seen from here (a socket of another kind, another PID
  // namespace).
  static absl::StatusOr<PeerMemory> Of(int fd);

  // OK: the word is there and can be read. PERMISSION_DENIED: this process may not read the peer's
  // memory, with what forbids it and what to do. FAILED_PRECONDITION: another value is there.
  absl::Status Probe(const MemoryProbe& probe) const;
  // Copies the bytes of `from`, in the peer's address space, to `into`; both have the same sum of
  // lengths. PERMISSION_DENIED as above. NOT_FOUND: an address that is none there. ABORTED: the
  // process has ended, though its sockets may still be open for a moment. After an error a part of
  // `into` may be written.
  absl::Status Read(absl::Span<const iovec> from, absl::Span<const iovec> into) const;
  // Two words that lie beside each other.
  using TwoWords = std::array<uint64_t, 2>;
  absl::StatusOr<TwoWords> ReadTwoWords(uint64_t address) const;

  pid_t pid() const { return pid_; }
  uid_t user() const { return user_; }

 private:
  PeerMemory(pid_t pid, uid_t user) : pid_(pid), user_(user) {}

  pid_t pid_;
  uid_t user_;
};

}  // namespace th::same_host

#endif  // TH_TRANSFER_SAME_HOST_PEER_MEMORY_H_
