#include "th/transfer/same_host/host_memory.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "th/transfer/same_host/peer_memory.h"
#include "th/transfer/stream/socket.h"
#include "th/weights/status_macros.h"

namespace th::same_host {
namespace {

// ---- what cannot be read

bool Overlap(const MemoryRegion& region, const iovec& piece) {
  const char* const begin = static_cast<const char*>(region.address);
  const char* const piece_begin = static_cast<const char*>(piece.iov_base);
  return begin < piece_begin + piece.iov_len && piece_begin < begin + region.bytes;
}

// False only where the kernel says that there is memory which it does not read for others. Whether
// it reads anything at all for the reader is the probe's question.
bool CanRead(const MemoryRegion& region) {
  char ends[2];
  char* const first = static_cast<char*>(region.address);
  const iovec from[2] = {{first, 1}, {first + region.bytes - 1, 1}};
  const iovec into{ends, sizeof(ends)};
  const ssize_t got = process_vm_readv(getpid(), &into, 1, from, 2, 0);
  return got == sizeof(ends) || (got < 0 && errno != EFAULT);
}

class Unreadable final : public UnreadableMemory, public std::enable_shared_from_this<Unreadable> {
 public:
  std::unique_ptr<AttachedMemory> Attach(absl::Span<const MemoryRegion> regions) override {
    std::vector<MemoryRegion> found;
    for (const MemoryRegion& region : regions) {
      if (region.bytes == 0) continue;
      if (region.kind == MemoryKind::kDevice || !CanRead(region)) found.push_back(region);
    }
    if (found.empty()) return std::make_unique<AttachedMemory>();
    absl::MutexLock lock(&mu_);
    regions_.insert(regions_.end(), found.begin(), found.end());
    return std::make_unique<Handle>(shared_from_this(), std::move(found));
  }

  bool Overlaps(const iovec& piece) const override {
    absl::ReaderMutexLock lock(&mu_);
    return std::any_of(regions_.begin(), regions_.end(),
                       [&](const MemoryRegion& region) { return Overlap(region, piece); });
  }

 private:
  class Handle final : public AttachedMemory {
   public:
    Handle(std::shared_ptr<Unreadable> owner, std::vector<MemoryRegion> regions)
        : owner_(std::move(owner)), regions_(std::move(regions)) {}
    ~Handle() override { owner_->Forget(regions_); }

   private:
    const std::shared_ptr<Unreadable> owner_;
    const std::vector<MemoryRegion> regions_;
  };

  // Each once: another buffer may have attached the same memory.
  void Forget(const std::vector<MemoryRegion>& regions) {
    absl::MutexLock lock(&mu_);
    for (const MemoryRegion& region : regions) {
      regions_.erase(std::find(regions_.begin(), regions_.end(), region));
    }
  }

  mutable absl::Mutex mu_;
  std::vector<MemoryRegion> regions_ ABSL_GUARDED_BY(mu_);  // almost always empty
};

// ---- the source's end

class ServedHostMemory final : public stream::ServedMemory {
 public:
  ServedHostMemory(int fd, std::shared_ptr<const UnreadableMemory> unreadable)
      : fd_(fd), unreadable_(std::move(unreadable)) {}

  // Addresses of this process are told only to those who could read its memory anyway.
  absl::StatusOr<std::string> Offer() override {
    ucred peer{};
    socklen_t size = sizeof(peer);
    if (getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
      return absl::UnavailableError(
          absl::StrCat("the source does not know which user you are: ", stream::ErrnoText(errno)));
    }
    if (peer.uid != geteuid() && peer.uid != 0) {
      return absl::PermissionDeniedError(
          absl::StrCat("the source runs as user ", geteuid(), ", this process as user ", peer.uid,
                       ": run both as one user, or the reader as root"));
    }
    const MemoryProbe probe = OwnProbe();
    return std::string(reinterpret_cast<const char*>(&probe), sizeof(probe));
  }
  absl::StatusOr<std::string> HandleAnswer(absl::string_view) override {
    return absl::InvalidArgumentError("Memory from a reader, which has nothing to answer here");
  }
  std::optional<uint32_t> KeyOf(const iovec& piece) override {
    return unreadable_->Overlaps(piece) ? std::nullopt : std::optional<uint32_t>(0);
  }

 private:
  const int fd_;
  const std::shared_ptr<const UnreadableMemory> unreadable_;
};

// ---- the reader's end

class RemoteHostMemory final : public stream::RemoteMemory {
 public:
  explicit RemoteHostMemory(int fd) : fd_(fd) {}

  absl::StatusOr<std::string> HandleOffer(absl::string_view offer) override {
    MemoryProbe probe;
    if (offer.size() < sizeof(probe)) {
      return absl::InvalidArgumentError("Memory is too short for an address and its value");
    }
    std::memcpy(&probe, offer.data(), sizeof(probe));
    TH_ASSIGN_OR_RETURN(const PeerMemory peer, PeerMemory::Of(fd_));
    const absl::Status readable = peer.Probe(probe);
    if (!readable.ok()) return readable;
    peer_ = peer;
    return std::string();
  }
  bool ready() const override { return peer_.has_value(); }
  int fd() const override { return -1; }

  void Start(absl::Span<const stream::Located::Piece> from, absl::Span<const iovec> into,
             const stream::ControlPlace& control) override {
    std::vector<iovec> pieces;
    pieces.reserve(from.size());
    for (const stream::Located::Piece& piece : from) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process.
      pieces.push_back({reinterpret_cast<void*>(piece.address), piece.bytes});
    }
    Read read{.status = peer_->Read(pieces, into), .control = std::nullopt};
    // The bytes before the control block: on no processor may the second read be the older one.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const absl::StatusOr<PeerMemory::TwoWords> words = peer_->ReadTwoWords(control.address);
    if (words.ok()) {
      read.control = Read::Control{.generation = (*words)[0], .life = (*words)[1]};
    } else if (read.status.ok()) {
      read.status = words.status();
    }
    ended_.push_back(std::move(read));
  }
  absl::StatusOr<std::optional<Read>> Poll() override {
    if (ended_.empty()) return std::optional<Read>();
    std::optional<Read> read = std::move(ended_.front());
    ended_.pop_front();
    return read;
  }

 private:
  const int fd_;
  std::optional<PeerMemory> peer_;  // once the probe has succeeded
  std::deque<Read> ended_;
};

static_assert(offsetof(ControlBlock, generation) == 0 &&
                  offsetof(ControlBlock, life) == sizeof(uint64_t) &&
                  sizeof(ControlBlock) == sizeof(PeerMemory::TwoWords),
              "readers take the control block as two words");

}  // namespace

std::shared_ptr<UnreadableMemory> UnreadableMemory::New() { return std::make_shared<Unreadable>(); }

std::unique_ptr<stream::ServedMemory> ServeHostMemory(
    int fd, std::shared_ptr<const UnreadableMemory> unreadable) {
  return std::make_unique<ServedHostMemory>(fd, std::move(unreadable));
}

std::unique_ptr<stream::RemoteMemory> ReadHostMemory(int fd) {
  return std::make_unique<RemoteHostMemory>(fd);
}

}  // namespace th::same_host
