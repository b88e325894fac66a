#include "th/reference_registry/dispatch.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "th/protocol/answer.h"
#include "th/reference_registry/assignment.h"
#include "th/reference_registry/buffer_registration.h"
#include "th/reference_registry/commands.h"
#include "th/reference_registry/joining.h"
#include "th/reference_registry/membership.h"
#include "th/reference_registry/models.h"
#include "th/reference_registry/operations.h"
#include "th/reference_registry/publishing.h"
#include "th/reference_registry/rank_failure.h"
#include "th/reference_registry/recovery.h"
#include "th/reference_registry/roll_back.h"
#include "th/reference_registry/throughput.h"
#include "th/reference_registry/transactions.h"
#include "th/reference_registry/updating.h"
#include "th/registry_state/claims.h"
#include "th/registry_state/holders.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

void CountRefusal(Turn& turn, const Worker& worker, const absl::Status& status) {
  ++turn.state.counters.messages_refused;
  Log(turn, absl::StrCat(worker.group->model->key.ToString(), " rank=", worker.name.ToString(),
                         ": message refused: ", status.ToString()));
}

// An update without an answer of its own: applied, or refused and counted.
template <typename Update>
void ApplyOrCount(Turn& turn, const Worker& worker, const Update& update) {
  if (absl::Status status = update.CanApply(turn.state); !status.ok()) {
    return CountRefusal(turn, worker, status);
  }
  update.Apply(turn);
}

// Each message of a joined worker has an overload here that applies it.
struct MessageHandler {
  Turn& turn;
  Worker& worker;

  BufferAddress AddressOf(BufferId buffer) const { return {worker.id, buffer}; }
  template <typename Update, typename Message>
  void ApplyOperation(const Message& message) const {
    ApplyOrCount(turn, worker, Update{AddressOf(message.key.buffer), message});
  }

  // The buffer whose operation of that key has ended with the word that its group is to copy what
  // it holds first. Null: there is none.
  Buffer* FindAskedToCopy(const OperationKey& key) const {
    auto own = worker.buffers.find(key.buffer);
    if (own == worker.buffers.end()) return nullptr;
    const auto& results = own->second.replica->results;
    auto result = results.find(key.number);
    const bool asked = result != results.end() && result->second.finished.must_offload;
    return asked ? &own->second : nullptr;
  }
  // A rank has gone on without the copy that its group was told to make. True: those that wait for
  // it have heard the end of the unpublish. False: the group has gone on too, and counts anew.
  bool EndWithoutCopy(Buffer& own, OperationKind kind, OperationNumber number) const {
    const bool ends =
        kind == OperationKind::kUnpublish && EndMustOffload(turn, *own.replica, number);
    if (!ends) BumpGroupGeneration(turn, *worker.group, worker.name.rank, kDrainedAlone);
    return ends;
  }
  // A rank whose time was over before it heard that its group is to copy first has drained: there
  // will never be a copy of its own.
  bool HasDrainedInsteadOfCopying(const Buffer& own, OperationNumber number) const {
    const FinishedOperation& asked = own.replica->results.at(number).finished;
    return TH_MUTATE(kAwaitCopiesOfTheDrained,
                     asked.kind == OperationKind::kUnpublish && asked.status.ok(), false);
  }
  // Likewise of a rank that failed before it heard that. The others would wait for a copy that it
  // takes no part in until their own time for it is over.
  bool OthersAwaitItsCopy(const Buffer& own, OperationNumber number) const {
    const Replica& replica = *own.replica;
    return replica.results.at(number).finished.status.ok() && number == replica.finished &&
           replica.buffers.size() > 1;
  }

  void operator()(const JoinRequest&) const {
    CountRefusal(turn, worker,
                 absl::FailedPreconditionError("a stream joins once; open another to join again"));
  }
  void operator()(const RegisterBuffer& message) const {
    Announce(turn, worker, message.buffer, Numbering::kOther);
  }
  void operator()(const LayoutUpload& message) const {
    ApplyOrCount(turn, worker, StoreLayout{&message.layout});
  }
  void operator()(const StartOperation& message) const {
    const bool outdated = message.group_generation != GroupGeneration() &&
                          message.group_generation < worker.group->generation;
    if (outdated) {  // sent before its GroupChanged was heard; the worker counts anew by now
      Buffer* const own = FindBuffer(turn.state, AddressOf(message.key.buffer));
      if (own != nullptr) NoteLostCall(turn, *own);
      return CountRefusal(turn, worker,
                          absl::AbortedError("a start from before the group's last change"));
    }
    Buffer* const asked = FindAskedToCopy(message.key);
    if (asked != nullptr && !message.keep_retained &&
        !EndWithoutCopy(*asked, message.kind, message.key.number)) {
      return;
    }
    const auto update = JoinTransaction::Build(AddressOf(message.key.buffer), message);
    const absl::Status status = update.ok() ? update->CanApply(turn.state) : update.status();
    if (status.ok()) return update->Apply(turn);
    CountRefusal(turn, worker, status);
    Buffer* const buffer = FindBuffer(turn.state, AddressOf(message.key.buffer));
    if (buffer != nullptr && SaysForgotten(status)) NoteLostCall(turn, *buffer);
    const bool ended_otherwise =
        buffer != nullptr && buffer->replica->results.contains(message.key.number);
    if (ended_otherwise) NoteOtherCall(*buffer);
    if (buffer != nullptr && message.kind == OperationKind::kUnpublish) {
      DrainAlone(turn, *buffer, message.key.number);
    }
    Send(
        turn, worker,
        OperationFinished{
            .key = message.key, .kind = message.kind, .status = status, .lineage = worker.lineage});
  }
  void operator()(const ReadyToFill& message) const { ApplyOperation<BeginFill>(message); }
  void operator()(const FillProgress& message) const { ApplyOperation<RecordProgress>(message); }
  void operator()(const RankDone& message) const {
    Buffer* const asked = FindAskedToCopy(message.key);
    if (asked == nullptr || !HasDrainedInsteadOfCopying(*asked, message.key.number)) {
      return ApplyOperation<CompleteRank>(message);
    }
    if (EndWithoutCopy(*asked, OperationKind::kUnpublish, message.key.number)) {
      DropContent(turn, *asked);
    }
  }
  void operator()(const RankFailed& message) const {
    const Buffer* const asked = FindAskedToCopy(message.key);
    if (asked == nullptr || !OthersAwaitItsCopy(*asked, message.key.number)) {
      return ApplyOperation<FailRank>(message);
    }
    BumpGroupGeneration(turn, *worker.group, worker.name.rank, kFailedAlone);
  }
  void operator()(const SourceFailed& message) const {
    ApplyOperation<ReportSourceFailed>(message);
  }
  void operator()(const SourceSuspected& message) const { ApplyOperation<SuspectSource>(message); }
  void operator()(const ShardSealed& message) const {
    ApplyOrCount(turn, worker, SealShard{AddressOf(message.buffer), message});
  }
  void operator()(const BufferReset& message) const {
    ApplyOrCount(turn, worker, ResetContent{AddressOf(message.buffer)});
  }
  void operator()(const UnregisterBuffer& message) const {
    ApplyOrCount(turn, worker, RemoveBuffer{AddressOf(message.buffer)});
  }
  void operator()(const RunCommand& message) const {
    CommandFinished finished =
        RunOnce(turn, worker.group->model->key, message, worker.group, worker.group->name);
    const bool rolled_back =
        finished.status.ok() && std::holds_alternative<RollBack>(message.command);
    if (rolled_back) {  // the group that asked goes on in the new lineage
      for (auto& [rank, member] : worker.group->members) {
        member->lineage = std::max(member->lineage, finished.lineage);
      }
    }
    Send(turn, worker, std::move(finished));
  }
  void operator()(const Heartbeat& message) const {
    if (message.ask) {
      Send(turn, worker, Alive{});
    } else {
      NoteHeartbeat(turn, worker);
    }
  }
  void operator()(const Preempt& message) const {
    ApplyOrCount(turn, worker, TakeNotice{worker.id, message});
  }
  void operator()(const Leave&) const {
    Group& group = *worker.group;
    turn.worker_leaves = true;
    RemoveWorker(turn, worker, absl::UnavailableError("it left"));
    turn.worker_leaves = false;
    ForgetIfEmpty(turn, group);
  }
};

void RefuseConnection(Turn& turn, ConnectionId connection, absl::Status status,
                      absl::Duration retry_after) {
  Log(turn, absl::StrCat("stream ", connection.value, " refused: ", status.ToString()));
  SendToConnection(
      turn, connection,
      Refused{.status = std::move(status), .retry_after = retry_after, .epoch = turn.state.epoch});
  turn.effects.close.push_back(connection);
}

// The server's state is older than what the worker has lived in. The worker comes back to a server
// that has begun again above it.
void RefuseUntilBegunAgain(Turn& turn, ConnectionId connection, const ResumeClaim& claim) {
  const bool begun_by_a_claim = turn.state.identity.of_this_process > 1;
  const absl::Duration left =
      begun_by_a_claim ? turn.state.began + kShortestEpoch - turn.now : absl::ZeroDuration();
  if (left <= absl::ZeroDuration()) turn.effects.outdone_by = claim.epoch;
  RefuseConnection(
      turn, connection,
      absl::UnavailableError(absl::StrCat(
          "this server's epoch is ", turn.state.epoch.value, ", and epoch ", claim.epoch.value,
          " has begun elsewhere: its state was lost or is older; it begins again")),
      std::max(left, kRetryBegunAgain));
}

void HandleJoin(Turn& turn, ConnectionId connection, const JoinRequest& request) {
  const auto join = JoinGroup::Build(turn.state, connection, request);
  if (join.ok() && request.resume.has_value() && Outdoes(turn.state, *request.resume)) {
    return RefuseUntilBegunAgain(turn, connection, *request.resume);
  }
  const absl::Status status = join.ok() ? join->CanApply(turn.state) : join.status();
  if (!status.ok()) {
    ++turn.state.counters.joins_refused;
    const absl::Duration retry_after = RetryAfter(turn.state, request, status, turn.now);
    return RefuseConnection(turn, connection, status, retry_after);
  }
  Worker& worker = join->Apply(turn);
  if (request.resume.has_value()) LearnFrom(turn, worker, request);
  AnnounceAll(turn, worker, request);
}

void HandleDeadline(Turn& turn, const Deadline& deadline) {
  switch (deadline.kind) {
    case DeadlineKind::kRecoveryWindow:
      return EndRecoveryWindow(turn);
    case DeadlineKind::kAdoption:
      return EndAdoption(turn);
    case DeadlineKind::kLease:
      if (Worker* worker = FindWorker(turn.state, deadline.buffer.worker))
        CheckLease(turn, *worker);
      return;
    case DeadlineKind::kRetry:
      if (Buffer* buffer = FindBuffer(turn.state, deadline.buffer);
          buffer != nullptr && buffer->fill != nullptr) {
        buffer->fill->retry_at = absl::InfiniteFuture();
        turn.to_assign.insert(deadline.buffer);
      }
      return;
    case DeadlineKind::kThroughput:
      if (Buffer* buffer = FindBuffer(turn.state, deadline.buffer)) RecheckSources(turn, *buffer);
      return;
    case DeadlineKind::kOperation:
      if (Replica* replica = FindReplica(turn.state, deadline.replica)) {
        const auto lags = ExpireOperation(turn, *replica, deadline.operation);
        if (lags.has_value()) BumpGroupGeneration(turn, *replica->group, *lags, kLags);
      }
      return;
    case DeadlineKind::kForgetting:
      return ForgetUnused(turn);
    case DeadlineKind::kReservation:
      if (Replica* replica = FindReplica(turn.state, deadline.replica))
        EndReservation(turn, *replica);
      return;
  }
}

}  // namespace

void DispatchMessage(Turn& turn, ConnectionId connection, const WorkerMessage& message) {
  if (Worker* worker = FindWorker(turn.state, connection)) {
    NoteHeard(turn.state, *worker, turn.now);
    return std::visit(MessageHandler{turn, *worker}, message);
  }
  if (const auto* request = std::get_if<JoinRequest>(&message)) {
    return HandleJoin(turn, connection, *request);
  }
  ++turn.state.counters.messages_refused;
  RefuseConnection(turn, connection,
                   absl::FailedPreconditionError(
                       "this stream has not joined, or its worker was replaced; join first"),
                   absl::InfiniteDuration());
}

void DispatchDisconnect(Turn& turn, ConnectionId connection) {
  Worker* worker = FindWorker(turn.state, connection);
  if (worker == nullptr) return;
  Log(turn, absl::StrCat(worker->group->model->key.ToString(), " rank=", worker->name.ToString(),
                         ": stream broken"));
  LoseStream(turn, *worker);
}

void DispatchDeadlines(Turn& turn) {
  absl::btree_set<Deadline>& deadlines = turn.state.deadlines;
  while (!deadlines.empty() && deadlines.begin()->at <= turn.now) {
    const Deadline due = *deadlines.begin();
    deadlines.erase(deadlines.begin());
    HandleDeadline(turn, due);
  }
  ExpirePins(turn);
}

}  // namespace th::registry
