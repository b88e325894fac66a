// Group transactions: what all three kinds of operation share from their begin to their end.
// Operations of a replica end in the order of their numbers, and every rank hears the same result,
// also when it asks late or again. joining.h has how ranks come to take part.
#ifndef TH_REFERENCE_REGISTRY_TRANSACTIONS_H_
#define TH_REFERENCE_REGISTRY_TRANSACTIONS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// Moves the end of the operation's time to `to`.
void SetDeadline(Turn& turn, const Replica& replica, Transaction& transaction, absl::Time to);
// Ranks that have lost a call have kCallsAgainWithin to come to the operation if it is the
// replica's first. Called when it becomes the first, and when a rank has joined it, lost a call or
// called again.
void AwaitLostCalls(Turn& turn, const Replica& replica, Transaction& transaction);
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
// The operation's time is over. A rank that has lost a call and has not come by `complete_by` is
// returned, and the operation is left as it is. Else it ends with DEADLINE_EXCEEDED naming who is
// missing and what each lacks, and the rank that lags is returned, if any. The group of a rank that
// is returned has to count anew (BumpGroupGeneration), which ends what is pending.
std::optional<Rank> ExpireOperation(Turn& turn, Replica& replica, OperationNumber number);

// Takes a result that another epoch of the server gave; ends the same operation here with it.
// False: it has ended here already, and stays as its ranks have heard.
bool AdoptResult(Turn& turn, Replica& replica, FinishedOperation result);

// A rank has drained alone for an unpublish that its group was to offload for first: that ends
// here, and who waits for a copy hears so. False where the group has gone on since.
bool EndMustOffload(Turn& turn, Replica& replica, OperationNumber number);

// True for the result of an unpublish that took away what the replica held.
bool DroppedContent(const FinishedOperation& result);
// True for the result of the publish that `content` is the publication of.
bool MadePublisher(const FinishedOperation& result, const Content& content);
// Drops the content of a replica whose unpublish ended without this server's drain: every rank has
// drained, or does by itself, and does not report it any more, but for one that copies its content
// first.
void DropReplicaContent(Turn& turn, Replica& replica, OperationNumber unpublish);
// A rank hears that its unpublish, or its start of one, went badly: it drains all the same, so
// nobody is sent to it for what it held before that operation.
void DrainAlone(Turn& turn, Buffer& buffer, OperationNumber unpublish);
// True when a rank that says now that it has drained means an unpublish that has ended: it has kept
// what it held until a copy beside it was made, and nothing was begun since.
bool DrainsLate(const RegistryState& state, const BufferAddress& address,
                OperationNumber unpublish);
// The rank does not hold any more what it held, and with it its group.
void DropContent(Turn& turn, Buffer& buffer);

// A call of the buffer's rank was refused because its group had counted anew before it came, or
// because the result that it asks for is forgotten.
void NoteLostCall(Turn& turn, Buffer& buffer);
// The operation that the buffer's rank has called has ended, and its result cannot answer the call:
// the others have called something else by that number.
void NoteOtherCall(Buffer& buffer);

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
// `replica` is evaluated again when the recovery ends, and when a rank of its group that has come
// back has had the time to ask.
void WaitForRecovery(Turn& turn, const Replica& replica);
// A worker that has come back has had the time to ask for what it waits for with its second
// heartbeat.
void NoteHeartbeat(Turn& turn, Worker& worker);

// The ranks of the group without an entry in `transaction`.
std::vector<Rank> MissingRanks(const Group& group, const Transaction& transaction);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_TRANSACTIONS_H_
