#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "th/client/cancel_hook.h"
#include "th/client/client.h"
#include "th/client/client_state.h"
#include "th/client/process_guard.h"
#include "th/client/tensor_binding.h"
#include "th/memory/cuda/cuda_memory_devices.h"
#include "th/text/utf8.h"
#include "th/transfer/monotonic_clock.h"

namespace th {

WeightBuffer::WeightBuffer() = default;
WeightBuffer::WeightBuffer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
WeightBuffer::WeightBuffer(WeightBuffer&&) noexcept = default;

WeightBuffer& WeightBuffer::operator=(WeightBuffer&& other) noexcept {
  WeightBuffer old(std::move(impl_));
  impl_ = std::move(other.impl_);
  return *this;
}

WeightBuffer::~WeightBuffer() {
  if (impl_ == nullptr) return;
  if (impl_->guard.forked()) {
    LeaveBehind(std::move(impl_));
  } else {
    impl_->membership->Unregister(*impl_->buffer);
  }
}

// ---- publish

absl::Status WeightBuffer::Publish(int64_t step, PublishOptions options) {
  if (step < 0) return absl::InvalidArgumentError("a step is not negative");
  return Publish(VersionLabel::FromStep(step).text(), std::move(options));
}

namespace {

// How often a wait for a GPU looks for a cancellation.
constexpr absl::Duration kCancelInterval = absl::Milliseconds(100);

absl::Status AwaitEvent(absl::string_view device, uintptr_t event, absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  while (true) {
    const absl::Duration left = deadline - MonotonicNow();
    const bool last = left <= kCancelInterval;
    const absl::Status waited =
        ProcessMemoryDevices()->AwaitEvent(device, event, last ? left : kCancelInterval);
    if (last || !absl::IsDeadlineExceeded(waited)) return waited;
    TH_RETURN_IF_ERROR(CheckNotCancelled("nothing was published"));
  }
}

// Waits for the GPU to have written what is to be published.
absl::Status AwaitDevice(SessionDriver& membership, LocalBuffer& buffer,
                         const PublishOptions& options) {
  if (!options.after_cuda_event.has_value()) return absl::OkStatus();
  TH_RETURN_IF_ERROR(membership.CanWait());
  const StorageMemory memory = membership.MemoryOf(buffer);
  const auto of_device = absl::c_find_if(memory.regions, [](const MemoryRegion& region) {
    return region.kind == MemoryKind::kDevice;
  });
  if (of_device == memory.regions.end()) {
    return absl::InvalidArgumentError(
        "option after_cuda_event: none of the buffer's tensors is GPU memory");
  }
  const absl::Status waited =
      AwaitEvent(of_device->device, *options.after_cuda_event, options.timeout);
  if (waited.ok()) return waited;
  return absl::Status(waited.code(), absl::StrCat("option after_cuda_event: ", waited.message()));
}

// The tensors are the caller's again when it returns OK with bytes; without bytes it is published
// in place.
absl::StatusOr<PublishResult> MakeSnapshot(SessionDriver& membership, LocalBuffer& buffer,
                                           const PublishOptions& options) {
  PublishResult made;
  if (options.snapshot == Snapshot::kNone) return made;
  TH_RETURN_IF_ERROR(membership.CanWait());
  const absl::Time begin = MonotonicNow();
  const absl::Status taken = membership.TakeSnapshot(buffer);
  if (absl::IsResourceExhausted(taken) && options.snapshot_or_in_place) return made;
  TH_RETURN_IF_ERROR(taken);
  made.snapshot_bytes = buffer.layout()->bytes();
  made.snapshot = MonotonicNow() - begin;
  return made;
}

}  // namespace

absl::Status WeightBuffer::Publish(absl::string_view label, PublishOptions options) {
  if (impl_ == nullptr) return NoBuffer();
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  if (!options.component.empty()) {
    return absl::UnimplementedError(absl::StrCat("component ", Quoted(options.component),
                                                 ": parts of a version are reserved for later"));
  }
  PublishRequest request;
  TH_ASSIGN_OR_RETURN(request.label, VersionLabel::Parse(label));
  request.attributes = std::move(options.attributes);
  request.derived_from = options.derived_from;
  request.timeout = options.timeout;
  TH_RETURN_IF_ERROR(AwaitDevice(*impl_->membership, *impl_->buffer, options));
  absl::MutexLock one_snapshot(&impl_->snapshot_mu);
  TH_ASSIGN_OR_RETURN(const PublishResult snapshot,
                      MakeSnapshot(*impl_->membership, *impl_->buffer, options));
  request.snapshot_bytes = snapshot.snapshot_bytes;
  const auto call = std::make_shared<Call>();
  call->buffer = impl_->buffer->id();
  const uint64_t bytes_sent_before = impl_->buffer->bytes_sent().load();
  const absl::Status started = impl_->membership->Start(call, [&](CallId id) {
    return event::Publish{id, call->buffer, std::move(request)};
  });
  if (!started.ok()) {
    if (snapshot.snapshot_bytes > 0) impl_->membership->DropSnapshot(*impl_->buffer);
    return started;
  }
  absl::MutexLock lock(&impl_->mu);
  impl_->last_snapshot = snapshot;
  impl_->last_publish = call;
  impl_->last_publish_timeout = options.timeout;
  impl_->bytes_sent_before_publish = bytes_sent_before;
  return absl::OkStatus();
}

absl::StatusOr<PublishResult> WeightBuffer::AwaitPublished() {
  if (impl_ == nullptr) return NoBuffer();
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  TH_RETURN_IF_ERROR(impl_->membership->CanWait());
  std::shared_ptr<Call> call;
  absl::Duration timeout;
  PublishResult result;
  {
    absl::MutexLock lock(&impl_->mu);
    call = impl_->last_publish;
    timeout = impl_->last_publish_timeout;
    result = impl_->last_snapshot;
  }
  if (call == nullptr) {
    return absl::FailedPreconditionError("nothing was published from this buffer yet");
  }
  if (!call->WaitUnlessCancelled(timeout)) {
    TH_RETURN_IF_ERROR(CheckNotCancelled("the publish goes on, unpublish takes the buffer back"));
    return Unanswered("publish");
  }
  TH_RETURN_IF_ERROR(call->done.status);
  result.version = call->done.version;
  return result;
}

absl::Status WeightBuffer::AwaitSealed(absl::Duration timeout) {
  TH_RETURN_IF_ERROR(AwaitPublished().status());
  if (impl_->membership->AwaitSealed(*impl_->buffer, timeout)) return absl::OkStatus();
  TH_RETURN_IF_ERROR(CheckNotCancelled("sealing goes on"));
  TH_RETURN_IF_ERROR(impl_->membership->status());
  TH_RETURN_IF_ERROR(impl_->buffer->seal_status());
  TH_RETURN_IF_ERROR(impl_->membership->LostPublication(*impl_->buffer));
  if (impl_->membership->buffer_state(impl_->buffer->id()) != BufferState::kPublished) {
    return absl::FailedPreconditionError("the buffer is not published any more");
  }
  if (!impl_->membership->PublishesOwn(impl_->buffer->id())) {
    return absl::FailedPreconditionError(
        "the buffer holds what another replica has published, who makes the sums");
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "the sums were not done within ", absl::FormatDuration(timeout), "; sealing goes on"));
}

// ---- unpublish

namespace {

absl::StatusOr<std::shared_ptr<Call>> StartUnpublish(SessionDriver& membership,
                                                     const LocalBuffer& buffer,
                                                     const UnpublishOptions& options,
                                                     std::function<void(Call&)> then) {
  const auto call = std::make_shared<Call>();
  call->buffer = buffer.id();
  call->then = std::move(then);
  TH_RETURN_IF_ERROR(membership.Start(call, [&](CallId id) {
    return event::Unpublish{id,
                            buffer.id(),
                            {.drain_timeout = options.drain_timeout,
                             .timeout = options.timeout,
                             .on_retention = options.on_retention,
                             .offload_timeout = options.offload_timeout}};
  }));
  return call;
}

}  // namespace

absl::Status WeightBuffer::Unpublish(UnpublishOptions options) {
  if (impl_ == nullptr) return NoBuffer();
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  TH_RETURN_IF_ERROR(impl_->membership->CanWait());
  const CancellationScope none(nullptr);  // OK has to say that the memory is the caller's
  if (impl_->HasReaders()) {
    // Without the publisher's root nobody could complete what was read so far. Returns at once
    // where another has published it.
    (void)impl_->membership->AwaitSealed(*impl_->buffer, options.drain_timeout);
  }
  const absl::StatusOr<std::shared_ptr<Call>> call =
      StartUnpublish(*impl_->membership, *impl_->buffer, options, nullptr);
  // A caller that hears that nothing is published may write, also after an unpublish that ran out
  // of time.
  if (!call.ok()) impl_->membership->AwaitWritable(*impl_->buffer);
  TH_RETURN_IF_ERROR(call.status());
  if (!(*call)->Wait(LongestWait(options))) return Unanswered("unpublish");
  return (*call)->done.status;
}

void WeightBuffer::UnpublishAsync(UnpublishOptions options,
                                  std::function<void(absl::Status)> done) {
  absl::Status refused = impl_ == nullptr ? NoBuffer() : impl_->guard.Check();
  if (!refused.ok()) return done(refused);  // there is no thread to run it on
  refused = StartUnpublish(*impl_->membership, *impl_->buffer, options, [done](Call& call) {
              done(call.done.status);
            }).status();
  if (refused.ok()) return;
  // As for an Unpublish that is refused, but the caller goes on meanwhile.
  impl_->membership->WhenWritable(impl_->buffer, [membership = impl_->membership, done, refused] {
    membership->runtime().callbacks().Post([done, refused] { done(refused); });
  });
}

// ---- the buffer itself

absl::Status WeightBuffer::Rebind(const std::vector<Tensor>& tensors) {
  if (impl_ == nullptr) return NoBuffer();
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  TH_RETURN_IF_ERROR(impl_->membership->CanWait());
  LocalBuffer& buffer = *impl_->buffer;
  TH_ASSIGN_OR_RETURN(TensorBinding binding, BindTensors(tensors, buffer.binding_options()));
  if (binding.layout->digest() != buffer.layout()->digest()) {
    return absl::InvalidArgumentError(
        absl::StrCat("other tensors than those registered: ",
                     FirstDifference(*binding.layout, *buffer.layout())));
  }
  TH_RETURN_IF_ERROR(FindDeviceMemory(ProcessMemoryDevices().get(), &binding));
  TH_RETURN_IF_ERROR(CheckReadable(binding));
  return impl_->membership->Rebind(buffer, binding);
}

absl::Status WeightBuffer::Sleep(UnpublishOptions options) {
  if (impl_ == nullptr) return NoBuffer();
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  TH_RETURN_IF_ERROR(impl_->membership->CanWait());
  const CancellationScope none(nullptr);
  SessionDriver& membership = *impl_->membership;
  if (membership.buffer_state(impl_->buffer->id()) == BufferState::kPublished) {
    TH_RETURN_IF_ERROR(Unpublish(options));
  }
  return membership.Sleep(*impl_->buffer);
}

namespace {

// GPU memory that is not mapped looks like memory of the host, which would be touched.
absl::Status CheckIsMapped(const StorageMemory& before, const TensorBinding& now) {
  for (size_t i = 0; i < before.regions.size(); ++i) {
    if (before.regions[i].kind != MemoryKind::kDevice) continue;
    if (!now.regions.empty() && now.regions[i].kind == MemoryKind::kDevice) continue;
    const ShardLayout& layout = *now.layout;
    return absl::FailedPreconditionError(
        absl::StrCat("tensor ", Quoted(layout.tensors()[layout.storages()[i].tensor].name),
                     " lay in memory of GPU ", before.regions[i].device,
                     " and does not now: map it again before the buffer wakes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WeightBuffer::Wake() {
  if (impl_ == nullptr) return NoBuffer();
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  TH_RETURN_IF_ERROR(impl_->membership->CanWait());
  LocalBuffer& buffer = *impl_->buffer;
  return impl_->membership->Wake(
      buffer,
      [&](const StorageMemory& before,
          std::vector<void*> storages) -> absl::StatusOr<TensorBinding> {
        TensorBinding binding{.layout = buffer.layout(), .storages = std::move(storages)};
        TH_RETURN_IF_ERROR(FindDeviceMemory(ProcessMemoryDevices().get(), &binding));
        TH_RETURN_IF_ERROR(CheckIsMapped(before, binding));
        TH_RETURN_IF_ERROR(CheckReadable(binding));
        return binding;
      });
}

bool WeightBuffer::asleep() const {
  if (impl_ == nullptr || impl_->guard.forked()) return false;
  return impl_->membership->IsAsleep(impl_->buffer->id());
}

bool WeightBuffer::undefined() const {
  if (impl_ == nullptr || impl_->guard.forked()) return false;
  return impl_->membership->buffer_state(impl_->buffer->id()) == BufferState::kUndefined;
}

absl::Status WeightBuffer::Reset() {
  if (impl_ == nullptr) return NoBuffer();
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  TH_RETURN_IF_ERROR(impl_->membership->CanWait());
  return impl_->membership->Reset(*impl_->buffer);
}

VersionInfo WeightBuffer::version() const {
  if (impl_ == nullptr || impl_->guard.forked()) return {};
  return impl_->membership->buffer_version(impl_->buffer->id());
}

uint64_t WeightBuffer::bytes() const {
  return impl_ == nullptr ? 0 : impl_->buffer->layout()->bytes();
}

Digest WeightBuffer::layout_digest() const {
  return impl_ == nullptr ? Digest{} : impl_->buffer->layout()->digest();
}

uint64_t WeightBuffer::snapshot_bytes() const {
  return impl_ == nullptr ? 0 : impl_->buffer->snapshot_bytes();
}

std::vector<std::string> WeightBuffer::gpu_registrations() const {
  if (impl_ == nullptr) return {};
  return impl_->buffer->gpu_registrations();
}

uint64_t WeightBuffer::bytes_sent() const {
  return impl_ == nullptr ? 0 : impl_->buffer->bytes_sent().load();
}

}  // namespace th
