// Group transactions: what all three kinds of operation share. Ranks join an operation by its
// number, operations of a replica end in the order of their numbers, and every rank hears the same
// result, also when it asks late or again.
#ifndef TH_REFERENCE_REGISTRY_TRANSACTIONS_H_
#define TH_REFERENCE_REGISTRY_TRANSACTIONS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/reference_registry/state.h"
#include "th/reference_registry/turn.h"

namespace th::registry {

// A rank's StartOperation. Build checks the message by itself, CanApply against the state.
struct JoinTransaction {
  BufferAddress buffer;
  StartOperation request;

  // INVALID_ARGUMENT: number 0, unknown kind, no time, no label where one is needed, attributes too
  // large.
  static absl::StatusOr<JoinTransaction> Build(const BufferAddress& buffer,
                                               const StartOperation& request);
  // NOT_FOUND: no such buffer. FAILED_PRECONDITION naming the expected number: skips ahead.
  // RESOURCE_EXHAUSTED: more than kMaxQueuedOperations wait. INVALID_ARGUMENT naming both kinds:
  // the operation has ended and was of another kind. ABORTED: its result is forgotten.
  absl::Status CanApply(const RegistryState& state) const;
  // Joins the rank to the operation, or sends the result that it has: ABORTED where that names
  // another version than this rank asks for. Ranks that disagree end it.
  void Apply(Turn& turn) const;
};

// The rank joins the update `number` without asking anything of it; it is the first if there is
// none.
void TakePart(Turn& turn, Buffer& buffer, OperationNumber number);
// The operation has begun, and is about this version; or it has turned out to be about another one.
void BeginWith(Replica& replica, Transaction& transaction, VersionSequence version);
// Ends an operation: `result` to every rank that takes part, and to those that ask later. What the
// replica then holds is the caller's business. The next operation is evaluated in this turn.
void FinishOperation(Turn& turn, Replica& replica, OperationNumber number,
                     FinishedOperation result);
// Ends it badly. A failed update leaves no rank a source of what it did not have before; a failed
// publish removes its version; a failed unpublish leaves the replica idle.
void FailOperation(Turn& turn, Replica& replica, OperationNumber number, absl::Status status);
// Ends all operations of the group's replicas, each with `status`.
void FailAllOperations(Turn& turn, Group& group, const absl::Status& status);
// The operation's time is over: DEADLINE_EXCEEDED naming who is missing and what each lacks. The
// rank, if any, that lost one of its calls and would stay an operation behind (CountAnew); where it
// is known to have lost one the operation is left to that.
std::optional<Rank> ExpireOperation(Turn& turn, Replica& replica, OperationNumber number);

// Takes a result that another reign of the server gave; ends the same operation here with it.
// False: it has ended here already, and stays as its ranks have heard.
bool AdoptResult(Turn& turn, Replica& replica, FinishedOperation result);

// A rank has drained alone for an unpublish that its group was to offload for first: that ends
// here, and who waits for a copy hears so. False where the group has gone on since.
bool EndOffloadFirst(Turn& turn, Replica& replica, OperationNumber number);

// A rank hears that its unpublish, or its start of one, went badly: it drains all the same, so
// nobody is sent to it for what it held before that operation.
void LetGoAlone(Turn& turn, Buffer& buffer, OperationNumber unpublish);

// A call of the buffer's rank was refused because its group had counted anew before it came.
void NoteLostCall(Turn& turn, Buffer& buffer);

// The numbering of all replicas of the group starts again from 1; nothing may be pending.
void RestartNumbering(Group& group);

// The pending operation `number` of this buffer, of which its rank is part. FAILED_PRECONDITION
// otherwise.
struct OwnOperation {
  Buffer* buffer = nullptr;
  Transaction* transaction = nullptr;
  Participant* participant = nullptr;
};
absl::StatusOr<OwnOperation> FindOwnOperation(const RegistryState& state,
                                              const BufferAddress& address, OperationNumber number);

// After a restart: whether a rank that has not asked again yet may know what the operation was
// resolved to, or how it ended. Until it asks, or is gone for good, that must not be decided anew.
bool SomeRankMayKnow(const RegistryState& state, const Replica& replica,
                     const Transaction& transaction);
// `replica` is evaluated again at the latest at the end of the recovery.
void WaitForRecovery(Turn& turn, const Replica& replica);

// The ranks of the group without an entry in `transaction`.
std::vector<Rank> MissingRanks(const Group& group, const Transaction& transaction);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_TRANSACTIONS_H_
