#include "th/worker_session/unanswered_commands.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/worker_session/operation.h"

namespace th::session {
namespace {

constexpr size_t kMaxIdempotencyKeyBytes = 128;

absl::Status CanCommand(const State& state, const RunCommand& command) {
  TH_RETURN_IF_ERROR(state.CheckMembership());
  if (command.idempotency_key.empty() || command.idempotency_key.size() > kMaxIdempotencyKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("an idempotency key has 1 to ",
                                                   kMaxIdempotencyKeyBytes, " bytes, not ",
                                                   command.idempotency_key.size()));
  }
  if (state.commands.size() >= kMaxPendingCommands) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxPendingCommands, " commands wait for their answers"));
  }
  return absl::OkStatus();
}

void Answer(State& state, const PendingCommand& pending, CommandFinished finished) {
  if (!finished.status.ok()) {
    const bool late = finished.status.code() == absl::StatusCode::kDeadlineExceeded;
    finished.status = RefuseVerb(
        state, late ? ErrorCode::kCommandDeadline : ErrorCode::kCommandFailed, finished.status);
  }
  state.Emit(CommandDone{pending.call, std::move(finished)});
}

}  // namespace

absl::Status BeginCommand(State& state, CallId call, RunCommand command, absl::Time now) {
  const absl::Status can = CanCommand(state, command);
  if (!can.ok()) return RefuseVerb(state, ErrorCode::kCommandFailed, can);
  state.commands.push_back({call, command, now + kCommandTimeout});
  state.Send(std::move(command), now);
  return absl::OkStatus();
}

void HandleCommandFinished(State& state, const CommandFinished& message) {
  state.membership.lineage = std::max(state.membership.lineage, message.lineage);
  state.commands.remove_if([&](const PendingCommand& pending) {
    if (pending.command.idempotency_key != message.idempotency_key) return false;
    Answer(state, pending, message);
    return true;
  });
}

void ResendCommands(State& state, absl::Time now) {
  for (const PendingCommand& pending : state.commands) state.Send(pending.command, now);
}

void TickCommands(State& state, absl::Time now) {
  state.commands.remove_if([&](const PendingCommand& pending) {
    if (now < pending.deadline) return false;
    Answer(state, pending,
           {.idempotency_key = pending.command.idempotency_key,
            .status = absl::DeadlineExceededError("the server did not answer in time")});
    return true;
  });
}

absl::Time NextCommandDeadline(const State& state) {
  absl::Time next = absl::InfiniteFuture();
  for (const PendingCommand& pending : state.commands) next = std::min(next, pending.deadline);
  return next;
}

void EndCommands(State& state, const absl::Status& why) {
  for (const PendingCommand& pending : std::exchange(state.commands, {})) {
    Answer(state, pending, {.idempotency_key = pending.command.idempotency_key, .status = why});
  }
}

}  // namespace th::session
