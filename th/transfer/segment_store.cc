#include "th/transfer/segment_store.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

absl::Status PublicationEnded() {
  return absl::CancelledError("the publication ended before it was sealed");
}

}  // namespace

SegmentStore::SegmentStore(std::shared_ptr<const ShardLayout> layout, std::vector<void*> storages)
    : layout_(std::move(layout)),
      segment_count_(layout_->segment_count()),
      storages_(std::move(storages)),
      control_(std::make_unique<ControlBlock>()),
      states_(std::make_unique<std::atomic<uint8_t>[]>(segment_count_)),
      checksums_(std::make_unique<StoredChecksum[]>(segment_count_)) {
  storages_.resize(layout_->storages().size());
  BeginLife();
}

SegmentStore::SegmentStore(std::shared_ptr<const ShardLayout> layout, StorageMemory memory)
    : SegmentStore(std::move(layout), std::vector<void*>()) {
  memory.regions.resize(storages_.size());
  Bind(std::move(memory));
}

void SegmentStore::BeginLife() {
  uint64_t life = 0;
  // Cannot fail for so few bytes once the system has booted.
  if (getrandom(&life, sizeof(life), 0) < 0) life = reinterpret_cast<uintptr_t>(this);
  control_->life.store(life);
}

SegmentStore::~SegmentStore() {
  control_->life.store(0);
  control_->generation.store(kNoGeneration.value);
}

void SegmentStore::SetGeneration(BufferGeneration generation) {
  control_->generation.store(generation.value);
  // On some processors a store of this kind orders only what came before it.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

std::vector<MemoryRegion> SegmentStore::regions() const {
  std::vector<MemoryRegion> regions;
  for (size_t i = 0; i < storages_.size(); ++i) {
    const uint64_t bytes = layout_->storages()[i].bytes;
    if (bytes == 0) continue;
    regions.push_back({.address = storages_[i], .bytes = bytes});
    if (regions_.empty()) continue;
    regions.back().kind = regions_[i].kind;
    regions.back().device = regions_[i].device;
  }
  regions.push_back({.address = control_.get(), .bytes = sizeof(ControlBlock)});
  return regions;
}

absl::Status SegmentStore::Rebind(std::vector<void*> storages) {
  StorageMemory memory;
  memory.regions.reserve(storages.size());
  for (void* const storage : storages) memory.regions.push_back({.address = storage});
  return Rebind(std::move(memory));
}

absl::Status SegmentStore::Rebind(StorageMemory memory) {
  absl::MutexLock lock(&mu_);
  if (open_.load()) {
    return absl::FailedPreconditionError("the buffer is being served or filled: cannot rebind");
  }
  if (memory.regions.size() != layout_->storages().size()) {
    return absl::InvalidArgumentError(absl::StrCat("the layout has ", layout_->storages().size(),
                                                   " storages, not ", memory.regions.size()));
  }
  if (IsUsedByDevices()) return StillInUse();
  mu_.Await(absl::Condition(this, &SegmentStore::NoHostMemoryIsBeingRead));
  Bind(std::move(memory));
  return absl::OkStatus();
}

void SegmentStore::Bind(StorageMemory memory) {
  for (size_t i = 0; i < storages_.size(); ++i) storages_[i] = memory.regions[i].address;
  const bool on_device =
      std::any_of(memory.regions.begin(), memory.regions.end(),
                  [](const MemoryRegion& region) { return region.kind == MemoryKind::kDevice; });
  regions_.clear();
  places_.clear();
  device_names_.clear();
  device_ = std::move(memory.device);
  if (!on_device) return;
  regions_ = std::move(memory.regions);
  std::set<absl::string_view> devices;
  for (const MemoryRegion& region : regions_) {
    if (region.kind == MemoryKind::kDevice) devices.insert(region.device);
  }
  device_names_ = absl::StrJoin(devices, ", ");
  std::vector<Place> places;
  places.reserve(segment_count_);
  for (uint64_t i = 0; i < segment_count_; ++i) places.push_back(FindPlace(SegmentIndex(i)));
  places_ = std::move(places);
}

SegmentStore::Place SegmentStore::FindPlace(SegmentIndex segment) const {
  const MemoryRegion* first = nullptr;
  bool host = false;
  for (const SegmentPiece& piece : layout_->PiecesOf(segment)) {
    const MemoryRegion& region = regions_[piece.storage];
    if (region.kind != MemoryKind::kDevice) {
      host = true;
    } else if (first == nullptr) {
      first = &region;
    } else if (region.device != first->device) {
      return Place::kMixed;
    }
  }
  if (first == nullptr) return Place::kHost;
  return host ? Place::kMixed : Place::kDevice;
}

std::vector<MemoryRegion> SegmentStore::PiecesOf(SegmentIndex segment) const {
  std::vector<MemoryRegion> pieces;
  for (const SegmentPiece& piece : layout_->PiecesOf(segment)) {
    MemoryRegion region{.address = static_cast<char*>(storages_[piece.storage]) + piece.offset,
                        .bytes = piece.bytes};
    if (!regions_.empty()) {
      region.kind = regions_[piece.storage].kind;
      region.device = regions_[piece.storage].device;
    }
    pieces.push_back(std::move(region));
  }
  return pieces;
}

// ---- owner

void SegmentStore::Renew() {
  ++publication_;
  lingering_ += std::exchange(reading_devices_, 0);
  mu_.Await(absl::Condition(this, &SegmentStore::NoHostMemoryIsBeingRead));
}

absl::Status SegmentStore::AwaitDevices(absl::Duration timeout) const {
  absl::MutexLock lock(&mu_);
  const auto unused = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !IsUsedByDevices(); };
  if (mu_.AwaitWithTimeout(absl::Condition(&unused), timeout)) return absl::OkStatus();
  return StillInUse();
}

absl::Status SegmentStore::StillInUse() const {
  const std::set<std::string> writing(writing_.begin(), writing_.end());
  return absl::DeadlineExceededError(absl::StrCat(
      "GPU ", lingering_ > 0 ? device_names_ : absl::StrJoin(writing, ", "),
      " has not ended what it copies or sums out of the buffer, or copies into it: do not write or "
      "free the memory before it has. To wait on, reset the buffer; a GPU that stays so hangs, and "
      "its processes have to end"));
}

std::shared_ptr<const void> SegmentStore::BeginDeviceWrite(std::shared_ptr<SegmentStore> store,
                                                           std::string device) {
  const void* const any = store.get();  // nobody looks at it
  {
    absl::MutexLock lock(&store->mu_);
    store->writing_.insert(device);
  }
  return {any, [store = std::move(store), device = std::move(device)](const void*) {
            absl::MutexLock lock(&store->mu_);
            store->writing_.erase(store->writing_.find(device));
          }};
}

void SegmentStore::Publish(BufferGeneration generation) { ServeAll(generation, 0); }

void SegmentStore::Republish(BufferGeneration generation) { ServeAll(generation, kChecksummed); }

void SegmentStore::ServeAll(BufferGeneration generation, uint8_t keep) {
  Waiters waiters;
  {
    absl::MutexLock lock(&mu_);
    Renew();
    SetGeneration(generation);
    for (uint64_t i = 0; i < segment_count_; ++i) {
      const uint8_t kept = states_[i].load(std::memory_order_relaxed) & keep;
      states_[i].store(kHeld | kept, std::memory_order_release);
    }
    listed_.clear();
    complete_.store(true);
    open_.store(true);
    waiters.swap(waiters_);
  }
  for (const Waiter& waiter : waiters) waiter.wake();
}

void SegmentStore::BeginFill(BufferGeneration generation, const SegmentSet& held) {
  // Invalidate, clear, publish: nobody finds the old content under the new generation, nor a
  // mixture of both under the old one.
  SetGeneration(kNoGeneration);
  absl::MutexLock lock(&mu_);
  open_.store(false);
  complete_.store(false);
  Renew();
  listed_.clear();
  for (uint64_t i = 0; i < segment_count_; ++i) {
    const bool keep = held.Contains(SegmentIndex(i));
    // Sums of what may not be served now are kept: a fill that ends without having written leaves
    // the content that they are of (Republish, or another fill that resumes it).
    const uint8_t checksummed = states_[i].load(std::memory_order_relaxed) & kChecksummed;
    states_[i].store(keep ? kHeld | checksummed : checksummed, std::memory_order_release);
  }
  SetGeneration(generation);
  open_.store(true);
}

void SegmentStore::MarkHeld(SegmentIndex segment, SegmentChecksum checksum) {
  if (segment.value >= segment_count_) return;
  std::vector<std::function<void()>> wakes;
  {
    absl::MutexLock lock(&mu_);
    checksums_[segment.value].Store(checksum);
    states_[segment.value].store(kHeld | kChecksummed, std::memory_order_release);
    wakes = TakeWaiters([segment](const Waiter& waiter) {
      return waiter.asked.Contains(segment) || waiter.listed == segment;
    });
  }
  for (const auto& wake : wakes) wake();
}

void SegmentStore::MarkHeld(const SegmentSet& segments,
                            absl::Span<const SegmentChecksum> checksums) {
  std::vector<std::function<void()>> wakes;
  {
    absl::MutexLock lock(&mu_);
    for (const SegmentRange& range : segments.ranges()) {
      const uint64_t end = std::min({range.end.value, segment_count_, uint64_t{checksums.size()}});
      for (uint64_t i = range.begin.value; i < end; ++i) {
        checksums_[i].Store(checksums[i]);
        states_[i].store(kHeld | kChecksummed, std::memory_order_release);
      }
    }
    wakes = TakeWaiters([&](const Waiter& waiter) {
      const bool listed = waiter.listed.has_value() && segments.Contains(*waiter.listed);
      return listed || FirstReady(waiter.asked).has_value();
    });
  }
  for (const auto& wake : wakes) wake();
}

void SegmentStore::SetListed(SegmentIndex first, absl::Span<const SegmentChecksum> checksums) {
  std::vector<std::function<void()>> wakes;
  {
    absl::MutexLock lock(&mu_);
    if (first.value > listed_.size() || checksums.size() > segment_count_ - first.value) return;
    listed_.resize(first.value);
    listed_.insert(listed_.end(), checksums.begin(), checksums.end());
    wakes = TakeWaiters([end = listed_.size()](const Waiter& waiter) {
      return waiter.listed.has_value() && waiter.listed->value < end;
    });
  }
  for (const auto& wake : wakes) wake();
}

// Sums of host memory are taken when they are asked for.
bool SegmentStore::HasChecksum(SegmentIndex segment) const {
  if (segment.value < listed_.size()) return true;
  if (ReadinessOf(segment) != Readiness::kReady) return false;
  return PlaceOf(segment) == Place::kHost || IsChecksummed(segment);
}

std::vector<std::function<void()>> SegmentStore::TakeWaiters(
    absl::FunctionRef<bool(const Waiter&)> has_something) {
  std::vector<std::function<void()>> wakes;
  const auto woken = std::partition(waiters_.begin(), waiters_.end(),
                                    [&](const Waiter& waiter) { return !has_something(waiter); });
  for (auto it = woken; it != waiters_.end(); ++it) wakes.push_back(std::move(it->wake));
  waiters_.erase(woken, waiters_.end());
  return wakes;
}

void SegmentStore::ForgetAll() {
  absl::MutexLock lock(&mu_);
  complete_.store(false);
  Renew();
  listed_.clear();
  for (uint64_t i = 0; i < segment_count_; ++i) states_[i].store(0, std::memory_order_release);
}

void SegmentStore::Close(BufferGeneration generation) {
  // First of all: who reads past this store's control compares the word after its bytes.
  SetGeneration(generation);
  Waiters waiters;
  {
    absl::MutexLock lock(&mu_);
    open_.store(false);
    complete_.store(false);
    Renew();
    waiters.swap(waiters_);
  }
  for (const Waiter& waiter : waiters) waiter.wake();
}

absl::StatusOr<Digest> SegmentStore::Seal(const std::atomic<bool>& stop) {
  if (layout_->checksum() == ChecksumAlgorithm::kNone) return Digest{};
  const uint64_t publication = this->publication();
  for (SegmentIndex i(0); i.value < segment_count_;) {
    if (stop.load()) return absl::CancelledError("sealing was stopped");
    if (states_[i.value].load(std::memory_order_acquire) == (kHeld | kChecksummed)) {
      i = i.Next();
    } else {
      TH_ASSIGN_OR_RETURN(i, SealFrom(i, publication));
    }
  }
  const std::vector<SegmentChecksum> all = checksums();
  absl::MutexLock lock(&mu_);
  if (publication != publication_) return PublicationEnded();
  return RootOfChecksums(all);
}

absl::Status SegmentStore::TakeChecksum(SegmentIndex segment) {
  const uint64_t publication = this->publication();
  if (ReadinessOf(segment) != Readiness::kReady) return PublicationEnded();
  if (IsChecksummed(segment)) return absl::OkStatus();
  const absl::Status checksummed = SealFrom(segment, publication).status();
  return checksummed.ok() || ReadinessOf(segment) == Readiness::kReady ? checksummed
                                                                       : PublicationEnded();
}

uint64_t SegmentStore::publication() const {
  absl::MutexLock lock(&mu_);
  return publication_;
}

absl::Status SegmentStore::BeginReading(SegmentIndex segment, uint64_t publication) {
  if (publication != publication_ || !open_.load()) return PublicationEnded();
  if ((states_[segment.value].load(std::memory_order_acquire) & kHeld) == 0) {
    return absl::FailedPreconditionError(absl::StrCat("segment ", segment.value, " is not held"));
  }
  ++(PlaceOf(segment) == Place::kHost ? reading_host_ : reading_devices_);
  return absl::OkStatus();
}

absl::Status SegmentStore::EndReading(SegmentIndex segment, uint64_t publication) {
  const bool ended = publication != publication_;
  --(PlaceOf(segment) == Place::kHost ? reading_host_ : ended ? lingering_ : reading_devices_);
  return ended ? PublicationEnded() : absl::OkStatus();
}

absl::StatusOr<SegmentIndex> SegmentStore::SealFrom(SegmentIndex segment, uint64_t publication) {
  SegmentRange range{segment, segment.Next()};
  {
    absl::MutexLock lock(&mu_);
    TH_RETURN_IF_ERROR(BeginReading(segment, publication));
    if (PlaceOf(segment) == Place::kDevice) range = ChecksummedTogether(segment);
  }
  // Memory is bound anew only once this has been read.
  if (PlaceOf(segment) == Place::kHost) {
    ChecksumOf(segment);
    absl::MutexLock lock(&mu_);
    TH_RETURN_IF_ERROR(EndReading(segment, publication));
    return range.end;
  }
  const absl::StatusOr<std::vector<SegmentChecksum>> checksums = ChecksumOnDevice(range);
  {
    absl::MutexLock lock(&mu_);
    TH_RETURN_IF_ERROR(EndReading(segment, publication));
    TH_RETURN_IF_ERROR(checksums.status());
    for (uint64_t i = 0; i < range.count(); ++i) {
      StoreChecksum(SegmentIndex(range.begin.value + i), (*checksums)[i]);
    }
  }
  WakeListeners();
  return range.end;
}

// The segments from `first` on that a device sums in one go.
SegmentRange SegmentStore::ChecksummedTogether(SegmentIndex first) const {
  SegmentRange range{first, first.Next()};
  const uint64_t most =
      std::max<uint64_t>(1, kDeviceBytesChecksummedAtOnce / layout_->segment_bytes());
  while (range.end.value < segment_count_ && range.count() < most &&
         PlaceOf(range.end) == Place::kDevice &&
         states_[range.end.value].load(std::memory_order_acquire) == kHeld) {
    range.end = range.end.Next();
  }
  return range;
}

// Sums segments that lie on a device, or one that lies in several kinds of memory, which is summed
// on the host.
absl::StatusOr<std::vector<SegmentChecksum>> SegmentStore::ChecksumOnDevice(SegmentRange segments) {
  if (PlaceOf(segments.begin) == Place::kMixed) {
    std::vector<std::byte> packed(layout_->SegmentLength(segments.begin));
    TH_RETURN_IF_ERROR(device_->CopyToHost(CopiesTo(segments.begin, absl::MakeSpan(packed))));
    return std::vector<SegmentChecksum>{ChecksumBytes(packed.data(), packed.size())};
  }
  std::vector<std::vector<DeviceRun>> runs;
  runs.reserve(segments.count());
  for (SegmentIndex i = segments.begin; i < segments.end; i = i.Next()) {
    std::vector<DeviceRun> of_segment;
    for (const SegmentPiece& piece : layout_->PiecesOf(i)) {
      of_segment.push_back({piece.storage, piece.offset, piece.bytes});
    }
    runs.push_back(std::move(of_segment));
  }
  return device_->Checksum(runs);
}

void SegmentStore::StoreChecksum(SegmentIndex segment, SegmentChecksum checksum) {
  checksums_[segment.value].Store(checksum);
  states_[segment.value].fetch_or(kChecksummed, std::memory_order_release);
}

// A listener that waits for a sum that only a device can take is told once it is known.
void SegmentStore::WakeListeners() {
  std::vector<std::function<void()>> wakes;
  {
    absl::MutexLock lock(&mu_);
    wakes = TakeWaiters([this](const Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return waiter.listed.has_value() && HasChecksum(*waiter.listed);
    });
  }
  for (const auto& wake : wakes) wake();
}

SegmentSet SegmentStore::held() const {
  std::vector<SegmentRange> ranges;
  for (uint64_t i = 0; i < segment_count_; ++i) {
    if ((states_[i].load(std::memory_order_acquire) & kHeld) == 0) continue;
    if (!ranges.empty() && ranges.back().end.value == i) {
      ranges.back().end = SegmentIndex(i + 1);
    } else {
      ranges.push_back({SegmentIndex(i), SegmentIndex(i + 1)});
    }
  }
  return SegmentSet::FromRanges(std::move(ranges));
}

std::vector<SegmentChecksum> SegmentStore::checksums() const {
  std::vector<SegmentChecksum> checksums(segment_count_);
  for (uint64_t i = 0; i < segment_count_; ++i) {
    const bool known = states_[i].load(std::memory_order_acquire) == (kHeld | kChecksummed);
    checksums[i] = known ? checksums_[i].Load() : 0;
  }
  return checksums;
}

SegmentStore::KnownChecksums SegmentStore::known_checksums() const {
  KnownChecksums known{.of = {}, .checksums = std::vector<SegmentChecksum>(segment_count_)};
  if (layout_->checksum() == ChecksumAlgorithm::kNone) return known;
  for (uint64_t i = 0; i < segment_count_; ++i) {
    if (states_[i].load(std::memory_order_acquire) != (kHeld | kChecksummed)) continue;
    known.checksums[i] = checksums_[i].Load();
    known.of.Add(SegmentIndex(i));
  }
  return known;
}

// ---- serving

SegmentStore::Readiness SegmentStore::ReadinessOf(SegmentIndex segment) const {
  if (closed()) return Readiness::kClosed;
  if (segment.value >= segment_count_) return Readiness::kNotYet;
  const uint8_t state = states_[segment.value].load(std::memory_order_acquire);
  return (state & kHeld) != 0 ? Readiness::kReady : Readiness::kNotYet;
}

std::optional<SegmentIndex> SegmentStore::FirstReady(const RequestQueue& asked) const {
  return asked.First(
      [this](SegmentIndex segment) { return ReadinessOf(segment) == Readiness::kReady; });
}

SegmentStore::WaitId SegmentStore::NotifyWhenReady(const RequestQueue& asked,
                                                   std::function<void()> wake,
                                                   std::optional<SegmentIndex> listed) {
  absl::MutexLock lock(&mu_);
  if (closed() || FirstReady(asked).has_value()) return 0;
  if (listed.has_value() && HasChecksum(*listed)) return 0;
  const WaitId id = next_wait_++;
  waiters_.push_back({id, asked, std::move(wake), listed});
  return id;
}

void SegmentStore::CancelNotify(WaitId wait) {
  std::function<void()> dropped;  // destroyed outside of the lock
  absl::MutexLock lock(&mu_);
  for (auto it = waiters_.begin(); it != waiters_.end(); ++it) {
    if (it->id != wait) continue;
    dropped = std::move(it->wake);
    waiters_.erase(it);
    return;
  }
}

bool SegmentStore::IsChecksummed(SegmentIndex segment) const {
  if (layout_->checksum() == ChecksumAlgorithm::kNone || segment.value >= segment_count_) {
    return true;
  }
  return (states_[segment.value].load(std::memory_order_acquire) & kChecksummed) != 0;
}

SegmentChecksum SegmentStore::ChecksumOf(SegmentIndex segment) {
  if (layout_->checksum() == ChecksumAlgorithm::kNone || segment.value >= segment_count_) return 0;
  std::atomic<uint8_t>& state = states_[segment.value];
  if ((state.load(std::memory_order_acquire) & kChecksummed) != 0) {
    return checksums_[segment.value].Load();
  }
  if (PlaceOf(segment) != Place::kHost) return 0;  // only Seal and CopyOut can take it
  const SegmentChecksum checksum = Compute(segment);
  StoreChecksum(segment, checksum);
  return checksum;
}

std::vector<SegmentChecksum> SegmentStore::ChecksumsOf(SegmentRange asked, size_t max_count,
                                                       bool compute) {
  std::vector<SegmentChecksum> checksums;
  {
    absl::MutexLock lock(&mu_);
    const uint64_t end = std::min(
        {asked.end.value, uint64_t{listed_.size()}, asked.begin.value + uint64_t{max_count}});
    if (asked.begin.value < end) {
      checksums.assign(listed_.begin() + asked.begin.value, listed_.begin() + end);
    }
  }
  uint64_t budget = kBytesChecksummedAtOnce;
  for (SegmentIndex i(asked.begin.value + checksums.size());
       i < asked.end && checksums.size() < max_count; i = i.Next()) {
    if (ReadinessOf(i) != Readiness::kReady) break;
    const bool known = (states_[i.value].load(std::memory_order_acquire) & kChecksummed) != 0;
    if (!known && (!compute || budget == 0 || PlaceOf(i) != Place::kHost)) break;
    if (!known) budget -= std::min(budget, layout_->SegmentLength(i));
    checksums.push_back(ChecksumOf(i));
  }
  return checksums;
}

SegmentChecksum SegmentStore::Compute(SegmentIndex segment) const {
  std::vector<iovec> pieces;
  AppendPieces(segment, &pieces);
  return ChecksumPieces(pieces, layout_->checksum());
}

void SegmentStore::AppendPieces(SegmentIndex segment, std::vector<iovec>* iov) const {
  for (const SegmentPiece& piece : layout_->PiecesOf(segment)) {
    iov->push_back({static_cast<char*>(storages_[piece.storage]) + piece.offset, piece.bytes});
  }
}

// ---- through the host's memory

std::vector<DeviceCopy> SegmentStore::CopiesOf(
    SegmentIndex segment, std::byte* host,
    absl::FunctionRef<void(void* address, std::byte* packed, uint64_t bytes)> in_host_memory)
    const {
  std::vector<DeviceCopy> copies;
  for (const SegmentPiece& piece : layout_->PiecesOf(segment)) {
    if (!regions_.empty() && regions_[piece.storage].kind == MemoryKind::kDevice) {
      copies.push_back({piece.storage, piece.offset, piece.bytes, host,
                        /*begins_allocation=*/copies.empty()});
    } else {
      in_host_memory(static_cast<char*>(storages_[piece.storage]) + piece.offset, host,
                     piece.bytes);
    }
    host += piece.bytes;
  }
  return copies;
}

std::vector<DeviceCopy> SegmentStore::CopiesTo(SegmentIndex segment,
                                               absl::Span<std::byte> to) const {
  return CopiesOf(segment, to.data(), [](const void* address, std::byte* packed, uint64_t bytes) {
    std::memcpy(packed, address, bytes);
  });
}

absl::Status SegmentStore::CheckIsWhole(SegmentIndex segment, uint64_t bytes) const {
  if (segment.value < segment_count_ && bytes == layout_->SegmentLength(segment)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("segment ", segment.value, " does not have ", bytes, " bytes"));
}

absl::StatusOr<SegmentStore::CopiedOut> SegmentStore::BeginCopyOut(const Outgoing& segment,
                                                                   uint64_t publication) {
  TH_RETURN_IF_ERROR(CheckIsWhole(segment.segment, segment.to.size()));
  const absl::Status begun = BeginReading(segment.segment, publication);
  if (!begun.ok()) return absl::CancelledError(begun.message());
  return CopiedOut{.generation = generation()};
}

absl::StatusOr<SegmentStore::CopiedOut> SegmentStore::EndCopyOut(
    SegmentIndex segment, uint64_t publication, CopiedOut copied, const absl::Status& read,
    std::optional<SegmentChecksum> checksummed) {
  TH_RETURN_IF_ERROR(EndReading(segment, publication));
  TH_RETURN_IF_ERROR(read);
  if (checksummed.has_value()) StoreChecksum(segment, *checksummed);
  if (layout_->checksum() != ChecksumAlgorithm::kNone)
    copied.checksum = checksums_[segment.value].Load();
  return copied;
}

std::vector<absl::StatusOr<SegmentStore::CopiedOut>> SegmentStore::CopyOut(
    absl::Span<const Outgoing> segments) {
  uint64_t publication = 0;
  std::vector<absl::StatusOr<CopiedOut>> results;
  {
    absl::MutexLock lock(&mu_);
    publication = publication_;
    for (const Outgoing& each : segments) results.push_back(BeginCopyOut(each, publication));
  }
  std::vector<DeviceCopy> copies;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (!results[i].ok()) continue;
    const std::vector<DeviceCopy> of_one = CopiesTo(segments[i].segment, segments[i].to);
    copies.insert(copies.end(), of_one.begin(), of_one.end());
  }
  const absl::Status read = copies.empty() ? absl::OkStatus() : device_->CopyToHost(copies);
  std::vector<std::optional<SegmentChecksum>> checksummed(segments.size());  // of the copy
  for (size_t i = 0; i < segments.size(); ++i) {
    const auto& [segment, to] = segments[i];
    if (!read.ok() || !results[i].ok() || IsChecksummed(segment)) continue;
    checksummed[i] = ChecksumBytes(to.data(), to.size());
  }
  {
    absl::MutexLock lock(&mu_);
    for (size_t i = 0; i < segments.size(); ++i) {
      if (!results[i].ok()) continue;
      results[i] = EndCopyOut(segments[i].segment, publication, *results[i], read, checksummed[i]);
    }
  }
  const auto is_known = [](const std::optional<SegmentChecksum>& checksum) {
    return checksum.has_value();
  };
  if (std::any_of(checksummed.begin(), checksummed.end(), is_known)) WakeListeners();
  return results;
}

absl::StatusOr<SegmentStore::CopiedOut> SegmentStore::CopyOut(SegmentIndex segment,
                                                              absl::Span<std::byte> to) {
  const Outgoing one{segment, to};
  return CopyOut(absl::MakeConstSpan(&one, 1))[0];
}

absl::Status SegmentStore::CopyIn(SegmentIndex segment, absl::Span<const std::byte> from) {
  const Incoming one{segment, from};
  return CopyIn(absl::MakeConstSpan(&one, 1));
}

absl::Status SegmentStore::CopyIn(absl::Span<const Incoming> segments) {
  std::vector<DeviceCopy> copies;
  for (const auto& [segment, from] : segments) {
    TH_RETURN_IF_ERROR(CheckIsWhole(segment, from.size()));
    // The copies only read it.
    auto* const host = const_cast<std::byte*>(from.data());
    const std::vector<DeviceCopy> of_one =
        CopiesOf(segment, host, [](void* address, const std::byte* packed, uint64_t bytes) {
          std::memcpy(address, packed, bytes);
        });
    copies.insert(copies.end(), of_one.begin(), of_one.end());
  }
  if (copies.empty()) return absl::OkStatus();
  std::multiset<std::string>::iterator writing;
  {
    absl::MutexLock lock(&mu_);
    writing = writing_.insert(device_names_);
  }
  absl::Status written = device_->CopyToDevice(copies);
  absl::MutexLock lock(&mu_);
  writing_.erase(writing);
  return written;
}

}  // namespace th
