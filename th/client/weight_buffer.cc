#include <utility>

#include "absl/strings/str_cat.h"
#include "th/client/client.h"
#include "th/client/client_state.h"
#include "th/client/leave_behind.h"
#include "th/client/tensor_binding.h"
#include "th/client/verb_checks.h"
#include "th/transfer/monotonic_clock.h"
#include "th/weights/utf8.h"

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

// The tensors are the caller's again when it returns OK with bytes; without bytes it is published
// in place.
absl::StatusOr<PublishResult> MakeSnapshot(Membership& membership, LocalBuffer& buffer,
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
  if (!call->Wait(timeout)) return Unanswered("publish");
  TH_RETURN_IF_ERROR(call->done.status);
  result.version = call->done.version;
  return result;
}

absl::Status WeightBuffer::AwaitSealed(absl::Duration timeout) {
  TH_RETURN_IF_ERROR(AwaitPublished().status());
  if (impl_->membership->AwaitSealed(impl_->buffer->id(), timeout)) return absl::OkStatus();
  TH_RETURN_IF_ERROR(impl_->membership->status());
  if (impl_->membership->buffer_state(impl_->buffer->id()) != BufferState::kPublished) {
    return absl::FailedPreconditionError("the buffer is not published any more");
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "the sums were not done within ", absl::FormatDuration(timeout), "; sealing goes on"));
}

// ---- unpublish

namespace {

absl::StatusOr<std::shared_ptr<Call>> StartUnpublish(Membership& membership, BufferId buffer,
                                                     const UnpublishOptions& options,
                                                     std::function<void(Call&)> then) {
  const auto call = std::make_shared<Call>();
  call->buffer = buffer;
  call->then = std::move(then);
  TH_RETURN_IF_ERROR(membership.Start(call, [&](CallId id) {
    return event::Unpublish{id,
                            buffer,
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
  if (impl_->HasReaders()) {
    // Without the publisher's root nobody could complete what was read so far.
    (void)impl_->membership->AwaitSealed(impl_->buffer->id(), options.drain_timeout);
  }
  TH_ASSIGN_OR_RETURN(const std::shared_ptr<Call> call,
                      StartUnpublish(*impl_->membership, impl_->buffer->id(), options, nullptr));
  if (!call->Wait(LongestWait(options))) return Unanswered("unpublish");
  return call->done.status;
}

void WeightBuffer::UnpublishAsync(UnpublishOptions options,
                                  std::function<void(absl::Status)> done) {
  absl::Status refused = impl_ == nullptr ? NoBuffer() : impl_->guard.Check();
  if (!refused.ok()) return done(refused);  // there is no thread to run it on
  refused = StartUnpublish(*impl_->membership, impl_->buffer->id(), options, [done](Call& call) {
              done(call.done.status);
            }).status();
  if (refused.ok()) return;
  impl_->membership->runtime().callbacks().Post([done, refused] { done(refused); });
}

// ---- the buffer itself

absl::Status WeightBuffer::Rebind(const std::vector<Tensor>& tensors) {
  if (impl_ == nullptr) return NoBuffer();
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  TH_RETURN_IF_ERROR(impl_->membership->CanWait());
  LocalBuffer& buffer = *impl_->buffer;
  TH_ASSIGN_OR_RETURN(const TensorBinding binding, BindTensors(tensors, buffer.binding_options()));
  if (binding.layout->digest() != buffer.layout()->digest()) {
    return absl::InvalidArgumentError(
        absl::StrCat("other tensors than those registered: ",
                     FirstDifference(*binding.layout, *buffer.layout())));
  }
  return impl_->membership->Rebind(buffer, binding.storages);
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

uint64_t WeightBuffer::bytes_sent() const {
  return impl_ == nullptr ? 0 : impl_->buffer->bytes_sent().load();
}

}  // namespace th
