#include "th/client/local_buffer.h"

#include <utility>

#include "th/weights/status_macros.h"

namespace th {

LocalBuffer::LocalBuffer(Spec spec)
    : spec_(std::move(spec)),
      store_(std::make_shared<SegmentStore>(spec_.binding.layout, spec_.binding.storages)),
      storages_(spec_.binding.storages) {}

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
      }
      return before_fill_.reset();
    case BufferState::kWritable:
      StopSealing();
      serving_under_.reset();
      content_stands_ = false;
      store_->Close(serving.generation);
      return DropSnapshot();      // nobody reads it any more
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
  attached_ = data_plane_->Attach(regions);
}

void LocalBuffer::DetachMemory() {
  attached_snapshot_ = {};
  attached_ = {};
}

absl::Status LocalBuffer::Rebind(std::vector<void*> storages) {
  TH_RETURN_IF_ERROR(store_->Rebind(storages));
  storages_ = std::move(storages);
  // What was registered goes first: new memory at the same address must not be taken for it.
  attached_ = {};
  if (data_plane_ != nullptr) attached_ = data_plane_->Attach(store_->regions());
  return absl::OkStatus();
}

absl::Status LocalBuffer::BindSnapshot(std::vector<void*> storages, std::shared_ptr<void> memory) {
  TH_RETURN_IF_ERROR(store_->Rebind(std::move(storages)));
  snapshot_ = std::move(memory);
  snapshot_bytes_ = layout()->bytes();
  if (data_plane_ != nullptr) attached_snapshot_ = data_plane_->Attach(store_->regions());
  return absl::OkStatus();
}

void LocalBuffer::DropSnapshot() {
  if (snapshot_ == nullptr || !store_->Rebind(storages_).ok()) return;
  snapshot_bytes_ = 0;
  attached_snapshot_ = {};
  snapshot_.reset();
}

// The store itself waits for the segment that is being summed.
void LocalBuffer::StopSealing() {
  if (stop_sealing_ != nullptr) *stop_sealing_ = true;
}

void LocalBuffer::Seal(TaskLoop& sealer, std::function<void(Digest root)> done) {
  StopSealing();
  stop_sealing_ = std::make_shared<std::atomic<bool>>(false);
  sealer.Post([store = store_, stop = stop_sealing_, done = std::move(done)] {
    const absl::StatusOr<Digest> root = store->Seal(*stop);
    if (root.ok() && !*stop) done(*root);
  });
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
    if (order.was_published) parts.before = store_->known_sums();
    serving_under_ = order.generation;
    store_->BeginFill(order.generation, order.resume);
    parts.refused_by = attached_.refused_by;
    fill_ = FillDriver::Start(order, std::move(parts));
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
  while (!waiting_.empty() && !stopping()) {
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
