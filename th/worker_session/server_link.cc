#include "th/worker_session/server_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/protocol/lease.h"
#include "th/status/status_macros.h"
#include "th/worker_session/admissions.h"
#include "th/worker_session/announcement.h"
#include "th/worker_session/buffers.h"
#include "th/worker_session/even_spread.h"
#include "th/worker_session/operation.h"
#include "th/worker_session/operations.h"
#include "th/worker_session/server_silence.h"
#include "th/worker_session/unanswered_commands.h"
#include "tools/mutation/mutation.h"

namespace th::session {
namespace {

// The longest that a server can make a refused worker wait.
constexpr absl::Duration kMaxRetryAfter = absl::Seconds(30);
// 2^this times reconnect_first is beyond any sensible reconnect_max.
constexpr uint32_t kMaxDoublings = 20;

void Open(State& state, absl::Time now) {
  state.link.state = LinkState::kOpening;
  state.link.answer_deadline = now + kJoinAnswerTimeout;
  state.link.retry_at = absl::InfiniteFuture();
  state.Emit(OpenStream{});
}

absl::Duration NextBackoff(const State& state) {
  const uint32_t doublings = std::min(state.link.failed_attempts, kMaxDoublings);
  return std::min(state.limits.reconnect_first * static_cast<double>(uint64_t{1} << doublings),
                  state.limits.reconnect_max);
}

void BackOff(State& state, const absl::Status& why, absl::Duration at_least, absl::Time now) {
  Link& link = state.link;
  link.broken_since = std::min(link.broken_since, now);
  link.last_failure = why;
  link.retry_at = now + std::max(NextBackoff(state), at_least);
  link.answer_deadline = absl::InfiniteFuture();
  link.state = LinkState::kBackoff;
  ++link.failed_attempts;
  ForgetSent(state);
}

void GiveUpAttempt(State& state, const absl::Status& why, absl::Time now) {
  state.Emit(CloseStream{});
  BackOff(state, why, absl::ZeroDuration(), now);
}

void GiveUpJoin(State& state, absl::Time now) {
  absl::Status why = absl::UnavailableError(absl::StrCat(
      "no server answered within ", absl::FormatDuration(state.limits.join_timeout), ", last: ",
      std::string(state.link.last_failure.message()), "; is the address right, does it run?"));
  EndSession(state, std::move(why), ErrorCode::kServerUnreachable, now);
}

void ChangeGroup(State& state, GroupGeneration generation, const absl::Status& why,
                 absl::Time now) {
  state.membership.group_generation = generation;
  state.freed.Clear();  // no number of this generation has been used
  for (auto& [id, buffer] : state.buffers) {
    OrphanOperations(buffer, why, ErrorCode::kGroupChanged);
    Pump(state, buffer, now);
  }
  // A buffer may have drained for an operation that the server is never told of now.
  for (auto& [id, buffer] : state.buffers) Reannounce(state, buffer, now);
}

void Adopt(State& state, const Joined& message) {
  Membership& membership = state.membership;
  // Servers with copies of one state may share an epoch's number, never its id.
  const bool other_server =
      message.epoch != membership.epoch || message.epoch_id != membership.epoch_id;
  if (other_server) {
    NoteOtherServer(state);
    RefuseHeldAdmissions(state, absl::UnavailableError(
                                    "the epoch of the reader's capability ended while it waited"));
  }
  membership.epoch = message.epoch;
  membership.worker = message.worker;
  membership.lineage = std::max(membership.lineage, message.lineage);
  membership.key = message.key;
  membership.cluster = message.cluster;
  membership.epoch_id = message.epoch_id;
  membership.secret = message.secret;
  membership.lease = std::clamp(message.lease, kMinLease, kMaxLease);
  membership.progress_interval =
      std::clamp(message.progress_interval, kMinProgressInterval, kMaxProgressInterval);
}

// UNAVAILABLE when the server's epoch is older than this worker's: the server was deposed, or its
// state was lost or is an older copy. The worker leaves the answer and joins again; its claim
// raises the server's epoch.
absl::Status CheckServer(const State& state, Epoch epoch) {
  const bool knows_less = state.link.ever_joined && epoch < state.membership.epoch;
  if (!knows_less) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("a server of the older epoch ", epoch.value,
                                             " answered; this worker was in ",
                                             state.membership.epoch.value));
}

// Long enough to be a notice still, wherever it is between the deadline and the tick that ends it.
absl::Duration NoticeLeft(const State& state, absl::Time now) {
  return std::max(state.leaves_at - now, absl::Milliseconds(1));
}

// Before anything is registered: a name may have been freed and taken again.
void SendWhatTheJoinDidNot(State& state, absl::Time now) {
  for (const BufferId id : std::exchange(state.link.unregistered_since, {})) {
    state.Send(UnregisterBuffer{id}, now);
  }
  if (std::exchange(state.link.notice_since, false)) {
    state.Send(Preempt{NoticeLeft(state, now)}, now);
  }
}

// From 0 to `interval`, evenly among workers whose ids follow each other.
int64_t PhaseOf(WorkerId worker, int64_t interval) {
  const double fraction = static_cast<double>(EvenSpread(worker.value)) / 4294967296.0;
  return static_cast<int64_t>(static_cast<double>(interval) * fraction);
}

// A worker speaks at moments of its own, `interval` apart, the last one that keeps its silence
// within `interval`. Workers that have done something together, a join or an update, would else
// speak together from then on, and what else a server has to answer would wait behind them.
absl::Time HeartbeatAt(const State& state) {
  const int64_t interval = absl::ToInt64Nanoseconds(HeartbeatInterval(state.membership.lease));
  const absl::Time latest = state.link.last_sent + absl::Nanoseconds(interval);
  const int64_t moment = absl::ToUnixNanos(latest) - PhaseOf(state.membership.worker, interval);
  const int64_t since = moment % interval;
  return latest - absl::Nanoseconds(since < 0 ? since + interval : since);
}

}  // namespace

void StartLink(State& state, absl::Time now) {
  if (state.link.state != LinkState::kIdle) return;
  state.link.join_deadline = now + state.limits.join_timeout;
  Open(state, now);
}

void NoteStreamOpen(State& state, absl::Time now) {
  if (state.link.state != LinkState::kOpening) return;
  state.link.state = LinkState::kJoining;
  state.link.answer_deadline = now + kJoinAnswerTimeout;
  state.link.last_sent = now;
  state.link.unregistered_since.clear();
  state.link.notice_since = false;
  for (auto& [id, buffer] : state.buffers) {
    buffer.announced = state.link.ever_joined;
    buffer.announce_again = false;
  }
  JoinRequest join = JoinRequestOf(state);
  join.leaves_in = NoticeLeft(state, now);
  state.Emit(SendToServer{std::move(join)});
}

void NoteStreamClosed(State& state, const absl::Status& why, absl::Time now) {
  const LinkState link = state.link.state;
  if (link != LinkState::kOpening && link != LinkState::kJoining && link != LinkState::kJoined) {
    return;
  }
  BackOff(state, why.ok() ? absl::UnavailableError("the server closed the stream") : why,
          absl::ZeroDuration(), now);
}

void HandleJoined(State& state, const Joined& message, absl::Time now) {
  if (state.link.state != LinkState::kJoining) return;
  const ProtocolHello own{kMinProtocolVersion, kProtocolVersion, 0, state.options.software};
  const auto version = AgreeOnVersion(own, message.hello);
  if (!version.ok()) return EndSession(state, version.status(), ErrorCode::kJoinRefused, now);
  const absl::Status check = CheckServer(state, message.epoch);
  if (!check.ok()) return GiveUpAttempt(state, check, now);
  const bool first = !state.link.ever_joined;
  const bool group_changed =
      !first && message.group_generation != state.membership.group_generation;
  Adopt(state, message);
  state.link.state = LinkState::kJoined;
  state.link.ever_joined = true;
  state.link.failed_attempts = 0;
  state.link.broken_since = absl::InfiniteFuture();
  state.link.answer_deadline = absl::InfiniteFuture();
  state.link.last_sent = now;
  state.Emit(SessionJoined{first, message.epoch});
  if (group_changed) {
    ChangeGroup(
        state, message.group_generation,
        absl::AbortedError("the group has begun to count its operations anew while this rank was "
                           "away; call again"),
        now);
  }
  state.membership.group_generation = message.group_generation;
  SendWhatTheJoinDidNot(state, now);
  AnnounceNewBuffers(state, now);
  ResendCommands(state, now);
}

void HandleRefused(State& state, const Refused& message, absl::Time now) {
  const LinkState link = state.link.state;
  if (link != LinkState::kJoining && link != LinkState::kJoined) return;
  const absl::Status why =
      message.status.ok() ? absl::UnavailableError("the server refused it") : message.status;
  if (message.retry_after != absl::InfiniteDuration()) {
    state.Emit(CloseStream{});
    BackOff(state, why, std::min(message.retry_after, kMaxRetryAfter), now);
    return;
  }
  const bool names_epoch = message.epoch != Epoch();  // a refusal may leave it out
  const absl::Status check = names_epoch ? CheckServer(state, message.epoch) : absl::OkStatus();
  if (TH_MUTATE(kBelieveAnOlderServer, !check.ok(), false)) {
    return GiveUpAttempt(state, check, now);
  }
  if (!state.link.ever_joined) return EndSession(state, why, ErrorCode::kJoinRefused, now);
  EndSession(state, absl::Status(why.code(), WithJoinAgain(std::string(why.message()))),
             ErrorCode::kMembershipEnded, now);
}

void HandleGroupChanged(State& state, const GroupChanged& message, absl::Time now) {
  if (!state.joined() || message.group_generation <= state.membership.group_generation) return;
  ChangeGroup(state, message.group_generation,
              absl::AbortedError(absl::StrCat(
                  "the group counts its operations anew, for rank ", message.rank.ToString(),
                  " was replaced, has registered a buffer again or lags behind; call again")),
              now);
}

void EndSession(State& state, absl::Status status, ErrorCode code, absl::Time now) {
  if (state.ending()) return;
  const absl::Status ended = status.ok() ? absl::CancelledError("the worker left") : status;
  if (state.link.state != LinkState::kIdle && state.link.state != LinkState::kBackoff) {
    state.Emit(CloseStream{});
  }
  state.link.state = LinkState::kEnding;
  state.end_status = status.ok() ? status : RefuseVerb(state, code, status);
  RefuseHeldAdmissions(state, ended);
  EndCommands(state, ended);
  for (auto& [id, buffer] : state.buffers) {
    OrphanOperations(buffer, ended, code);
    buffer.seal_by = now;
    // Refused where there is nothing to take back.
    (void)buffer.contract.Unpublish(now, std::max(state.finish_by - now, absl::ZeroDuration()));
    Pump(state, buffer, now);
  }
  FinishEnding(state, now);
}

void LeaveSession(State& state, absl::Duration grace, absl::Time now) {
  if (state.ending()) return;
  state.Send(Leave{}, now);
  if (!state.transfers.empty()) {
    state.finish_by = now + std::min(grace, state.limits.leave_grace);
    FinishReaders finish;
    finish.transfers.reserve(state.transfers.size());
    for (const auto& [transfer, buffer] : state.transfers) finish.transfers.push_back(transfer);
    state.Emit(std::move(finish));
  }
  EndSession(state, absl::OkStatus(), ErrorCode::kSessionEnded, now);
}

absl::Status GiveNotice(State& state, absl::Duration notice, absl::Time now) {
  TH_RETURN_IF_ERROR(state.CheckMembership());
  if (notice <= absl::ZeroDuration() || notice > kMaxNotice) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a notice of ", absl::FormatDuration(notice), ": the deadline has to lie in the future, ",
        absl::FormatDuration(kMaxNotice), " ahead at most; to leave now, leave"));
  }
  if (now + notice >= state.leaves_at) return absl::OkStatus();
  state.leaves_at = now + notice;
  state.link.notice_since = true;
  state.Send(Preempt{notice}, now);
  return absl::OkStatus();
}

void FinishEnding(State& state, absl::Time now) {
  if (state.link.state != LinkState::kEnding) return;
  state.readers_had_time |= now >= state.finish_by;
  if (!state.transfers.empty() && !state.readers_had_time) return;
  for (const auto& [id, buffer] : state.buffers) {
    if (HasPending(buffer)) return;
  }
  state.link.state = LinkState::kEnded;
  state.Emit(SessionEnded{state.end_status});
}

void TickLink(State& state, absl::Time now) {
  const Link& link = state.link;
  if (state.ending() || link.state == LinkState::kIdle) return;
  if (now >= state.leaves_at) return LeaveSession(state, state.limits.leave_grace, now);
  if (!link.ever_joined && now >= link.join_deadline) return GiveUpJoin(state, now);
  if (link.state == LinkState::kBackoff && now >= link.retry_at) return Open(state, now);
  if (now >= link.answer_deadline) {
    return GiveUpAttempt(state, absl::DeadlineExceededError("the server did not answer"), now);
  }
  if (IsServerSilent(state, now)) {
    // Calls that wait for the server have waited since then, not since now.
    state.link.broken_since = *SilentSince(state);
    return GiveUpAttempt(
        state, absl::UnavailableError("the server has gone silent: no answer came to a question"),
        now);
  }
  AskSilentServer(state, now);
  if (state.joined() && now >= HeartbeatAt(state)) state.Send(Heartbeat{}, now);
}

absl::Time NextLinkDeadline(const State& state) {
  const Link& link = state.link;
  const bool readers_finish = !state.transfers.empty() && !state.readers_had_time;
  if (link.state == LinkState::kEnding && readers_finish) return state.finish_by;
  if (state.ending() || link.state == LinkState::kIdle) return absl::InfiniteFuture();
  absl::Time next = std::min(link.answer_deadline, state.leaves_at);
  if (!link.ever_joined) next = std::min(next, link.join_deadline);
  if (link.state == LinkState::kBackoff) next = std::min(next, link.retry_at);
  if (state.joined()) next = std::min({next, HeartbeatAt(state), SilenceDeadline(state)});
  return next;
}

}  // namespace th::session
