#include "th/client/local_buffer.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "th/memory/shared_memory.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

// How long the owner of memory that readers have attached waits for a copy of it, which takes some
// 0.2 s a GB. Afterwards each page that it writes is copied when it is written.
constexpr absl::Duration kRenewTime = absl::Seconds(2);

std::shared_ptr<SegmentStore> StoreOf(const TensorBinding& binding) {
  if (binding.device == nullptr) {
    return std::make_shared<SegmentStore>(binding.layout, binding.storages);
  }
  return std::make_shared<SegmentStore>(
      binding.layout, StorageMemory{.regions = binding.regions, .device = binding.device});
}

}  // namespace

absl::Status RevokeDevices(absl::Span<const std::shared_ptr<DeviceSide>> sides,
                           absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  absl::Status status;
  for (const std::shared_ptr<DeviceSide>& side : sides) {
    status.Update(side->Revoke(LeftUntil(deadline)));
  }
  return status;
}

LocalBuffer::LocalBuffer(Spec spec, RunBeside run_beside)
    : spec_(std::move(spec)),
      run_beside_(std::move(run_beside)),
      store_(StoreOf(spec_.binding)),
      storages_(spec_.binding.storages),
      regions_(spec_.binding.regions),
      device_(spec_.binding.device),
      staging_(device_ == nullptr ? nullptr : SharedDeviceStaging()) {}

void LocalBuffer::SetReady(absl::Status status) {
  if (ready_.HasBeenNotified()) return;
  ready_status_ = std::move(status);
  ready_.Notify();
}

// ---- serving

void LocalBuffer::ServeAll(BufferGeneration generation) {
  if (serving_under_ == generation) return;  // named only now, or filled just now: its sums stand
  serving_under_ = generation;
  before_fill_.reset();
  // An update that failed before its first write leaves the content, and so the publisher's sums.
  if (std::exchange(content_stands_, true)) return store_->Republish(generation);
  store_->Publish(generation);
}

void LocalBuffer::Serve(const ServingChanged& serving) {
  if (closed_) return;
  switch (serving.state) {
    case BufferState::kPublished:
      return ServeAll(serving.generation);
    case BufferState::kUndefined:
      // An update that wrote nothing leaves what was checked before it; so does one that ended
      // before its fill began, under a generation that the store has not heard of.
      if (before_fill_.has_value() || store_->generation() != serving.generation) {
        store_->BeginFill(serving.generation, before_fill_.value_or(store_->held()));
        AwaitDevices(nullptr);
      }
      return before_fill_.reset();
    case BufferState::kWritable:
      StopSealing();
      serving_under_.reset();
      content_stands_ = false;
      store_->Close(serving.generation);
      DropSnapshot();  // nobody reads it any more
      // Memory of our own is not written before the next fill begins, and mostly given back.
      if (!owns_memory()) LeaveToReaders(nullptr);
      return AwaitDevices(nullptr);
    case BufferState::kDraining:  // admitted readers go on
    case BufferState::kFilling:   // StartFill follows
      return;
  }
}

// ---- memory

void LocalBuffer::AttachMemory(std::shared_ptr<DataPlane> data_plane) {
  data_plane_ = std::move(data_plane);
  std::vector<MemoryRegion> regions = store_->regions();
  if (spec_.ring != nullptr) regions.push_back(spec_.ring->region());
  AttachRegions(regions);
}

// `regions`: the caller's, or the ring's.
void LocalBuffer::AttachRegions(absl::Span<const MemoryRegion> regions) {
  attached_ = data_plane_->Attach(regions);
  const bool any_of_gpus = std::any_of(regions.begin(), regions.end(), [](const auto& region) {
    return region.kind == MemoryKind::kDevice;
  });
  absl::MutexLock lock(&gpu_registrations_mu_);
  gpu_registrations_ = any_of_gpus ? attached_.Describe() : std::vector<std::string>();
}

void LocalBuffer::DetachMemory() {
  detached_ = true;
  attached_snapshot_ = {};
  attached_ = {};
}

std::vector<std::shared_ptr<DeviceSide>> LocalBuffer::device_sides() const {
  std::vector<std::shared_ptr<DeviceSide>> sides;
  if (device_ != nullptr) sides.push_back(device_);
  for (const std::weak_ptr<DeviceSide>& before : devices_before_) {
    if (auto side = before.lock()) sides.push_back(std::move(side));
  }
  return sides;
}

// Has the store serve the caller's memory.
absl::Status LocalBuffer::BindOwn() {
  return device_ == nullptr ? store_->Rebind(storages_) : store_->Rebind(memory());
}

absl::Status LocalBuffer::Rebind(const TensorBinding& binding) {
  if (binding.device == nullptr) {
    TH_RETURN_IF_ERROR(store_->Rebind(binding.storages));
  } else {
    TH_RETURN_IF_ERROR(store_->Rebind({.regions = binding.regions, .device = binding.device}));
  }
  storages_ = binding.storages;
  regions_ = binding.regions;
  std::erase_if(devices_before_, [](const auto& before) { return before.expired(); });
  if (device_ != nullptr) devices_before_.push_back(device_);
  device_ = binding.device;
  detached_ = false;
  if (device_ != nullptr && staging_ == nullptr) staging_ = SharedDeviceStaging();
  // The old registration goes first: new memory at the same address must not be taken for it.
  AttachAgain();
  return absl::OkStatus();
}

void LocalBuffer::AttachAgain() {
  attached_ = {};
  if (detached_) return;
  if (data_plane_ != nullptr) AttachRegions(store_->regions());
}

absl::Status LocalBuffer::BindSnapshot(std::vector<void*> storages, std::shared_ptr<void> memory) {
  TH_RETURN_IF_ERROR(store_->Rebind(std::move(storages)));
  snapshot_ = std::move(memory);
  snapshot_bytes_ = layout()->bytes();
  if (data_plane_ != nullptr) attached_snapshot_ = data_plane_->Attach(store_->regions());
  return absl::OkStatus();
}

void LocalBuffer::DropSnapshot() {
  if (snapshot_ == nullptr || !BindOwn().ok()) return;
  snapshot_bytes_ = 0;
  attached_snapshot_ = {};
  snapshot_.reset();
}

std::vector<std::byte*> LocalBuffer::AttachedArenas() const {
  std::vector<std::byte*> arenas;
  SharedMemoryRange last;  // storages of one arena mostly follow each other
  for (const void* const storage : storages_) {
    const auto* const begin = static_cast<const std::byte*>(storage);
    if (begin >= last.address && begin < last.address + last.bytes) continue;
    const auto range = FindSharedMemory(storage, 1);
    if (!range.has_value() || range->lease.number == 0) continue;
    last = *range;
    if (std::find(arenas.begin(), arenas.end(), last.address) != arenas.end()) continue;
    arenas.push_back(last.address);
  }
  std::erase_if(arenas, [](const std::byte* arena) { return !IsAttached(arena); });
  return arenas;
}

void LocalBuffer::AwaitDevices(std::function<void(absl::Status)> then) {
  absl::Status status = device_status();
  if (status.ok() || run_beside_ == nullptr) {
    if (then != nullptr) then(status);
    return;
  }
  ++awaiting_devices_;
  run_beside_(
      shared_from_this(),
      [store = store_] { static_cast<void>(store->AwaitDevices(kDeviceTime).ok()); },
      [self = shared_from_this(), then = std::move(then)] {
        --self->awaiting_devices_;
        if (then != nullptr) then(self->device_status());
        self->RunWaiting();
      });
}

void LocalBuffer::LeaveToReaders(std::function<void()> then) {
  std::vector<std::byte*> arenas;
  if (run_beside_ != nullptr && !renewing_) arenas = AttachedArenas();
  if (arenas.empty()) {
    if (then != nullptr) then();
    return;
  }
  attached_ = {};  // registered are the pages that the readers keep
  RenewBeside(std::move(arenas), kRenewTime, [this, then = std::move(then)] {
    AttachAgain();
    if (then != nullptr) then();
  });
}

void LocalBuffer::RenewBeside(std::vector<std::byte*> arenas, absl::Duration patience,
                              std::function<void()> then) {
  renewing_ = true;
  run_beside_(
      shared_from_this(),
      [arenas = std::move(arenas), patience] {
        const absl::Time deadline = MonotonicNow() + patience;
        for (std::byte* const arena : arenas) RenewSharedMemory(arena, deadline - MonotonicNow());
      },
      [self = shared_from_this(), then = std::move(then)] {
        self->renewing_ = false;
        if (then != nullptr) then();
        self->RunWaiting();
      });
}

// The store itself waits for the segment that is being summed.
void LocalBuffer::StopSealing() {
  if (stop_sealing_ != nullptr) *stop_sealing_ = true;
}

std::string LocalBuffer::gpu() const {
  // A snapshot lies in the host's memory.
  if (snapshot_ != nullptr) return {};
  const auto of_gpu = std::find_if(regions_.begin(), regions_.end(), [](const auto& region) {
    return region.kind == MemoryKind::kDevice;
  });
  return of_gpu == regions_.end() ? std::string() : of_gpu->device;
}

void LocalBuffer::Seal(TaskLoop& sealer, std::function<void(absl::StatusOr<Digest> root)> done) {
  StopSealing();
  stop_sealing_ = std::make_shared<std::atomic<bool>>(false);
  {
    absl::MutexLock lock(&seal_status_->mu);
    seal_status_->status = absl::OkStatus();
  }
  sealer.Post(
      [store = store_, stop = stop_sealing_, status = seal_status_, done = std::move(done)] {
        const absl::StatusOr<Digest> root = store->Seal(*stop);
        if (*stop || absl::IsCancelled(root.status())) return;
        {
          absl::MutexLock lock(&status->mu);
          status->status = root.status();
        }
        done(root);
      });
}

absl::Status LocalBuffer::seal_status() const {
  absl::MutexLock lock(&seal_status_->mu);
  return seal_status_->status;
}

// ---- fills

bool LocalBuffer::IsFill(OperationKey operation) const {
  return fill_ != nullptr && fill_->operation() == operation;
}

void LocalBuffer::StartFill(th::StartFill order, FillDriver::Parts parts) {
  WhenQuiet([this, order = std::move(order), parts = std::move(parts)]() mutable {
    if (closed_) return parts.on_stopped(nullptr);
    StopSealing();
    before_fill_ = store_->held();
    // A fill that began anew has thrown away what the session may still count as held.
    const SegmentSet lacking = before_fill_->Complement(store_->layout().segment_count());
    for (const SegmentRange& range : lacking.ranges()) order.resume.Remove(range);
    if (order.was_published) parts.before = store_->known_checksums();
    serving_under_ = order.generation;
    store_->BeginFill(order.generation, order.resume);
    AwaitDevices([this, order = std::move(order),
                  parts = std::move(parts)](const absl::Status& status) mutable {
      if (!status.ok()) parts.session->Handle(event::FillFailed{id(), status});
      if (!status.ok() || closed_) return parts.on_stopped(nullptr);
      LeaveToReaders([this, order = std::move(order), parts = std::move(parts)]() mutable {
        if (closed_) return parts.on_stopped(nullptr);
        parts.refused_by = attached_.refused_by;
        fill_ = FillDriver::Start(order, std::move(parts));
      });
    });
  });
}

void LocalBuffer::SetSources(th::SetSources order) {
  WhenQuiet([this, order = std::move(order)] {
    if (IsFill(order.operation)) fill_->SetSources(order);
  });
}

void LocalBuffer::SetRoot(th::SetRoot order) {
  WhenQuiet([this, order] {
    if (fill_ != nullptr && fill_->version().sequence == order.version) fill_->SetRoot(order.root);
  });
}

void LocalBuffer::StopFill(OperationKey operation, std::function<void()> stopped) {
  WhenQuiet([this, operation, stopped = std::move(stopped)] {
    if (!IsFill(operation)) return stopped();
    waiting_.push_front(stopped);
    fill_->Stop();
  });
}

void LocalBuffer::Close() {
  closed_ = true;
  StopSealing();
  if (fill_ != nullptr) fill_->Stop();
  store_->Close(store_->generation().Next());
  AwaitDevices(nullptr);
  // The caller may do with its memory what it likes, and will not publish it from here again. Of
  // large arenas that takes seconds: not here. A renewal that is under way is of the same arenas.
  if (owns_memory() || run_beside_ == nullptr || renewing_) return;
  std::vector<std::byte*> arenas = AttachedArenas();
  if (!arenas.empty()) RenewBeside(std::move(arenas), absl::ZeroDuration(), nullptr);
}

void LocalBuffer::FillStopped() {
  last_fill_ = std::exchange(status_taken_, false) ? FillStatus() : fill_->status();
  if (fill_->wrote()) before_fill_.reset();
  // The buffer may have become writable since the fill completed.
  const bool stands = fill_->completed() && serving_under_.has_value();
  if (fill_->wrote() || fill_->completed()) content_stands_ = stands;
  if (!fill_->completed()) serving_under_.reset();
  fill_.reset();
  RunWaiting();
}

void LocalBuffer::RunWaiting() {
  while (!waiting_.empty() && !busy()) {
    const std::function<void()> task = std::move(waiting_.front());
    waiting_.pop_front();
    task();
  }
}

void LocalBuffer::WhenQuiet(std::function<void()> task) {
  waiting_.push_back(std::move(task));
  RunWaiting();
}

FillStatus LocalBuffer::TakeFillStatus() {
  if (fill_ == nullptr) return std::exchange(last_fill_, {});
  status_taken_ = true;
  return fill_->status();
}

}  // namespace th
