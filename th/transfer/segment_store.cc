#include "th/transfer/segment_store.h"

#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/weights/status_macros.h"

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
      sums_(std::make_unique<StoredSum[]>(segment_count_)) {
  storages_.resize(layout_->storages().size());
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
    if (bytes > 0) regions.push_back({.address = storages_[i], .bytes = bytes});
  }
  regions.push_back({.address = control_.get(), .bytes = sizeof(ControlBlock)});
  return regions;
}

absl::Status SegmentStore::Rebind(std::vector<void*> storages) {
  absl::MutexLock lock(&mu_);
  if (open_.load()) {
    return absl::FailedPreconditionError("the buffer is being served or filled: cannot rebind");
  }
  if (storages.size() != layout_->storages().size()) {
    return absl::InvalidArgumentError(absl::StrCat("the layout has ", layout_->storages().size(),
                                                   " storages, not ", storages.size()));
  }
  mu_.Await(absl::Condition(this, &SegmentStore::NothingIsBeingSummed));
  storages_ = std::move(storages);
  return absl::OkStatus();
}

// ---- owner

void SegmentStore::Renew() {
  ++publication_;
  mu_.Await(absl::Condition(this, &SegmentStore::NothingIsBeingSummed));
}

void SegmentStore::Publish(BufferGeneration generation) { ServeAll(generation, 0); }

void SegmentStore::Republish(BufferGeneration generation) { ServeAll(generation, kSummed); }

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
  Renew();
  listed_.clear();
  for (uint64_t i = 0; i < segment_count_; ++i) {
    const bool keep = held.Contains(SegmentIndex(i));
    // Sums of what may not be served now are kept: a fill that ends without having written leaves
    // the content that they are of (Republish, or another fill that resumes it).
    const uint8_t summed = states_[i].load(std::memory_order_relaxed) & kSummed;
    states_[i].store(keep ? kHeld | summed : summed, std::memory_order_release);
  }
  SetGeneration(generation);
  open_.store(true);
}

void SegmentStore::MarkHeld(SegmentIndex segment, SegmentSum sum) {
  if (segment.value >= segment_count_) return;
  std::vector<std::function<void()>> wakes;
  {
    absl::MutexLock lock(&mu_);
    sums_[segment.value].Store(sum);
    states_[segment.value].store(kHeld | kSummed, std::memory_order_release);
    wakes = TakeWaiters([segment](const Waiter& waiter) {
      return waiter.asked.Contains(segment) || waiter.listed == segment;
    });
  }
  for (const auto& wake : wakes) wake();
}

void SegmentStore::MarkHeld(const SegmentSet& segments, absl::Span<const SegmentSum> sums) {
  std::vector<std::function<void()>> wakes;
  {
    absl::MutexLock lock(&mu_);
    for (const SegmentRange& range : segments.ranges()) {
      const uint64_t end = std::min({range.end.value, segment_count_, uint64_t{sums.size()}});
      for (uint64_t i = range.begin.value; i < end; ++i) {
        sums_[i].Store(sums[i]);
        states_[i].store(kHeld | kSummed, std::memory_order_release);
      }
    }
    wakes = TakeWaiters([&](const Waiter& waiter) {
      const bool listed = waiter.listed.has_value() && segments.Contains(*waiter.listed);
      return listed || FirstReady(waiter.asked).has_value();
    });
  }
  for (const auto& wake : wakes) wake();
}

void SegmentStore::SetListed(SegmentIndex first, absl::Span<const SegmentSum> sums) {
  std::vector<std::function<void()>> wakes;
  {
    absl::MutexLock lock(&mu_);
    if (first.value > listed_.size() || sums.size() > segment_count_ - first.value) return;
    listed_.resize(first.value);
    listed_.insert(listed_.end(), sums.begin(), sums.end());
    wakes = TakeWaiters([end = listed_.size()](const Waiter& waiter) {
      return waiter.listed.has_value() && waiter.listed->value < end;
    });
  }
  for (const auto& wake : wakes) wake();
}

bool SegmentStore::HasSum(SegmentIndex segment) const {
  return segment.value < listed_.size() || ReadinessOf(segment) == Readiness::kReady;
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
    Renew();
    waiters.swap(waiters_);
  }
  for (const Waiter& waiter : waiters) waiter.wake();
}

absl::StatusOr<Digest> SegmentStore::Seal(const std::atomic<bool>& stop) {
  if (layout_->checksum() == ChecksumAlgorithm::kNone) return Digest{};
  uint64_t publication = 0;
  {
    absl::MutexLock lock(&mu_);
    publication = publication_;
  }
  for (uint64_t i = 0; i < segment_count_; ++i) {
    if (stop.load()) return absl::CancelledError("sealing was stopped");
    if (states_[i].load(std::memory_order_acquire) == (kHeld | kSummed)) continue;
    TH_RETURN_IF_ERROR(SealOne(SegmentIndex(i), publication));
  }
  const std::vector<SegmentSum> all = sums();
  absl::MutexLock lock(&mu_);
  if (publication != publication_) return PublicationEnded();
  return RootOfSums(all);
}

absl::Status SegmentStore::SealOne(SegmentIndex segment, uint64_t publication) {
  {
    absl::MutexLock lock(&mu_);
    if (publication != publication_ || !open_.load()) return PublicationEnded();
    if ((states_[segment.value].load(std::memory_order_acquire) & kHeld) == 0) {
      return absl::FailedPreconditionError(absl::StrCat("segment ", segment.value, " is not held"));
    }
    // Rebind and whatever ends the publication wait for this one segment: the owner may write or
    // free the memory once they have returned.
    summing_ = true;
  }
  SumOf(segment);
  absl::MutexLock lock(&mu_);
  summing_ = false;
  return publication == publication_ ? absl::OkStatus() : PublicationEnded();
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

std::vector<SegmentSum> SegmentStore::sums() const {
  std::vector<SegmentSum> sums(segment_count_);
  for (uint64_t i = 0; i < segment_count_; ++i) {
    const bool known = states_[i].load(std::memory_order_acquire) == (kHeld | kSummed);
    sums[i] = known ? sums_[i].Load() : 0;
  }
  return sums;
}

SegmentStore::KnownSums SegmentStore::known_sums() const {
  KnownSums known{.of = {}, .sums = std::vector<SegmentSum>(segment_count_)};
  if (layout_->checksum() == ChecksumAlgorithm::kNone) return known;
  for (uint64_t i = 0; i < segment_count_; ++i) {
    if (states_[i].load(std::memory_order_acquire) != (kHeld | kSummed)) continue;
    known.sums[i] = sums_[i].Load();
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
  if (listed.has_value() && HasSum(*listed)) return 0;
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

bool SegmentStore::IsSummed(SegmentIndex segment) const {
  if (layout_->checksum() == ChecksumAlgorithm::kNone || segment.value >= segment_count_) {
    return true;
  }
  return (states_[segment.value].load(std::memory_order_acquire) & kSummed) != 0;
}

SegmentSum SegmentStore::SumOf(SegmentIndex segment) {
  if (layout_->checksum() == ChecksumAlgorithm::kNone || segment.value >= segment_count_) return 0;
  std::atomic<uint8_t>& state = states_[segment.value];
  if ((state.load(std::memory_order_acquire) & kSummed) != 0) {
    return sums_[segment.value].Load();
  }
  const SegmentSum sum = Compute(segment);
  sums_[segment.value].Store(sum);
  state.fetch_or(kSummed, std::memory_order_release);
  return sum;
}

std::vector<SegmentSum> SegmentStore::SumsOf(SegmentRange asked, size_t max_count, bool compute) {
  std::vector<SegmentSum> sums;
  {
    absl::MutexLock lock(&mu_);
    const uint64_t end = std::min(
        {asked.end.value, uint64_t{listed_.size()}, asked.begin.value + uint64_t{max_count}});
    if (asked.begin.value < end) {
      sums.assign(listed_.begin() + asked.begin.value, listed_.begin() + end);
    }
  }
  uint64_t budget = kBytesSummedAtOnce;
  for (SegmentIndex i(asked.begin.value + sums.size()); i < asked.end && sums.size() < max_count;
       i = i.Next()) {
    if (ReadinessOf(i) != Readiness::kReady) break;
    const bool known = (states_[i.value].load(std::memory_order_acquire) & kSummed) != 0;
    if (!known && (!compute || budget == 0)) break;
    if (!known) budget -= std::min(budget, layout_->SegmentLength(i));
    sums.push_back(SumOf(i));
  }
  return sums;
}

SegmentSum SegmentStore::Compute(SegmentIndex segment) const {
  const SegmentPieces pieces = layout_->PiecesOf(segment);
  const auto address = [&](const SegmentPiece& piece) {
    return static_cast<const char*>(storages_[piece.storage]) + piece.offset;
  };
  if (pieces.size() == 1) return SumBytes(address(pieces[0]), pieces[0].bytes);
  SegmentHasher hasher;
  for (const SegmentPiece& piece : pieces) hasher.Update(address(piece), piece.bytes);
  return hasher.Finish();
}

void SegmentStore::AppendPieces(SegmentIndex segment, std::vector<iovec>* iov) const {
  for (const SegmentPiece& piece : layout_->PiecesOf(segment)) {
    iov->push_back({static_cast<char*>(storages_[piece.storage]) + piece.offset, piece.bytes});
  }
}

}  // namespace th
