#include "th/reference_registry/rank_failure.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "th/reference_registry/holders.h"
#include "th/reference_registry/transactions.h"

namespace th::registry {
namespace {

// Whether a streaming reader fails its next operation without having started it: it cannot even say
// what it wants to receive, and the others of its group need not wait for it.
bool FailsUnstarted(const RegistryState& state, const BufferAddress& address,
                    OperationNumber number) {
  const Buffer* buffer = FindBuffer(state, address);
  if (buffer == nullptr || !buffer->replica->keeps_nothing) return false;
  const Replica& replica = *buffer->replica;
  if (number <= buffer->last_started) return false;
  return replica.results.contains(number) ||
         number == std::max(buffer->last_started, replica.finished).Next();
}

// Whether a rank gives up a publication that was made good only after its caller had been told that
// there was no answer in time, so that it writes into its buffer again.
bool GivesUpPublication(const RegistryState& state, const BufferAddress& address,
                        OperationNumber number) {
  const Buffer* buffer = FindBuffer(state, address);
  if (buffer == nullptr || !buffer->content.has_value() || !buffer->content->publisher)
    return false;
  const auto result = buffer->replica->results.find(number);
  return result != buffer->replica->results.end() &&
         result->second.kind == OperationKind::kPublish && result->second.status.ok() &&
         result->second.version.sequence == buffer->content->version;
}

void GiveUpPublication(Turn& turn, Buffer& buffer) {
  Replica& replica = *buffer.replica;
  ClearContent(turn, buffer);
  if (replica.phase == ReplicaPhase::kHolding) InvalidateReplica(turn, replica);
}

}  // namespace

absl::Status FailRank::CanApply(const RegistryState& state) const {
  if (FailsUnstarted(state, buffer, message.key.number)) return absl::OkStatus();
  if (GivesUpPublication(state, buffer, message.key.number)) return absl::OkStatus();
  return FindOwnOperation(state, buffer, message.key.number).status();
}

void FailRank::Apply(Turn& turn) const {
  if (GivesUpPublication(turn.state, buffer, message.key.number)) {
    return GiveUpPublication(turn, *FindBuffer(turn.state, buffer));
  }
  if (FailsUnstarted(turn.state, buffer, message.key.number)) {
    Buffer& unstarted = *FindBuffer(turn.state, buffer);
    const auto& results = unstarted.replica->results;
    const auto result = results.find(message.key.number);
    if (result != results.end()) {
      unstarted.last_started = message.key.number;
      return SendResult(turn, unstarted, result->second);
    }
    TakePart(turn, unstarted, message.key.number);
  }
  const OwnOperation own = *FindOwnOperation(turn.state, buffer, message.key.number);
  const std::string name = NameOf(*own.buffer).ToString();
  const absl::StatusCode code =
      message.status.ok() ? absl::StatusCode::kUnknown : message.status.code();
  if (message.buffer_undefined) ClearContent(turn, *own.buffer);
  FailOperation(
      turn, *own.buffer->replica, message.key.number,
      absl::Status(code, absl::StrCat("rank ", name, ": ",
                                      message.status.ok() ? "failed without giving a reason"
                                                          : message.status.message())));
}

}  // namespace th::registry
