// Client::Receive: a buffer that keeps nothing, its one update, and the caller's thread that takes
// what passes through the ring.
#include "th/client/receive.h"

#include <algorithm>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/client/cancel_hook.h"
#include "th/client/client.h"
#include "th/client/client_state.h"
#include "th/client/receive_plan.h"
#include "th/client/shard_search.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/segment_ring.h"

namespace th {
namespace {

absl::Status Validate(const ReceiveOptions& options, const TakeSlice& take) {
  TH_RETURN_IF_ERROR(ValidateName("form", options.form));
  if (!options.group.empty()) TH_RETURN_IF_ERROR(ValidateName("group", options.group));
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("the timeout has to be positive");
  }
  if (take == nullptr) return absl::InvalidArgumentError("nobody takes what is received");
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<SegmentRing>> MakeRing(std::shared_ptr<const ShardLayout> layout,
                                                      const ReceivePlan& plan) {
  const uint64_t bytes = std::max<uint64_t>(plan.ring_bytes(), 1);
  std::shared_ptr<char> memory(new (std::nothrow) char[bytes], std::default_delete<char[]>());
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system has no ", bytes, " bytes of memory for the ring"));
  }
  return std::make_shared<SegmentRing>(std::move(layout), plan.wanted(), plan.slots(),
                                       std::move(memory));
}

// One receive from its buffer's registration to its end, on the caller's thread.
class StreamReader {
 public:
  StreamReader(ReceivePlan plan, std::shared_ptr<const ShardLayout> layout,
               std::shared_ptr<SegmentRing> ring, absl::Time deadline)
      : plan_(std::move(plan)),
        layout_(std::move(layout)),
        ring_(std::move(ring)),
        deadline_(deadline) {}

  absl::StatusOr<ReceiveResult> Run(SessionDriver& membership, LocalBuffer& buffer,
                                    VersionSelector version, const TakeSlice& take);

 private:
  absl::Status StartUpdate(SessionDriver& membership, LocalBuffer& buffer, VersionSelector version);
  absl::Duration left() const { return LeftUntil(deadline_); }
  // The bytes of the next segment; null: it does not come, and the call says why.
  const char* Await() { return ring_->Await(left() + kCallGrace); }
  // OK too when the stream has ended before all was taken: the call says why.
  absl::Status TakeAll(const TakeSlice& take);
  absl::Status TakeOne(const ReceivePlan::Slice& slice, const char* segment, const TakeSlice& take);
  absl::StatusOr<ReceiveResult> Result();
  std::string Taken() const;

  ReceivePlan plan_;
  const std::shared_ptr<const ShardLayout> layout_;
  const std::shared_ptr<SegmentRing> ring_;  // shared with the fill and with the call's end
  const absl::Time deadline_;
  const std::shared_ptr<Call> call_ = std::make_shared<Call>();
  bool took_all_ = false;
  uint64_t slices_ = 0;
  uint64_t bytes_ = 0;
  uint64_t tensors_ = 0;  // of which the last byte was taken
  ReceivePlan::Slice last_;
};

absl::Status StreamReader::StartUpdate(SessionDriver& membership, LocalBuffer& buffer,
                                       VersionSelector version) {
  call_->buffer = buffer.id();
  call_->then = [ring = ring_](Call& call) {
    ring->End(call.done.status.ok() && call.done.outcome == UpdateOutcome::kMoved);
  };
  UpdateRequest request{.selector = std::move(version),
                        .timeout = std::max(left(), absl::Milliseconds(1))};
  return membership.Start(call_, [&](CallId id) {
    return event::Update{id, buffer.id(), std::move(request)};
  });
}

absl::Status StreamReader::TakeOne(const ReceivePlan::Slice& slice, const char* segment,
                                   const TakeSlice& take) {
  const ReceivedSlice handed{.tensor = layout_->tensors()[slice.tensor],
                             .offset = slice.offset,
                             .bytes = {segment + (segment == nullptr ? 0 : slice.segment_offset),
                                       static_cast<size_t>(slice.bytes)}};
  TH_RETURN_IF_ERROR(take(handed));
  ++slices_;
  bytes_ += slice.bytes;
  tensors_ += handed.last() ? 1 : 0;
  last_ = slice;
  return absl::OkStatus();
}

absl::Status StreamReader::TakeAll(const TakeSlice& take) {
  // Nothing, not even a tensor without bytes, is taken of a version that does not come.
  if (plan_.wanted().empty()) {
    if (!call_->Wait(left()) || !call_->done.status.ok()) return absl::OkStatus();
    if (call_->done.outcome != UpdateOutcome::kMoved) return absl::OkStatus();
  } else if (Await() == nullptr) {
    return absl::OkStatus();
  }
  // Slices come in the order of segments, and every wanted segment has one: the ring's next is this
  // slice's or the one before.
  while (const std::optional<ReceivePlan::Slice> slice = plan_.Next()) {
    const char* segment = nullptr;
    if (slice->bytes > 0) {
      if (ring_->next() < slice->segment) ring_->HandOn();
      segment = Await();
      if (segment == nullptr) return absl::OkStatus();
    }
    TH_RETURN_IF_ERROR(TakeOne(*slice, segment, take));
  }
  ring_->HandOn();
  took_all_ = true;
  return absl::OkStatus();
}

std::string StreamReader::Taken() const {
  if (slices_ == 0) return "nothing was taken yet";
  return absl::StrCat(tensors_, " of ", plan_.tensors(), " tensors (", bytes_,
                      " bytes) were taken, the last one ", layout_->tensors()[last_.tensor].name,
                      " up to byte ", last_.offset + last_.bytes);
}

absl::StatusOr<ReceiveResult> StreamReader::Result() {
  if (!call_->Wait(left())) {
    return absl::InternalError(absl::StrCat("the receive did not end in its time; ", Taken()));
  }
  const OperationDone& done = call_->done;
  if (!done.status.ok()) {
    return Reworded(done.status, absl::StrCat(done.status.message(), "; ", Taken()));
  }
  const FillStatus& fill = call_->fill;
  ReceiveResult result{.outcome = done.outcome,
                       .reason = done.not_available,
                       .version = done.version,
                       .tensors = tensors_,
                       .slices = slices_,
                       .bytes = bytes_,
                       .bytes_received = fill.bytes_held,
                       .ring_bytes = plan_.ring_bytes(),
                       .peak_extra_bytes = fill.peak_extra_bytes,
                       .reroutes = fill.reroutes,
                       .reread_bytes = fill.reread_bytes,
                       .corrupt_segments = fill.corrupt_segments};
  if (result.received() && !took_all_) {
    return absl::InternalError(
        absl::StrCat("a segment of a complete receive is missing; ", Taken()));
  }
  std::set<std::string> sources;
  for (const FillSourceReport& source : fill.sources) {
    if (source.bytes > 0) sources.insert(source.name.ToString());
  }
  result.sources.assign(sources.begin(), sources.end());
  return result;
}

absl::StatusOr<ReceiveResult> StreamReader::Run(SessionDriver& membership, LocalBuffer& buffer,
                                                VersionSelector version, const TakeSlice& take) {
  TH_RETURN_IF_ERROR(StartUpdate(membership, buffer, std::move(version)));
  const CancelHook end_if_cancelled([&] { membership.CancelUpdate(buffer.id()); });
  const absl::Status took = TakeAll(take);
  if (!took.ok() && CallsAreCancelled()) {
    return Reworded(took, absl::StrCat(took.message(), "; ", Taken()));
  }
  TH_RETURN_IF_ERROR(took);
  return Result();
}

// The preparation of a receive, before it can take part in its group's operation.
struct Preparation {
  std::shared_ptr<const ShardLayout> layout;
  ReceivePlan plan;
  std::shared_ptr<SegmentRing> ring;
};

absl::StatusOr<Preparation> PlanOf(std::shared_ptr<const ShardLayout> layout,
                                   const ReceiveOptions& options) {
  TH_ASSIGN_OR_RETURN(ReceivePlan plan,
                      ReceivePlan::Make(layout, options.tensors, options.limit_bytes));
  TH_ASSIGN_OR_RETURN(std::shared_ptr<SegmentRing> ring, MakeRing(layout, plan));
  return Preparation{std::move(layout), std::move(plan), std::move(ring)};
}

}  // namespace

absl::StatusOr<ReceiveResult> Client::Receive(VersionSelector version, ReceiveOptions options,
                                              const TakeSlice& take) {
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  SessionDriver& membership = *impl_->membership;
  TH_RETURN_IF_ERROR(membership.CanWait());
  // Before anything that can fail: the other ranks count this receive as well.
  const StreamTicket ticket = membership.BeginStream();
  const auto fail = [&](const absl::Status& why) {
    membership.FailStream(ticket, options.form, why);
    return why;
  };
  if (absl::Status valid = Validate(options, take); !valid.ok()) return fail(valid);
  const absl::Time deadline = MonotonicNow() + options.timeout;
  auto shard = impl_->FindShard(
      version, {options.form, options.layout, options.group, options.rank}, deadline);
  if (!shard.ok()) return fail(shard.status());
  if (shard->not_available != NotAvailableReason::kNone) {
    (void)fail(NothingFound());
    return ReceiveResult{.outcome = UpdateOutcome::kNotAvailable, .reason = shard->not_available};
  }
  auto prepared = PlanOf(std::move(shard->layout), options);
  if (!prepared.ok()) return fail(prepared.status());
  auto& [layout, plan, ring] = *prepared;
  const auto registered = membership.RegisterStream(
      ticket, options.form, layout, {.ring = ring, .mapping = nullptr}, deadline - MonotonicNow());
  if (!registered.ok()) return fail(registered.status());
  const std::shared_ptr<LocalBuffer>& buffer = *registered;
  StreamReader reader(std::move(plan), layout, ring, deadline);
  absl::StatusOr<ReceiveResult> result = reader.Run(membership, *buffer, std::move(version), take);
  membership.EndStream(*buffer,
                       result.ok() ? absl::CancelledError("the receive is over") : result.status());
  return result;
}

}  // namespace th
