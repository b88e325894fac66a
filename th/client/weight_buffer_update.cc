// Update, in place or staged first; Stage and Apply by themselves.
#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "th/client/cancel_hook.h"
#include "th/client/client.h"
#include "th/client/client_state.h"
#include "th/client/update_result.h"
#include "th/status/status_macros.h"
#include "th/text/utf8.h"

namespace th {
namespace {

using CallPtr = std::shared_ptr<Call>;
using Then = std::function<void(Call&)>;
using Done = ResultCallback<UpdateResult>;
using BufferPtr = std::shared_ptr<LocalBuffer>;

// An update that was staged has at least this long for its second half.
constexpr absl::Duration kLeastApplyTime = absl::Seconds(1);

CallPtr NewCall(SessionDriver& membership, std::function<void(const UpdateProgress&)> on_progress,
                Then then) {
  auto call = std::make_shared<Call>();
  call->then = std::move(then);
  if (on_progress) {
    call->progress =
        std::make_shared<ProgressReporter>(membership.shared_runtime(), std::move(on_progress));
  }
  return call;
}

// FAILED_PRECONDITION while the buffer is published from a snapshot: the caller may have written
// the tensors since, so an update that fails could not restore what is published.
absl::Status CheckNoSnapshot(const LocalBuffer& buffer) {
  if (buffer.snapshot_bytes() == 0) return absl::OkStatus();
  return absl::FailedPreconditionError("the buffer is published from a snapshot; unpublish first");
}

absl::StatusOr<CallPtr> StartUpdate(SessionDriver& membership, const LocalBuffer& buffer,
                                    VersionSelector version, const UpdateOptions& options,
                                    Then then) {
  TH_RETURN_IF_ERROR(CheckNoSnapshot(buffer));
  const CallPtr call = NewCall(membership, options.on_progress, std::move(then));
  call->buffer = buffer.id();
  UpdateRequest request{.selector = std::move(version),
                        .floor = options.floor,
                        .timeout = options.timeout,
                        .drain_timeout = options.drain_timeout,
                        .on_retention = options.on_retention,
                        .offload_timeout = options.offload_timeout,
                        .when_seeding = options.when_seeding};
  TH_RETURN_IF_ERROR(membership.Start(call, [&](CallId id) {
    return event::Update{id, buffer.id(), std::move(request)};
  }));
  return call;
}

absl::StatusOr<CallPtr> StartStage(SessionDriver& membership, const LocalBuffer& buffer,
                                   VersionSelector version, const StageOptions& options,
                                   Then then) {
  const CallPtr call = NewCall(membership, options.on_progress, std::move(then));
  call->buffer = buffer.id();  // until it is known which buffer it is staged in
  const bool waits = options.when_seeding == WhenSeeding::kWait;
  UpdateRequest request{.selector = std::move(version),
                        .floor = options.floor,
                        .timeout = options.timeout,
                        .when_seeding = waits ? WhenSeeding::kWait : WhenSeeding::kSkip};
  TH_RETURN_IF_ERROR(membership.Start(call, [&](CallId id) {
    return event::Stage{id, buffer.id(), std::move(request)};
  }));
  return call;
}

absl::StatusOr<CallPtr> StartApply(SessionDriver& membership, const LocalBuffer& buffer,
                                   const ApplyOptions& options, Then then) {
  TH_RETURN_IF_ERROR(CheckNoSnapshot(buffer));
  const CallPtr call = NewCall(membership, nullptr, std::move(then));
  call->buffer = buffer.id();
  UpdateRequest request{.timeout = options.timeout,
                        .drain_timeout = options.drain_timeout,
                        .on_retention = options.on_retention,
                        .offload_timeout = options.offload_timeout};
  TH_RETURN_IF_ERROR(membership.Start(call, [&](CallId id) {
    return event::Apply{id, buffer.id(), std::move(request)};
  }));
  return call;
}

void Disable(const Call& call) {
  if (call.progress != nullptr) call.progress->Disable();
}

// On th-callback, when the call has ended.
Then ThenHandUpdate(Done done) {
  return [done = std::move(done)](Call& call) {
    Disable(call);
    done(ComposeUpdateResult(call));
  };
}
Then ThenHandStage(uint64_t bytes, Done done) {
  return [bytes, done = std::move(done)](Call& call) {
    Disable(call);
    done(ComposeStageResult(call, bytes));
  };
}
Then ThenHandApply(uint64_t bytes, Done done) {
  return [bytes, done = std::move(done)](Call& call) { done(ComposeApplyResult(call, bytes)); };
}

absl::Status CanHold(const LocalBuffer& buffer, const std::string& form) {
  if (form.empty() || form == buffer.form()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("the buffer holds form ", Quoted(buffer.form()),
                                               ", not ", Quoted(form),
                                               ": conversion between forms does not exist"));
}

// ---- an update that is staged first

// Set when the caller has cancelled an update, which may be between its halves then.
using CancelledFlag = std::shared_ptr<std::atomic<bool>>;

// The second half. What was staged for nothing is discarded.
void ApplyStaged(const std::shared_ptr<SessionDriver>& membership, const BufferPtr& buffer,
                 UpdateResult staged, const UpdateOptions& options, const CancelledFlag& cancelled,
                 const Done& done) {
  const ApplyOptions apply{.timeout = std::max(options.timeout - staged.seconds(), kLeastApplyTime),
                           .drain_timeout = options.drain_timeout,
                           .on_retention = options.on_retention,
                           .offload_timeout = options.offload_timeout};
  // A copy: what comes of it may come before this returns.
  const auto finish = [membership, buffer, staged,
                       done](const absl::StatusOr<UpdateResult>& applied) {
    if (applied.ok()) return done(StagedThenApplied(staged, *applied));
    // A refusal (no room to keep what is retained) may be mended: what has come is not fetched
    // again.
    if (!absl::IsFailedPrecondition(applied.status())) membership->DiscardStaged(buffer->id());
    done(applied.status());
  };
  const absl::Status refused =
      StartApply(*membership, *buffer, apply, ThenHandApply(staged.staged_bytes, finish)).status();
  if (!refused.ok()) return finish(refused);
  if (*cancelled) membership->CancelUpdate(buffer->id());
}

// `done` runs on th-callback; not when this refuses.
absl::Status StartStagedUpdate(const std::shared_ptr<SessionDriver>& membership,
                               const BufferPtr& buffer, VersionSelector version,
                               UpdateOptions options, CancelledFlag cancelled, Done done) {
  TH_RETURN_IF_ERROR(CheckNoSnapshot(*buffer));
  StageOptions stage{.floor = options.floor,
                     .timeout = options.timeout,
                     .when_seeding = options.when_seeding,
                     .on_progress = std::exchange(options.on_progress, nullptr)};
  const auto go_on = [membership, buffer, options, cancelled = std::move(cancelled),
                      done = std::move(done)](absl::StatusOr<UpdateResult> staged) {
    if (staged.ok()) staged->beside = false;  // its caller waits
    if (!staged.ok() || !staged->moved()) return done(std::move(staged));
    ApplyStaged(membership, buffer, *std::move(staged), options, cancelled, done);
  };
  return StartStage(*membership, *buffer, std::move(version), stage,
                    ThenHandStage(buffer->layout()->bytes(), go_on))
      .status();
}

// Shared with the callback, which may come after the caller has given up.
struct Awaited {
  Signal finished;
  absl::StatusOr<UpdateResult> result = absl::UnknownError("not yet");
};

// Waits for `call`, an update, stage or apply of `buffer`, which ends soon when the calls of this
// thread are cancelled.
bool WaitToEnd(Call& call, SessionDriver& membership, const LocalBuffer& buffer,
               absl::Duration time) {
  const CancelHook end_if_cancelled([&] { membership.CancelUpdate(buffer.id()); });
  return call.Wait(time);
}

absl::StatusOr<UpdateResult> UpdateStaged(const std::shared_ptr<SessionDriver>& membership,
                                          const BufferPtr& buffer, VersionSelector version,
                                          const UpdateOptions& options) {
  const auto awaited = std::make_shared<Awaited>();
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  TH_RETURN_IF_ERROR(StartStagedUpdate(membership, buffer, std::move(version), options, cancelled,
                                       [awaited](absl::StatusOr<UpdateResult> result) {
                                         awaited->result = std::move(result);
                                         awaited->finished.Notify();
                                       }));
  const absl::Duration longest = options.timeout + LongestWait(options) + 2 * kCallGrace;
  const CancelHook end_if_cancelled([&] {
    *cancelled = true;
    membership->CancelUpdate(buffer->id());
  });
  if (!awaited->finished.Wait(longest)) return Unanswered("update");
  return std::move(awaited->result);
}

}  // namespace

// ---- update

absl::StatusOr<UpdateResult> WeightBuffer::Update(VersionSelector version, UpdateOptions options) {
  if (impl_ == nullptr) return NoBuffer();
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  TH_RETURN_IF_ERROR(impl_->membership->CanWait());
  TH_RETURN_IF_ERROR(CanHold(*impl_->buffer, options.form));
  if (impl_->membership->stages() && !options.in_place) {
    return UpdateStaged(impl_->membership, impl_->buffer, std::move(version), options);
  }
  TH_ASSIGN_OR_RETURN(const CallPtr call, StartUpdate(*impl_->membership, *impl_->buffer,
                                                      std::move(version), options, nullptr));
  const bool finished = WaitToEnd(*call, *impl_->membership, *impl_->buffer, LongestWait(options));
  Disable(*call);
  if (!finished) return Unanswered("update");
  return ComposeUpdateResult(*call);
}

void WeightBuffer::UpdateAsync(VersionSelector version, UpdateOptions options, Done done) {
  absl::Status refused = impl_ == nullptr ? NoBuffer() : impl_->guard.Check();
  if (!refused.ok()) return done(refused);  // there is no thread to run it on
  refused = CanHold(*impl_->buffer, options.form);
  if (!refused.ok()) {
    // Reported below.
  } else if (impl_->membership->stages() && !options.in_place) {
    refused = StartStagedUpdate(impl_->membership, impl_->buffer, std::move(version), options,
                                std::make_shared<std::atomic<bool>>(false), done);
  } else {
    refused = StartUpdate(*impl_->membership, *impl_->buffer, std::move(version), options,
                          ThenHandUpdate(done))
                  .status();
  }
  if (refused.ok()) return;
  impl_->membership->runtime().callbacks().Post([done, refused] { done(refused); });
}

// ---- stage and apply

absl::StatusOr<UpdateResult> WeightBuffer::Stage(VersionSelector version, StageOptions options) {
  if (impl_ == nullptr) return NoBuffer();
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  TH_RETURN_IF_ERROR(impl_->membership->CanWait());
  TH_ASSIGN_OR_RETURN(const CallPtr call, StartStage(*impl_->membership, *impl_->buffer,
                                                     std::move(version), options, nullptr));
  const bool finished = WaitToEnd(*call, *impl_->membership, *impl_->buffer, options.timeout);
  Disable(*call);
  if (!finished) return Unanswered("stage");
  return ComposeStageResult(*call, bytes());
}

void WeightBuffer::StageAsync(VersionSelector version, StageOptions options, Done done) {
  absl::Status refused = impl_ == nullptr ? NoBuffer() : impl_->guard.Check();
  if (!refused.ok()) return done(refused);  // there is no thread to run it on
  refused = StartStage(*impl_->membership, *impl_->buffer, std::move(version), options,
                       ThenHandStage(bytes(), done))
                .status();
  if (refused.ok()) return;
  impl_->membership->runtime().callbacks().Post([done, refused] { done(refused); });
}

absl::StatusOr<UpdateResult> WeightBuffer::Apply(ApplyOptions options) {
  if (impl_ == nullptr) return NoBuffer();
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  TH_RETURN_IF_ERROR(impl_->membership->CanWait());
  TH_ASSIGN_OR_RETURN(const CallPtr call,
                      StartApply(*impl_->membership, *impl_->buffer, options, nullptr));
  if (!WaitToEnd(*call, *impl_->membership, *impl_->buffer, LongestWait(options))) {
    return Unanswered("apply");
  }
  return ComposeApplyResult(*call, bytes());
}

void WeightBuffer::ApplyAsync(ApplyOptions options, Done done) {
  absl::Status refused = impl_ == nullptr ? NoBuffer() : impl_->guard.Check();
  if (!refused.ok()) return done(refused);  // there is no thread to run it on
  refused = StartApply(*impl_->membership, *impl_->buffer, options, ThenHandApply(bytes(), done))
                .status();
  if (refused.ok()) return;
  impl_->membership->runtime().callbacks().Post([done, refused] { done(refused); });
}

void WeightBuffer::DiscardStaged() {
  if (impl_ == nullptr || impl_->guard.forked()) return;
  impl_->membership->DiscardStaged(impl_->buffer->id());
}

VersionInfo WeightBuffer::staged() const {
  if (impl_ == nullptr || impl_->guard.forked()) return {};
  return impl_->membership->staged_version(impl_->buffer->id());
}

}  // namespace th
