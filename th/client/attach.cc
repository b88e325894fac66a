// Client::Attach: a buffer that receives nothing, and its one update, which maps a holder's shard.
#include "th/client/attach.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/client/cancel_hook.h"
#include "th/client/client.h"
#include "th/client/client_state.h"
#include "th/client/shard_search.h"
#include "th/transfer/mapping_fill.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

absl::Status Validate(const AttachOptions& options) {
  TH_RETURN_IF_ERROR(ValidateName("form", options.form));
  if (!options.group.empty()) TH_RETURN_IF_ERROR(ValidateName("group", options.group));
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("the timeout has to be positive");
  }
  return absl::OkStatus();
}

// The one update of `buffer`.
absl::StatusOr<OperationDone> RunUpdate(SessionDriver& membership, LocalBuffer& buffer,
                                        VersionSelector version, absl::Time deadline) {
  const auto call = std::make_shared<Call>();
  call->buffer = buffer.id();
  const absl::Duration left = std::max(deadline - MonotonicNow(), absl::Milliseconds(1));
  UpdateRequest request{.selector = std::move(version), .timeout = left};
  TH_RETURN_IF_ERROR(membership.Start(call, [&](CallId id) {
    return event::Update{id, buffer.id(), std::move(request)};
  }));
  const CancelHook end_if_cancelled([&] { membership.CancelUpdate(buffer.id()); });
  if (!call->Wait(left)) return absl::InternalError("the attach did not end in its time");
  TH_RETURN_IF_ERROR(call->done.status);
  return std::move(call->done);
}

// Makes the result of the shard that the fill has put into `target`.
absl::StatusOr<AttachResult> ResultOf(const OperationDone& done,
                                      std::shared_ptr<const ShardLayout> layout,
                                      MappingTarget& target) {
  AttachResult result{.outcome = done.outcome, .reason = done.not_available, .version = {}};
  if (done.outcome != UpdateOutcome::kMoved) return result;
  MappedContent content = target.Take();
  if (content.shard == nullptr) {
    return absl::InternalError("nothing was mapped of a version that has been attached");
  }
  result.version.emplace(AttachedVersion::Parts{.version = done.version,
                                                .layout = std::move(layout),
                                                .shard = std::move(content.shard),
                                                .checksums = std::move(content.checksums),
                                                .source = content.source.ToString()});
  return result;
}

}  // namespace

absl::StatusOr<AttachResult> Client::Attach(VersionSelector version, AttachOptions options) {
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  SessionDriver& membership = *impl_->membership;
  TH_RETURN_IF_ERROR(membership.CanWait());
  // Before anything that can fail: the other ranks count this as well.
  const StreamTicket ticket = membership.BeginStream();
  const auto fail = [&](const absl::Status& why) {
    membership.FailStream(ticket, options.form, why);
    return why;
  };
  if (absl::Status valid = Validate(options); !valid.ok()) return fail(valid);
  const absl::Time deadline = MonotonicNow() + options.timeout;
  const auto shard = impl_->FindShard(
      version, {options.form, options.layout, options.group, options.rank}, deadline);
  if (!shard.ok()) return fail(shard.status());
  if (shard->not_available != NotAvailableReason::kNone) {
    (void)fail(NothingFound());
    return AttachResult{
        .outcome = UpdateOutcome::kNotAvailable, .reason = shard->not_available, .version = {}};
  }
  const auto target = std::make_shared<MappingTarget>();
  const auto registered =
      membership.RegisterStream(ticket, options.form, shard->layout,
                                {.ring = nullptr, .mapping = target}, deadline - MonotonicNow());
  if (!registered.ok()) return fail(registered.status());
  const auto done = RunUpdate(membership, **registered, std::move(version), deadline);
  membership.EndStream(**registered,
                       done.ok() ? absl::CancelledError("the attach is over") : done.status());
  TH_RETURN_IF_ERROR(done.status());
  TH_ASSIGN_OR_RETURN(AttachResult result, ResultOf(*done, shard->layout, *target));
  if (options.verify_bytes && result.attached()) TH_RETURN_IF_ERROR(result.version->Verify());
  return result;
}

}  // namespace th
