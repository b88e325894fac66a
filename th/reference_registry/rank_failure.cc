#include "th/reference_registry/rank_failure.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "th/reference_registry/joining.h"
#include "th/reference_registry/publishing.h"
#include "th/reference_registry/transactions.h"
#include "th/registry_state/holders.h"
#include "th/registry_state/kept_results.h"

namespace th::registry {
namespace {

// True when a streaming reader fails its next operation without having started it: it cannot even
// say what it wants to receive, and the others of its group need not wait for it.
bool FailsUnstarted(const RegistryState& state, const BufferAddress& address,
                    OperationNumber number) {
  const Buffer* buffer = FindBuffer(state, address);
  if (buffer == nullptr || buffer->replica->role != BufferRole::kStreaming) return false;
  const Replica& replica = *buffer->replica;
  if (number <= buffer->last_started) return false;
  return replica.results.contains(number) ||
         number == std::max(buffer->last_started, replica.finished).Next();
}

// True when a rank gives up a publication that was made good only after its caller had been told
// that there was no answer in time, so that it writes into its buffer again.
bool GivesUpPublication(const RegistryState& state, const BufferAddress& address,
                        OperationNumber number) {
  const Buffer* buffer = FindBuffer(state, address);
  if (buffer == nullptr) return false;
  const Replica& replica = *buffer->replica;
  const auto result = replica.results.find(number);
  if (result == replica.results.end()) return false;
  const FinishedOperation& finished = result->second.finished;
  if (buffer->content.has_value()) return MadePublisher(finished, *buffer->content);
  // It has come back from before a restart of the server, and could not name what it holds.
  return number == replica.finished && finished.kind == OperationKind::kPublish &&
         finished.status.ok();
}

void GiveUpPublication(Turn& turn, Buffer& buffer, OperationNumber number) {
  Replica& replica = *buffer.replica;
  DropContent(turn, buffer);
  if (replica.phase == ReplicaPhase::kHolding) InvalidateReplica(turn, replica);
  replica.publication_lost = replica.results.at(number).finished.version.sequence;
  LosePublication(turn, replica, NameOf(buffer), "gave up its publish before it ended");
}

// It takes part, so that it can fail. False: the operation has ended already, and the rank is told
// how.
bool JoinUnstarted(Turn& turn, Buffer& buffer, OperationNumber number) {
  const auto& results = buffer.replica->results;
  const auto result = results.find(number);
  if (result == results.end()) {
    TakePart(turn, buffer, number);
    return true;
  }
  buffer.last_started = number;
  SendResult(turn, buffer, result->second);
  return false;
}

}  // namespace

absl::Status FailRank::CanApply(const RegistryState& state) const {
  if (FailsUnstarted(state, buffer, message.key.number)) return absl::OkStatus();
  if (GivesUpPublication(state, buffer, message.key.number)) return absl::OkStatus();
  return FindOwnOperation(state, buffer, message.key.number).status();
}

void FailRank::Apply(Turn& turn) const {
  const OperationNumber number = message.key.number;
  if (GivesUpPublication(turn.state, buffer, number)) {
    return GiveUpPublication(turn, *FindBuffer(turn.state, buffer), number);
  }
  const bool unstarted = FailsUnstarted(turn.state, buffer, number);
  if (unstarted && !JoinUnstarted(turn, *FindBuffer(turn.state, buffer), number)) return;
  Buffer& own = *FindOwnOperation(turn.state, buffer, number)->buffer;
  const absl::Status why =
      message.status.ok() ? absl::UnknownError("failed without giving a reason") : message.status;
  if (message.buffer_undefined) ClearContent(turn, own);
  FailOperation(turn, *own.replica, number,
                absl::Status(why.code(), absl::StrCat("rank ", NameOf(own).ToString(), ": ",
                                                      std::string(why.message()))));
}

}  // namespace th::registry
