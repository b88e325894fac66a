// A buffer's memory: when the caller may write it, and how it is changed for another or given back.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "th/client/session_driver.h"
#include "th/memory/device_side.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

// Limits the renewals that a change of memory waits for: another one begins only where the buffer
// was published again meanwhile.
constexpr int kMaxRenewalsAwaited = 8;

}  // namespace

void SessionDriver::AwaitWritable(const LocalBuffer& buffer) {
  if (runtime_->control().OnLoop()) return;  // which makes it so
  if (buffer_state(buffer.id()) != BufferState::kWritable) return;
  runtime_->RunOnControl([this] { Pump(); });
  AwaitRenewed(buffer);
}

void SessionDriver::WhenWritable(std::shared_ptr<LocalBuffer> buffer, std::function<void()> then) {
  runtime_->control().Post(
      [self = shared_from_this(), buffer = std::move(buffer), then = std::move(then)]() mutable {
        if (self->buffer_state(buffer->id()) != BufferState::kWritable) return then();
        self->Pump();
        // `then` keeps the membership, without which what is awaited would not be told.
        buffer->WhenQuiet([self, then = std::move(then)] { then(); });
      });
}

absl::Status SessionDriver::Reset(LocalBuffer& buffer) {
  TH_RETURN_IF_ERROR(LeaveUndefined(buffer));
  TH_RETURN_IF_ERROR(AwaitReadersEnd(buffer));  // readers of what was checked are being cut
  AwaitWritable(buffer);
  return buffer.device_status();
}

absl::Status SessionDriver::AwaitReadersEnd(const LocalBuffer& buffer) {
  absl::MutexLock lock(&mu_);
  const auto ended = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return session_.buffer_state(buffer.id()) == BufferState::kWritable || session_.ended();
  };
  if (mu_.AwaitWithTimeout(absl::Condition(&ended), kResetTimeout)) return absl::OkStatus();
  return absl::DeadlineExceededError("readers of the buffer did not let go of it");
}

absl::Status SessionDriver::LostPublication(const LocalBuffer& buffer) {
  absl::Status lost;
  {
    absl::MutexLock lock(&mu_);
    lost = session_.lost_publication(buffer.id());
    // A verb that has begun since decides when the memory may be written.
    if (lost.ok() || session_.buffer_state(buffer.id()) == BufferState::kFilling) return lost;
  }
  TH_RETURN_IF_ERROR(AwaitReadersEnd(buffer));
  AwaitWritable(buffer);
  return lost;
}

// A GPU that an update has given up may write at any later time: the content that the caller
// answers for would change after all. What GPUs read is waited for afterwards, once no reader asks
// for more.
absl::Status SessionDriver::LeaveUndefined(const LocalBuffer& buffer) {
  bool is_claimed = false;
  {
    absl::MutexLock lock(&mu_);
    TH_RETURN_IF_ERROR(claims_.CheckUnclaimed(buffer.id()));
    is_claimed = session_.buffer_state(buffer.id()) == BufferState::kUndefined;
    // Or an update that begins meanwhile could fail with another GPU at work.
    if (is_claimed) claims_.Claim(buffer.id(), ClaimFor::kReset);
  }
  if (!is_claimed) return Handle(event::Reset{buffer.id()}).status;
  const absl::Cleanup release = [&] { ReleaseMemory(buffer); };
  TH_RETURN_IF_ERROR(buffer.store()->AwaitDevices(kDeviceTime));
  return Handle(event::Reset{buffer.id()}).status;
}

absl::Status SessionDriver::ClaimMemory(const LocalBuffer& buffer, ClaimFor claim) {
  for (int attempt = 0; attempt < kMaxRenewalsAwaited; ++attempt) {
    AwaitRenewed(buffer);  // the caller may free the memory next
    absl::Status can;
    bool is_renewed = false;
    // On th-control, so that no order for a fill comes between the check and the claim.
    runtime_->RunOnControl([&] {
      Pump();  // which may begin another renewal
      absl::MutexLock lock(&mu_);
      can = CheckMayClaim(buffer, claim);
      is_renewed = renewals_.count(&buffer) > 0;
      if (can.ok() && !is_renewed) claims_.Claim(buffer.id(), claim);
    });
    if (!can.ok() || !is_renewed) return can;
  }
  return absl::FailedPreconditionError(
      "the buffer was published and taken back again and again meanwhile, by another thread");
}

absl::Status SessionDriver::CheckMayClaim(const LocalBuffer& buffer, ClaimFor claim) const {
  TH_RETURN_IF_ERROR(claims_.CheckUnclaimed(buffer.id()));
  if (claim == ClaimFor::kSleep && claims_.IsAsleep(buffer.id())) return absl::OkStatus();
  if (claim == ClaimFor::kWake && !claims_.IsAsleep(buffer.id())) {
    return absl::FailedPreconditionError("the buffer is not asleep");
  }
  if (claim == ClaimFor::kSnapshot) TH_RETURN_IF_ERROR(claims_.CheckNotAsleep(buffer.id()));
  TH_RETURN_IF_ERROR(CheckCanRebind(buffer.id()));
  if (buffer.snapshot_bytes() == 0) return absl::OkStatus();
  // Between a snapshot and its publication.
  return absl::FailedPreconditionError("another thread is publishing a snapshot of the buffer");
}

void SessionDriver::ReleaseMemory(const LocalBuffer& buffer) {
  absl::MutexLock lock(&mu_);
  claims_.Release(buffer.id());
}

absl::Status SessionDriver::Rebind(LocalBuffer& buffer, const TensorBinding& binding) {
  TH_RETURN_IF_ERROR(ClaimMemory(buffer, ClaimFor::kRebind));
  const absl::Cleanup release = [&] { ReleaseMemory(buffer); };
  std::vector<std::shared_ptr<DeviceSide>> before;
  runtime_->RunOnControl([&] { before = buffer.device_sides(); });
  // Not on th-control: a GPU that does not end would hold up all clients of the process.
  absl::Status rebound = RevokeDevices(before, kDeviceTime);
  if (rebound.ok()) rebound = BindAwake(buffer, binding);
  if (rebound.ok() || IsAsleep(buffer.id())) return rebound;
  // It goes on where it is.
  if (const auto device = MemoryOf(buffer).device; device != nullptr) device->Restore();
  return rebound;
}

absl::Status SessionDriver::BindAwake(LocalBuffer& buffer, const TensorBinding& binding) {
  absl::Status bound;
  runtime_->RunOnControl([&] {
    bound = buffer.Rebind(binding);
    if (!bound.ok()) return;
    absl::MutexLock lock(&mu_);
    claims_.Wake(buffer.id());
  });
  return bound;
}

// One that is asleep runs through here again: its GPU may not have ended when it fell asleep.
absl::Status SessionDriver::Sleep(LocalBuffer& buffer) {
  AwaitWritable(buffer);
  TH_RETURN_IF_ERROR(ClaimMemory(buffer, ClaimFor::kSleep));
  const absl::Cleanup release = [&] { ReleaseMemory(buffer); };
  absl::Status unread;
  std::vector<std::shared_ptr<DeviceSide>> sides;
  runtime_->RunOnControl([&] {
    unread = buffer.device_status();
    if (!unread.ok()) return;
    buffer.DetachMemory();
    sides = buffer.device_sides();
    absl::MutexLock lock(&mu_);
    claims_.FallAsleep(buffer.id());
  });
  TH_RETURN_IF_ERROR(unread);
  return RevokeDevices(sides, kDeviceTime);
}

absl::Status SessionDriver::Wake(LocalBuffer& buffer, BindWhereItLay bind) {
  TH_RETURN_IF_ERROR(ClaimMemory(buffer, ClaimFor::kWake));
  const absl::Cleanup release = [&] { ReleaseMemory(buffer); };
  TH_ASSIGN_OR_RETURN(const TensorBinding binding, bind(MemoryOf(buffer), StoragesOf(buffer)));
  return BindAwake(buffer, binding);
}

bool SessionDriver::IsAsleep(BufferId buffer) const {
  absl::MutexLock lock(&mu_);
  return claims_.IsAsleep(buffer);
}

StorageMemory SessionDriver::MemoryOf(const LocalBuffer& buffer) {
  StorageMemory memory;
  runtime_->RunOnControl([&] { memory = buffer.memory(); });
  return memory;
}

std::vector<void*> SessionDriver::StoragesOf(const LocalBuffer& buffer) {
  std::vector<void*> storages;
  runtime_->RunOnControl([&] { storages = buffer.storages(); });
  return storages;
}

absl::Status SessionDriver::CanChangeMemory(const LocalBuffer& buffer) {
  Pump();
  absl::MutexLock lock(&mu_);
  return CheckCanRebind(buffer.id());
}

absl::Status SessionDriver::CheckCanRebind(BufferId buffer) const {
  if (session_.buffer_state(buffer) != BufferState::kUndefined) return session_.CanRebind(buffer);
  return absl::FailedPreconditionError(
      "the buffer is undefined: it holds parts of two versions; reset it first, answering for its "
      "content, or update it");
}

}  // namespace th
