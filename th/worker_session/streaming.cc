#include "th/worker_session/streaming.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/protocol/messages.h"
#include "th/status/status_macros.h"
#include "th/worker_session/buffers.h"
#include "th/worker_session/operation.h"
#include "th/worker_session/operations.h"
#include "th/worker_session/update.h"

namespace th::session {
namespace {

// The layout of a rank that knows no shard to receive: the server takes no buffer without one.
std::shared_ptr<const ShardLayout> LayoutOfNothing() {
  absl::StatusOr<ShardLayout> layout = ShardLayout::Build({});
  if (!layout.ok()) return nullptr;
  return std::make_shared<const ShardLayout>(*std::move(layout));
}

// True when every rank has its shard.
bool Moved(const Buffer& buffer) {
  const auto& last = buffer.last_finished;
  return last.has_value() && last->status.ok() && last->outcome == UpdateOutcome::kMoved;
}

void Unkeep(State& state, size_t left, absl::Time now) {
  while (state.streams_kept.size() > left) {
    const BufferId oldest = state.streams_kept.front();
    state.streams_kept.pop_front();
    (void)RemoveBuffer(state, oldest, now);  // it is there
  }
}

void Keep(State& state, BufferId id, absl::Time now) {
  state.streams_kept.push_back(id);
  Unkeep(state, kMaxStreamsKept, now);
}

// Its one update ends with `why`, without ever having been asked for.
void FailUnstarted(Buffer& buffer, const absl::Status& why, absl::Time now) {
  StartOperation start;
  start.kind = OperationKind::kUpdate;
  Operation& operation = Begin(buffer, CallId(), std::move(start), now);
  operation.update().failed_unstarted = true;
  Conclude(operation, {.status = why});
  RememberFinished(buffer, operation, *operation.verdict);
  operation.detached = true;  // the caller knows
}

// True when another rank may ask yet what it came to.
bool IsAskedAbout(const State& state, const Buffer& buffer) {
  return state.options.ranks > 1 && !state.ending() &&
         buffer.received_in == state.membership.group_generation;
}

}  // namespace

StreamTicket TakeStreamTicket(State& state, absl::Time now) {
  const GroupGeneration generation = state.membership.group_generation;
  if (state.streams_of != generation) {
    // Nobody asks for the results of an earlier generation.
    Unkeep(state, 0, now);
    state.streams_of = generation;
    state.streams = 0;
  }
  return {.generation = generation, .number = ++state.streams};
}

absl::StatusOr<BufferId> RegisterStream(State& state, const StreamTicket& ticket, std::string form,
                                        std::shared_ptr<const ShardLayout> layout,
                                        const SegmentSet& wanted, absl::Time now) {
  if (ticket.generation != state.membership.group_generation) {
    return absl::AbortedError(
        "a rank of the group was replaced since this receive began; ask again");
  }
  // Streams that have ended make room.
  const size_t full = state.buffers.size() < state.limits.max_buffers ? 0 : 1;
  Unkeep(state, state.streams_kept.size() - std::min(full, state.streams_kept.size()), now);
  return AddStreamBuffer(state,
                         absl::StrCat("stream-", ticket.generation.value, ".", ticket.number),
                         std::move(form), std::move(layout), wanted, now);
}

void FailStream(State& state, const StreamTicket& ticket, std::string form, const absl::Status& why,
                absl::Time now) {
  if (state.options.ranks == 1) return;  // nobody waits for it
  if (!ValidateName("form", form).ok()) form = kDefaultForm;
  const absl::StatusOr<BufferId> id =
      RegisterStream(state, ticket, std::move(form), LayoutOfNothing(), SegmentSet(), now);
  if (!id.ok()) return;  // the membership is over, or the group's receives have ended already
  Buffer& buffer = *state.FindBuffer(*id);
  FailUnstarted(buffer, why, now);
  Keep(state, *id, now);
  Pump(state, buffer, now);
}

void EndStream(State& state, BufferId id, const absl::Status& why, absl::Time now) {
  Buffer* buffer = state.FindBuffer(id);
  if (buffer == nullptr) return;
  EndStreamingUpdate(state, *buffer, why, now);
  if (!IsAskedAbout(state, *buffer)) {
    (void)RemoveBuffer(state, id, now);  // cannot fail: it is there
    return;
  }
  if (buffer->next_number == OperationNumber(1)) FailUnstarted(*buffer, why, now);
  if (Moved(*buffer)) Unkeep(state, 0, now);  // every rank was here: it has heard of those before
  Keep(state, id, now);
  Pump(state, *buffer, now);
}

}  // namespace th::session
