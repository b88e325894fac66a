#include "th/transfer/device_staging.h"

#include <algorithm>
#include <bit>

#include "th/status/status_macros.h"

namespace th {
namespace {

// A page: pinned memory comes in pages anyway.
constexpr uint64_t kSmallestSlotBytes = 4096;

uint64_t SlotSize(uint64_t bytes) { return std::bit_ceil(std::max(bytes, kSmallestSlotBytes)); }

// All segments of a shard take slots of one size, the short last one too.
uint64_t SlotBytes(const ShardLayout& layout) {
  return std::min(layout.segment_bytes(), layout.bytes());
}

// Whoever asked is kept while `done` is called, and may have gone since it was last looked for.
template <typename Request, typename Answer>
void AnswerIfWanted(const Request& request, Answer answer) {
  const std::shared_ptr<const void> wanted = request.wanted.lock();
  if (wanted != nullptr) request.done(std::move(answer));
}

absl::StatusOr<StagedSegment> Staged(const absl::StatusOr<SegmentStore::CopiedOut>& copied,
                                     std::shared_ptr<StagingSlot> slot,
                                     absl::Span<const std::byte> bytes) {
  TH_RETURN_IF_ERROR(copied.status());
  return StagedSegment{.copied = *copied, .slot = std::move(slot), .bytes = bytes};
}

}  // namespace

// ---- StagingPool

std::shared_ptr<StagingSlot> StagingPool::TryTake(uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  return Share(TakeFree(SlotSize(bytes)));
}

absl::StatusOr<std::shared_ptr<StagingSlot>> StagingPool::Take(DeviceSide& device, uint64_t bytes) {
  const uint64_t size = SlotSize(bytes);
  std::vector<std::unique_ptr<StagingSlot>> given_up;  // ends outside of the lock
  {
    absl::MutexLock lock(&mu_);
    if (std::unique_ptr<StagingSlot> slot = TakeFree(size)) return Share(std::move(slot));
    while (pinned_bytes_ + size > max_bytes_ && !free_.empty()) {
      const auto largest = std::prev(free_.end());
      pinned_bytes_ -= largest->first;
      given_up.push_back(std::move(largest->second.back()));
      largest->second.pop_back();
      if (largest->second.empty()) free_.erase(largest);
    }
    if (pinned_bytes_ + size > max_bytes_) return std::shared_ptr<StagingSlot>();
    pinned_bytes_ += size;
  }
  given_up.clear();
  absl::StatusOr<std::unique_ptr<PinnedMemory>> memory = Pin(device, size);
  if (memory.ok()) return Share(std::make_unique<StagingSlot>(*std::move(memory)));
  absl::MutexLock lock(&mu_);
  pinned_bytes_ -= size;
  return memory.status();
}

// Free slots are given up before a device's refusal counts.
absl::StatusOr<std::unique_ptr<PinnedMemory>> StagingPool::Pin(DeviceSide& device, uint64_t size) {
  absl::StatusOr<std::unique_ptr<PinnedMemory>> memory = device.AllocatePinned(size);
  if (memory.ok()) return memory;
  std::map<uint64_t, std::vector<std::unique_ptr<StagingSlot>>> given_up;
  {
    absl::MutexLock lock(&mu_);
    given_up.swap(free_);
    for (const auto& [bytes, slots] : given_up) pinned_bytes_ -= bytes * slots.size();
  }
  if (given_up.empty()) return memory;
  given_up.clear();
  return device.AllocatePinned(size);
}

uint64_t StagingPool::pinned_bytes() const {
  absl::MutexLock lock(&mu_);
  return pinned_bytes_;
}

std::unique_ptr<StagingSlot> StagingPool::TakeFree(uint64_t size) {
  const auto found = free_.find(size);
  if (found == free_.end()) return nullptr;
  std::unique_ptr<StagingSlot> slot = std::move(found->second.back());
  found->second.pop_back();
  if (found->second.empty()) free_.erase(found);
  return slot;
}

std::shared_ptr<StagingSlot> StagingPool::Share(std::unique_ptr<StagingSlot> slot) {
  if (slot == nullptr) return nullptr;
  return {slot.release(), [pool = shared_from_this()](StagingSlot* ended) {
            pool->GiveBack(std::unique_ptr<StagingSlot>(ended));
          }};
}

void StagingPool::GiveBack(std::unique_ptr<StagingSlot> slot) {
  {
    absl::MutexLock lock(&mu_);
    const uint64_t size = slot->size();
    free_[size].push_back(std::move(slot));
  }
  freed_();
}

// ---- DeviceStaging

std::shared_ptr<DeviceStaging> DeviceStaging::Create(const Limits& limits) {
  std::shared_ptr<DeviceStaging> staging(new DeviceStaging);
  staging->outgoing_pool_ = std::make_shared<StagingPool>(
      limits.outgoing_bytes, [weak = std::weak_ptr<DeviceStaging>(staging)] {
        if (const auto self = weak.lock()) self->PostCopies();
      });
  staging->landing_pool_ = std::make_shared<StagingPool>(
      limits.landing_bytes, [weak = std::weak_ptr<DeviceStaging>(staging)] {
        if (const auto self = weak.lock()) self->PostSlotRequest();
      });
  return staging;
}

DeviceStaging::CopyLane& DeviceStaging::LaneOf(const SegmentStore& store) {
  return lanes_[store.device_names()];
}

void DeviceStaging::CopyOut(CopyRequest request) {
  absl::MutexLock lock(&mu_);
  CopyLane& lane = LaneOf(*request.store);
  const auto same = std::find_if(
      lane.queues.begin(), lane.queues.end(), [&](const std::deque<CopyRequest>& queue) {
        const std::weak_ptr<const void>& wanted = queue.front().wanted;
        return !wanted.owner_before(request.wanted) && !request.wanted.owner_before(wanted);
      });
  if (same == lane.queues.end()) {
    lane.queues.emplace_back().push_back(std::move(request));
  } else {
    same->push_back(std::move(request));
  }
  PostCopy(lane);
}

bool DeviceStaging::IsOutgoingSlotAwaited() const {
  absl::MutexLock lock(&mu_);
  return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& entry) {
    const CopyLane& lane = entry.second;
    return lane.first_lacks_slot && std::any_of(lane.queues.begin(), lane.queues.end(),
                                                [](const std::deque<CopyRequest>& queue) {
                                                  return !queue.front().wanted.expired();
                                                });
  });
}

void DeviceStaging::TakeChecksum(ChecksumRequest request) {
  absl::MutexLock lock(&mu_);
  CopyLane& lane = LaneOf(*request.store);
  lane.thread.Post([request = std::move(request)] {
    if (request.wanted.expired()) return;
    AnswerIfWanted(request, request.store->TakeChecksum(request.segment));
  });
}

void DeviceStaging::PostCopy(CopyLane& lane) {
  lane.thread.Post([weak = weak_from_this(), &lane] {
    if (const auto self = weak.lock()) self->CopyNext(lane);
  });
}

// To all that have requests: one that has just found no slot does not say so yet.
void DeviceStaging::PostCopies() {
  absl::MutexLock lock(&mu_);
  for (auto& [devices, lane] : lanes_) {
    if (!lane.queues.empty()) PostCopy(lane);
  }
}

// The request whose turn it is; null: there is none. It stays in place, as the lane's thread alone
// removes requests.
const DeviceStaging::CopyRequest* DeviceStaging::DropUnwantedAndFindFirst(CopyLane& lane) {
  std::deque<CopyRequest> unwanted;  // ends outside of the lock
  absl::MutexLock lock(&mu_);
  while (!lane.queues.empty()) {
    const CopyRequest& first = lane.queues.front().front();
    if (!first.wanted.expired()) return &first;
    unwanted.push_back(TakeFirst(lane));
  }
  lane.first_lacks_slot = false;
  return nullptr;
}

// Whoever has asked for more waits behind the others.
DeviceStaging::CopyRequest DeviceStaging::TakeFirst(CopyLane& lane) {
  std::deque<CopyRequest> queue = std::move(lane.queues.front());
  lane.queues.pop_front();
  CopyRequest next = std::move(queue.front());
  queue.pop_front();
  if (!queue.empty()) lane.queues.push_back(std::move(queue));
  return next;
}

// Takes the request whose turn it is, with a slot. Empty: there is no slot, and the next one that
// comes back posts CopyNext again; or it has ended here, with an error.
std::optional<DeviceStaging::Outgoing> DeviceStaging::TakeOneOutgoing(CopyLane& lane,
                                                                      const CopyRequest& first) {
  absl::StatusOr<std::shared_ptr<StagingSlot>> slot =
      outgoing_pool_->Take(*first.device, SlotBytes(first.store->layout()));
  // Its part of the limit is there for other GPUs.
  if (!slot.ok()) PostCopies();
  Outgoing outgoing;
  {
    absl::MutexLock lock(&mu_);
    lane.first_lacks_slot = slot.ok() && *slot == nullptr;
    if (lane.first_lacks_slot) return std::nullopt;
    outgoing.request = TakeFirst(lane);
  }
  if (!slot.ok()) {
    AnswerIfWanted(outgoing.request, absl::StatusOr<StagedSegment>(slot.status()));
    return std::nullopt;
  }
  outgoing.slot = *std::move(slot);
  return outgoing;
}

// Takes what is copied next in one go: of one store, up to the limit.
std::vector<DeviceStaging::Outgoing> DeviceStaging::TakeOutgoing(CopyLane& lane) {
  std::vector<Outgoing> taken;
  uint64_t bytes = 0;
  while (const CopyRequest* const first = DropUnwantedAndFindFirst(lane)) {
    bytes += first->store->layout().SegmentLength(first->segment);
    if (!taken.empty() &&
        (first->store != taken[0].request.store || bytes > kDeviceBytesCopiedAtOnce)) {
      break;
    }
    std::optional<Outgoing> next = TakeOneOutgoing(lane, *first);
    if (!next.has_value()) break;
    taken.push_back(*std::move(next));
  }
  return taken;
}

// One go at a time, so that the thread can end between two.
void DeviceStaging::CopyNext(CopyLane& lane) {
  std::vector<Outgoing> taken = TakeOutgoing(lane);
  {
    absl::MutexLock lock(&mu_);
    if (!lane.queues.empty() && !lane.first_lacks_slot) PostCopy(lane);
  }
  // Some may have ended while slots were taken.
  std::erase_if(taken, [](const Outgoing& each) { return each.request.wanted.expired(); });
  if (taken.empty()) return;
  std::vector<SegmentStore::Outgoing> segments;
  for (const auto& [request, slot] : taken) {
    const uint64_t bytes = request.store->layout().SegmentLength(request.segment);
    segments.push_back({request.segment, slot->bytes(bytes)});
  }
  const auto copied = taken[0].request.store->CopyOut(segments);
  for (size_t i = 0; i < taken.size(); ++i) {
    AnswerIfWanted(taken[i].request, Staged(copied[i], std::move(taken[i].slot), segments[i].to));
  }
}

void DeviceStaging::Post(const std::string& devices, std::function<void()> task) {
  absl::MutexLock lock(&gpu_threads_mu_);
  gpu_threads_.try_emplace(devices, "th-land-gpu").first->second.Post(std::move(task));
}

absl::Status DeviceStaging::PrepareLanding(const SegmentStore& store) {
  const ShardLayout& layout = store.layout();
  const uint64_t slot_bytes = SlotBytes(layout);
  const uint64_t useful = std::min(layout.segment_count(), kLandingBytesPerFill / slot_bytes);
  std::vector<std::shared_ptr<StagingSlot>> slots;
  while (slots.size() < std::max(useful, kMinLandingSlots)) {
    absl::StatusOr<std::shared_ptr<StagingSlot>> slot =
        landing_pool_->Take(*store.device(), slot_bytes);
    if (!slot.ok()) return slots.empty() ? slot.status() : absl::OkStatus();
    if (*slot == nullptr) break;  // other fills have them, and give them back
    slots.push_back(*std::move(slot));
  }
  return absl::OkStatus();
}

std::shared_ptr<StagingSlot> DeviceStaging::TryTakeLandingSlot(const ShardLayout& layout) {
  return landing_pool_->TryTake(SlotBytes(layout));
}

void DeviceStaging::AwaitLandingSlot(SlotRequest request) {
  {
    absl::MutexLock lock(&mu_);
    slot_requests_.push_back(std::move(request));
  }
  PostSlotRequest();
}

// Whenever a slot comes back: one that did while AnswerSlotRequest looked must not be missed.
void DeviceStaging::PostSlotRequest() {
  land_thread_.Post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->AnswerSlotRequest();
  });
}

absl::StatusOr<std::shared_ptr<StagingSlot>> DeviceStaging::PrepareOne(const SegmentStore& store) {
  TH_RETURN_IF_ERROR(PrepareLanding(store));
  return landing_pool_->Take(*store.device(), SlotBytes(store.layout()));
}

void DeviceStaging::AnswerSlotRequest() {
  SlotRequest next;
  {
    absl::MutexLock lock(&mu_);
    if (slot_requests_.empty()) return;
    next = std::move(slot_requests_.front());
    slot_requests_.pop_front();
  }
  if (next.wanted.expired()) return PostSlotRequest();
  absl::StatusOr<std::shared_ptr<StagingSlot>> slot = PrepareOne(*next.store);
  const bool may_come_back = landing_pool_->pinned_bytes() > 0;
  const bool waits_for_a_slot = slot.ok() ? *slot == nullptr : may_come_back;
  if (waits_for_a_slot) {
    // In front of the later ones, which wait too: they must not take every slot before it.
    absl::MutexLock lock(&mu_);
    slot_requests_.push_front(std::move(next));
    return;
  }
  PostSlotRequest();
  AnswerIfWanted(next, std::move(slot));
}

std::shared_ptr<DeviceStaging> SharedDeviceStaging(const DeviceStaging::Limits& limits) {
  // Never destroyed: transfers may still be there while statics go.
  static absl::Mutex* const mu = new absl::Mutex;
  static auto* const shared = new std::weak_ptr<DeviceStaging>;
  absl::MutexLock lock(mu);
  std::shared_ptr<DeviceStaging> staging = shared->lock();
  if (staging == nullptr) {
    staging = DeviceStaging::Create(limits);
    *shared = staging;
  }
  return staging;
}

}  // namespace th
