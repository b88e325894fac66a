#include "th/worker_session/buffers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "th/protocol/messages.h"
#include "th/status/status_macros.h"
#include "th/worker_session/admissions.h"
#include "th/worker_session/announcement.h"
#include "th/worker_session/operation.h"
#include "th/worker_session/operations.h"
#include "th/worker_session/update.h"
#include "tools/mutation/mutation.h"

namespace th::session {
namespace {

absl::Status CanAdd(const State& state, absl::string_view name, absl::string_view form,
                    const ShardLayout* layout) {
  TH_RETURN_IF_ERROR(state.CheckMembership());
  TH_RETURN_IF_ERROR(ValidateName("buffer", name));
  TH_RETURN_IF_ERROR(ValidateName("form", form));
  if (layout == nullptr) return absl::InvalidArgumentError("a buffer needs a layout");
  if (state.buffers.size() >= state.limits.max_buffers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a worker has at most ", state.limits.max_buffers, " buffers"));
  }
  for (const auto& [id, buffer] : state.buffers) {
    if (buffer.name == name && buffer.form == form) {
      return absl::InvalidArgumentError(
          absl::StrCat("buffer ", name, " (form ", form, ") is registered already"));
    }
  }
  return absl::OkStatus();
}

Buffer& NewBuffer(State& state, std::string name, std::string form,
                  std::shared_ptr<const ShardLayout> layout) {
  const BufferId id = state.next_buffer;
  state.next_buffer = id.Next();
  Buffer& buffer = state.buffers[id];
  buffer.id = id;
  buffer.name = std::move(name);
  buffer.form = std::move(form);
  buffer.layout = std::move(layout);
  return buffer;
}

// Before it is announced: what a buffer of its name was told must not be told to it.
void CountApart(const State& state, Buffer& buffer) {
  const bool again = TH_MUTATE(kForgetWhatWasFreed, state.freed.Contains(buffer.name), false);
  if (again) buffer.counts_after = state.membership.group_generation;
}

void Register(State& state, Buffer& buffer, absl::Time now) {
  if (!state.joined() || buffer.announced) return;
  buffer.announced = true;
  state.Send(RegisterBuffer{AnnouncementOf(buffer)}, now);
}

void Refuse(State& state, Buffer& buffer, const absl::Status& why, absl::Time now) {
  buffer.registered = false;
  buffer.refused = why;
  for (Operation& operation : buffer.operations) {
    Conclude(operation, {.status = why, .server_knows = true});
  }
  if (!IsTemporary(buffer.role)) state.Emit(BufferReady{buffer.id, why});
  Pump(state, buffer, now);
}

std::string DescribeUpdate(const Buffer& buffer, const UpdateOperation& update) {
  std::string text;
  if (update.resolved.has_value()) absl::StrAppend(&text, " ", update.resolved->label.text());
  absl::StrAppend(&text, ": ", UpdatePhaseName(update.phase));
  if (update.fill_began) {
    absl::StrAppend(&text, ", ", buffer.held.count(), " of ",
                    buffer.layout->segment_count() - buffer.unwanted.count(), " segments from ",
                    update.sources.size(), " sources");
  }
  return text;
}

}  // namespace

absl::StatusOr<BufferId> AddBuffer(State& state, std::string name, std::string form,
                                   std::shared_ptr<const ShardLayout> layout, absl::Time now) {
  TH_RETURN_IF_ERROR(CanAdd(state, name, form, layout.get()));
  Buffer& buffer = NewBuffer(state, std::move(name), std::move(form), std::move(layout));
  CountApart(state, buffer);
  state.ReportServing(buffer);
  Register(state, buffer, now);
  return buffer.id;
}

absl::StatusOr<BufferId> AddCopyBuffer(State& state, const Buffer& original, BufferRole role,
                                       std::string name, HostCopy part, absl::Time now) {
  TH_RETURN_IF_ERROR(CanAdd(state, name, original.form, original.layout.get()));
  Buffer& copy = NewBuffer(state, std::move(name), original.form, original.layout);
  copy.role = role;
  if (role == BufferRole::kStaged) copy.staged_for = original.name;
  CountApart(state, copy);
  state.host_copies[copy.id] = std::move(part);
  state.ReportServing(copy);
  Register(state, copy, now);
  return copy.id;
}

void AskForMemory(State& state, BufferId copy) {
  state.host_copies.at(copy).memory = CopyMemory::kAsked;
  const Buffer& buffer = *state.FindBuffer(copy);
  const bool staged = buffer.role == BufferRole::kStaged;
  state.Emit(AllocateOffload{copy, buffer.name, buffer.layout, staged});
}

absl::StatusOr<BufferId> AddStreamBuffer(State& state, std::string name, std::string form,
                                         std::shared_ptr<const ShardLayout> layout,
                                         const SegmentSet& wanted, absl::Time now) {
  TH_RETURN_IF_ERROR(CanAdd(state, name, form, layout.get()));
  Buffer& buffer = NewBuffer(state, std::move(name), std::move(form), std::move(layout));
  buffer.role = BufferRole::kStreaming;
  buffer.received_in = state.membership.group_generation;
  buffer.unwanted = wanted.Complement(buffer.layout->segment_count());
  state.ReportServing(buffer);
  Register(state, buffer, now);
  return buffer.id;
}

absl::Status RemoveBuffer(State& state, BufferId id, absl::Time now) {
  Buffer* buffer = state.FindBuffer(id);
  if (buffer == nullptr) return absl::InvalidArgumentError("no such buffer");
  for (Operation& operation : buffer->operations) {
    if (operation.detached) continue;
    // The caller may free the memory once it hears of the end: nothing may land in it by then.
    TH_MUTATE(kFillWhatIsFreed, StopFillOf(state, *buffer, operation), static_cast<void>(0));
    operation.verdict = Verdict{.status = absl::CancelledError("the buffer was unregistered")};
    End(state, *buffer, operation, now);
  }
  if (buffer->announced) {
    state.Send(UnregisterBuffer{id}, now);
    if (state.link.state == LinkState::kJoining) state.link.unregistered_since.push_back(id);
  }
  if (buffer->ready_reported && !HasNameOfItsOwn(buffer->role)) state.freed.Add(buffer->name);
  std::erase_if(state.transfers, [id](const auto& entry) { return entry.second == id; });
  state.host_copies.erase(id);
  state.buffers.erase(id);
  DecideHeldAdmissions(state, now);
  return absl::OkStatus();
}

absl::Status ResetBuffer(State& state, Buffer& buffer, absl::Time now) {
  absl::Status reset = HasPending(buffer)
                           ? absl::FailedPreconditionError("an operation is in progress")
                           : buffer.contract.Reset();
  if (!reset.ok()) return RefuseVerb(state, ErrorCode::kResetRefused, reset);
  ForgetVersion(buffer);
  buffer.held.Clear();
  SendOrAnnounce(state, buffer, BufferReset{buffer.id}, now);
  Pump(state, buffer, now);
  return absl::OkStatus();
}

absl::Status CanRebindBuffer(const State& state, const Buffer& buffer) {
  const absl::Status can = HasPending(buffer)
                               ? absl::FailedPreconditionError(absl::StrCat(
                                     "an operation is in progress: ", DescribeBuffer(buffer)))
                               : buffer.contract.CanRebind();
  return can.ok() ? can : RefuseVerb(state, ErrorCode::kResetRefused, can);
}

void AnnounceNewBuffers(State& state, absl::Time now) {
  for (auto& [id, buffer] : state.buffers) Register(state, buffer, now);
}

void HandleBufferRegistered(State& state, const BufferRegistered& message, absl::Time now) {
  Buffer* buffer = state.FindBuffer(message.buffer);
  if (buffer == nullptr || !state.joined()) return;
  if (!message.status.ok()) return Refuse(state, *buffer, message.status, now);
  if (buffer->registered) return;  // the answer to a repeated announcement
  buffer->registered = true;
  buffer->refused = absl::OkStatus();
  const bool reported = std::exchange(buffer->ready_reported, true);
  if (!reported && !IsTemporary(buffer->role))
    state.Emit(BufferReady{buffer->id, absl::OkStatus()});
  if (buffer->announce_again) Reannounce(state, *buffer, now);
  SendWhatFollowsTheStart(state, *buffer, now);
  Pump(state, *buffer, now);
}

void HandleLayoutWanted(State& state, const LayoutWanted& message, absl::Time now) {
  for (const auto& [id, buffer] : state.buffers) {
    if (buffer.layout->digest() != message.layout) continue;
    state.Send(LayoutUpload{*buffer.layout}, now);
    return;
  }
}

std::string DescribeBuffer(const Buffer& buffer) {
  std::string text;
  for (const Operation& operation : buffer.operations) {
    if (operation.detached) continue;
    absl::StrAppend(&text, OperationKindName(operation.kind()));
    if (WaitsForCopy(operation)) {
      absl::StrAppend(&text, IsOffloadingOffline(operation) ? " copying alone" : " copying");
    } else if (operation.kind() == OperationKind::kUnpublish) {
      absl::StrAppend(&text, HasBegunToDrain(operation) ? "" : " asked");
    } else if (operation.kind() == OperationKind::kUpdate) {
      absl::StrAppend(&text, DescribeUpdate(buffer, operation.update()));
    }
    absl::StrAppend(&text, "; ");
  }
  return absl::StrCat(text, "buffer ", buffer.contract.Describe());
}

}  // namespace th::session
