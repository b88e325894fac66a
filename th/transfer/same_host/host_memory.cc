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

#include "absl/strings/str_cat.h"
#include "th/memory/shared_memory.h"
#include "th/status/status_macros.h"
#include "th/transfer/same_host/peer_memory.h"
#include "th/transfer/same_host/peer_user.h"
#include "th/transfer/same_host/readable_memory.h"
#include "th/transfer/same_host/shard_mapping.h"
#include "th/transfer/same_host/stream_copy.h"
#include "th/transfer/stream/socket.h"

namespace th::same_host {
namespace {

// The key of a piece that lies in no offered range.
constexpr uint32_t kNoRange = 0;

// ---- what cannot be read

bool Overlap(const MemoryRegion& region, const iovec& piece) {
  const char* const begin = static_cast<const char*>(region.address);
  const char* const piece_begin = static_cast<const char*>(piece.iov_base);
  return begin < piece_begin + piece.iov_len && piece_begin < begin + region.bytes;
}

// ---- the source's end

class ServedHostMemory final : public stream::ServedMemory {
 public:
  ServedHostMemory(int fd, std::shared_ptr<const UnreadableMemory> unreadable,
                   const HostServingLimits& limits)
      : max_ranges_((limits.offer_bytes - sizeof(MemoryProbe)) / sizeof(OfferedRange)),
        attach_limit_bytes_(limits.attached_bytes),
        fd_(fd),
        unreadable_(std::move(unreadable)) {}

  // Addresses of this process are told only to those who could read its memory anyway.
  absl::StatusOr<std::string> Offer() override {
    ucred peer{};
    socklen_t size = sizeof(peer);
    if (getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
      return absl::UnavailableError(
          absl::StrCat("the source does not know which user you are: ", stream::ErrnoText(errno)));
    }
    if (!IsOwnUser(peer.uid) && peer.uid != 0) {
      return absl::PermissionDeniedError(absl::StrCat(
          DescribeUsers(geteuid(), peer.uid), ": run both as one user, or the reader as root"));
    }
    const MemoryProbe probe = OwnProbe();
    std::string offer(reinterpret_cast<const char*>(&probe), sizeof(probe));
    for (const SharedMemoryRange& range : AllSharedMemory()) {
      if (offered_.size() == max_ranges_) break;
      offered_.push_back(range);
      const OfferedRange words{.address = reinterpret_cast<uintptr_t>(range.address),
                               .bytes = range.bytes,
                               .id = range.id,
                               .inode = range.inode,
                               .file_descriptor = static_cast<uint64_t>(range.file_descriptor)};
      offer.append(reinterpret_cast<const char*>(&words), sizeof(words));
    }
    return offer;
  }
  absl::StatusOr<std::string> HandleAnswer(absl::string_view) override {
    return absl::InvalidArgumentError("Memory from a reader, which has nothing to answer here");
  }
  // Returns, of a piece in an offered range, one more than the range's place in the offer; else
  // kNoRange.
  std::optional<uint32_t> KeyOf(const iovec& piece) override {
    if (unreadable_->Overlaps(piece)) return std::nullopt;
    if (offered_.empty()) return kNoRange;
    // Looked up anew each time: by now another range may lie at the same address.
    const auto range = FindSharedMemory(piece.iov_base, piece.iov_len);
    if (!range.has_value()) return kNoRange;
    for (size_t i = 0; i < offered_.size(); ++i) {
      if (offered_[i].id == range->id) return static_cast<uint32_t>(i + 1);
    }
    return kNoRange;
  }
  absl::StatusOr<std::string> Map(absl::Span<const Run> runs) override {
    TH_ASSIGN_OR_RETURN(PinnedOffer pinned, OfferShard(runs, attach_limit_bytes_));
    pins_ = std::move(pinned.pins);
    return pinned.offer.Encode();
  }

 private:
  const size_t max_ranges_;  // beside the probe
  const uint64_t attach_limit_bytes_;
  std::vector<SharedMemoryRange> offered_;
  std::vector<std::shared_ptr<const void>> pins_;  // of what the reader is mapping
  const int fd_;
  const std::shared_ptr<const UnreadableMemory> unreadable_;
};

// ---- the reader's end

class RemoteHostMemory final : public stream::RemoteMemory {
 public:
  ~RemoteHostMemory() override {
    ranges_.clear();
    mapped_->TrimSoon();
  }
  RemoteHostMemory(const stream::Medium::ReadSetup& setup, std::shared_ptr<MappedMemory> mapped)
      : fd_(setup.fd), checksummed_(setup.checksummed), mapped_(std::move(mapped)) {}

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
    // Files of another user are not mapped: what he does to them must not end this process.
    if (!IsOwnUser(peer.user())) return std::string();
    offer.remove_prefix(sizeof(probe));
    for (; offer.size() >= sizeof(OfferedRange); offer.remove_prefix(sizeof(OfferedRange))) {
      ranges_.emplace_back();
      std::memcpy(&ranges_.back().offered, offer.data(), sizeof(OfferedRange));
    }
    std::vector<OfferedRange> offered;
    offered.reserve(ranges_.size());
    for (const Range& range : ranges_) offered.push_back(range.offered);
    mapped_->KeepOnly(peer.pid(), offered);
    return std::string();
  }
  bool ready() const override { return peer_.has_value(); }
  int fd() const override { return -1; }

  void Start(absl::Span<const stream::Located::Piece> from, absl::Span<const iovec> into,
             const stream::ControlPlace& control) override {
    Read read{.status = absl::OkStatus(), .control = std::nullopt};
    if (!CopyFromMapped(from, into, &read)) {
      read.status = CopyFromProcess(from, into);
      // The bytes are in the cache here, and may not be any more when LocatedReads would sum them.
      if (checksummed_ && read.status.ok()) {
        read.checksum = ChecksumPieces(into, ChecksumAlgorithm::kXxh3Leaves);
      }
    }
    control_address_ = control.address;
    copied_.push_back(std::move(read));
  }
  absl::StatusOr<std::optional<Read>> Poll() override {
    if (ended_.empty() && !copied_.empty()) ReadControl();
    if (ended_.empty()) return std::optional<Read>();
    std::optional<Read> read = std::move(ended_.front());
    ended_.pop_front();
    return read;
  }

  absl::StatusOr<MappedInPlace> Map(absl::string_view words,
                                    const stream::ControlPlace& control) override {
    // As of ranges that are copied from.
    if (!IsOwnUser(peer_->user())) {
      return absl::PermissionDeniedError(
          absl::StrCat(DescribeUsers(peer_->user(), geteuid()),
                       ": memory is used in place within one user only"));
    }
    TH_ASSIGN_OR_RETURN(const ShardOffer offer, ShardOffer::Decode(words));
    MappedInPlace mapped;
    TH_ASSIGN_OR_RETURN(mapped.shard, MapShard(peer_->pid(), offer));
    // The leases before the control block: an owner that has raised the generation meanwhile either
    // finds the leases or is found out here.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    TH_ASSIGN_OR_RETURN(const PeerMemory::TwoWords now, peer_->ReadTwoWords(control.address));
    mapped.control = {.generation = now[0], .life = now[1]};
    return mapped;
  }

 private:
  // A range of the source's shared memory; mapped when a segment first lies in it.
  struct Range {
    OfferedRange offered;
    std::shared_ptr<const MappedRange> mapped;
    bool tried = false;
  };

  // One look at the control block for all that has been copied.
  void ReadControl() {
    // The bytes before the control block: on no processor may the second read be the older one.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const absl::StatusOr<PeerMemory::TwoWords> words = peer_->ReadTwoWords(control_address_);
    for (Read& read : copied_) {
      if (words.ok()) {
        read.control = Read::Control{.generation = (*words)[0], .life = (*words)[1]};
      } else if (read.status.ok()) {
        read.status = words.status();
      }
    }
    ended_.swap(copied_);
  }

  // The place of the piece here; null when it is not in a range that can be mapped.
  const std::byte* PlaceOf(const stream::Located::Piece& piece) {
    if (piece.key == kNoRange || piece.key > ranges_.size()) return nullptr;
    Range& range = ranges_[piece.key - 1];
    if (!std::exchange(range.tried, true)) range.mapped = mapped_->Map(peer_->pid(), range.offered);
    if (range.mapped == nullptr || piece.address < range.offered.address) return nullptr;
    const uint64_t offset = piece.address - range.offered.address;
    if (offset > range.mapped->bytes() || piece.bytes > range.mapped->bytes() - offset) {
      return nullptr;
    }
    return range.mapped->data() + offset;
  }

  // False, with nothing copied: not all of it is mapped.
  bool CopyFromMapped(absl::Span<const stream::Located::Piece> from, absl::Span<const iovec> into,
                      Read* read) {
    places_.clear();
    for (const stream::Located::Piece& piece : from) {
      const std::byte* const place = PlaceOf(piece);
      if (place == nullptr) return false;
      places_.push_back({const_cast<std::byte*>(place), piece.bytes});
    }
    if (checksummed_) {
      read->checksum = StreamCopyAndChecksum(places_, into, &hasher_);
    } else {
      StreamCopyPieces(places_, into);
    }
    return true;
  }

  absl::Status CopyFromProcess(absl::Span<const stream::Located::Piece> from,
                               absl::Span<const iovec> into) {
    places_.clear();
    for (const stream::Located::Piece& piece : from) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process.
      places_.push_back({reinterpret_cast<void*>(piece.address), piece.bytes});
    }
    return peer_->Read(places_, into);
  }

  const int fd_;
  const bool checksummed_;
  const std::shared_ptr<MappedMemory> mapped_;  // of the transport
  std::optional<PeerMemory> peer_;              // once the probe has succeeded
  std::vector<Range> ranges_;
  std::vector<iovec> places_;  // of the segment that is being copied
  SegmentHasher hasher_;
  uint64_t control_address_ = 0;  // the same for all reads of a connection
  std::deque<Read> copied_;       // and not compared yet
  std::deque<Read> ended_;
};

static_assert(offsetof(ControlBlock, generation) == 0 &&
                  offsetof(ControlBlock, life) == sizeof(uint64_t) &&
                  sizeof(ControlBlock) == sizeof(PeerMemory::TwoWords),
              "readers take the control block as two words");

}  // namespace

class UnreadableMemory::Handle final : public AttachedMemory {
 public:
  Handle(std::shared_ptr<UnreadableMemory> owner, std::vector<MemoryRegion> regions)
      : owner_(std::move(owner)), regions_(std::move(regions)) {
    absl::MutexLock lock(&owner_->mu_);
    owner_->handles_.insert(this);
  }
  ~Handle() override {
    absl::MutexLock lock(&owner_->mu_);
    owner_->handles_.erase(this);
  }
  bool Overlaps(const iovec& piece) const {
    return std::any_of(regions_.begin(), regions_.end(),
                       [&](const MemoryRegion& region) { return Overlap(region, piece); });
  }

 private:
  const std::shared_ptr<UnreadableMemory> owner_;  // may outlive the transport
  const std::vector<MemoryRegion> regions_;
};

std::unique_ptr<AttachedMemory> UnreadableMemory::Attach(absl::Span<const MemoryRegion> regions) {
  std::vector<MemoryRegion> found = FindUnreadable(regions);
  for (const MemoryRegion& region : regions) {
    if (region.bytes > 0 && region.kind == MemoryKind::kDevice) found.push_back(region);
  }
  if (found.empty()) return std::make_unique<AttachedMemory>();
  return std::make_unique<Handle>(shared_from_this(), std::move(found));
}

bool UnreadableMemory::Overlaps(const iovec& piece) const {
  absl::ReaderMutexLock lock(&mu_);
  return std::any_of(handles_.begin(), handles_.end(),
                     [&](const Handle* handle) { return handle->Overlaps(piece); });
}

std::unique_ptr<stream::ServedMemory> ServeHostMemory(
    int fd, std::shared_ptr<const UnreadableMemory> unreadable, const HostServingLimits& limits) {
  return std::make_unique<ServedHostMemory>(fd, std::move(unreadable), limits);
}

std::unique_ptr<stream::RemoteMemory> ReadHostMemory(const stream::Medium::ReadSetup& setup,
                                                     std::shared_ptr<MappedMemory> mapped) {
  return std::make_unique<RemoteHostMemory>(setup, std::move(mapped));
}

}  // namespace th::same_host
