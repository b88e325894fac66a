#include "th/transfer/same_host/peer_memory.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/transfer/stream/socket.h"

namespace th::same_host {
namespace {

// Most kernels allow 1024 (IOV_MAX) of each side in a call.
constexpr size_t kMaxPiecesPerCall = 1024;

// The Yama module's rule: 0 none, 1 only descendants, 2 only with CAP_SYS_PTRACE, 3 nobody.
// Nothing where there is no such module.
std::string YamaScope() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  std::string scope;
  file >> scope;
  return scope;
}

absl::Status NotPermitted(pid_t pid) {
  const std::string scope = YamaScope();
  std::string why = absl::StrCat("the kernel does not let this process read the memory of process ",
                                 pid, " (process_vm_readv: EPERM)");
  if (scope == "3") {
    absl::StrAppend(&why, "; kernel.yama.ptrace_scope is 3, until the host boots with another");
  } else if (!scope.empty() && scope != "0") {
    absl::StrAppend(&why, "; kernel.yama.ptrace_scope is ", scope,
                    ": set it to 0, or give the readers CAP_SYS_PTRACE; a seccomp filter may "
                    "forbid it too");
  } else {
    absl::StrAppend(&why,
                    "; both must run as one user in one user namespace, without a seccomp filter "
                    "that forbids it, or the readers need CAP_SYS_PTRACE");
  }
  return absl::PermissionDeniedError(why);
}

absl::Status ReadFailed(pid_t pid, int error) {
  if (error == EPERM) return NotPermitted(pid);
  if (error == ENOSYS) {
    return absl::PermissionDeniedError("this kernel has no process_vm_readv");
  }
  if (error == ESRCH) return absl::AbortedError(absl::StrCat("process ", pid, " has ended"));
  return absl::NotFoundError(
      absl::StrCat("the memory of process ", pid, " cannot be read: ", stream::ErrnoText(error)));
}

// Takes `bytes` from the front of pieces that begin at `*piece`, `*offset` bytes into it.
void Advance(absl::Span<const iovec> pieces, size_t bytes, size_t* piece, size_t* offset) {
  while (bytes > 0) {
    const size_t take = std::min(bytes, pieces[*piece].iov_len - *offset);
    bytes -= take;
    *offset += take;
    if (*offset < pieces[*piece].iov_len) return;
    ++*piece;
    *offset = 0;
  }
}

// The next pieces for one call, the first one without what was taken of it.
size_t NextPieces(absl::Span<const iovec> pieces, size_t piece, size_t offset,
                  absl::Span<iovec> out) {
  size_t count = 0;
  for (; piece < pieces.size() && count < out.size(); ++piece, offset = 0) {
    if (pieces[piece].iov_len == offset) continue;
    out[count++] = {static_cast<char*>(pieces[piece].iov_base) + offset,
                    pieces[piece].iov_len - offset};
  }
  return count;
}

}  // namespace

MemoryProbe OwnProbe() {
  static const uint64_t* const word = [] {
    auto* made = new uint64_t{1};
    // Cannot fail for so few bytes once the system has booted.
    if (getrandom(made, sizeof(*made), 0) < 0) *made = 1;
    return made;
  }();
  return {.address = reinterpret_cast<uintptr_t>(word), .value = *word};
}

absl::StatusOr<PeerMemory> PeerMemory::Of(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return absl::UnavailableError(absl::StrCat(
        "the system does not say which process is at the other end: ", stream::ErrnoText(errno)));
  }
  if (peer.pid <= 0) {
    return absl::UnavailableError(
        "the source's process cannot be seen from here: it is in another PID namespace (let the "
        "containers of a host share one)");
  }
  return PeerMemory(peer.pid, peer.uid);
}

absl::Status PeerMemory::Read(absl::Span<const iovec> from, absl::Span<const iovec> into) const {
  iovec remote[kMaxPiecesPerCall], local[kMaxPiecesPerCall];
  size_t from_piece = 0, from_offset = 0, into_piece = 0, into_offset = 0;
  while (true) {
    const size_t remotes = NextPieces(from, from_piece, from_offset, absl::MakeSpan(remote));
    const size_t locals = NextPieces(into, into_piece, into_offset, absl::MakeSpan(local));
    if (remotes == 0 || locals == 0) return absl::OkStatus();
    const ssize_t got = process_vm_readv(pid_, local, locals, remote, remotes, 0);
    if (got < 0) return ReadFailed(pid_, errno);
    if (got == 0) return ReadFailed(pid_, EFAULT);
    Advance(from, static_cast<size_t>(got), &from_piece, &from_offset);
    Advance(into, static_cast<size_t>(got), &into_piece, &into_offset);
  }
}

absl::StatusOr<PeerMemory::TwoWords> PeerMemory::ReadTwoWords(uint64_t address) const {
  TwoWords words{};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process.
  const iovec from{reinterpret_cast<void*>(address), sizeof(words)};
  const iovec into{words.data(), sizeof(words)};
  TH_RETURN_IF_ERROR(Read({&from, 1}, {&into, 1}));
  return words;
}

absl::Status PeerMemory::Probe(const MemoryProbe& probe) const {
  uint64_t value = 0;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process.
  const iovec from{reinterpret_cast<void*>(probe.address), sizeof(value)};
  const iovec into{&value, sizeof(value)};
  TH_RETURN_IF_ERROR(Read({&from, 1}, {&into, 1}));
  if (value == probe.value) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("process ", pid_, " is not the source, or shows other memory than it uses"));
}

}  // namespace th::same_host
