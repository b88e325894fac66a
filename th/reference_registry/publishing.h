// Publishing. A version is created when the first rank asks to publish it, becomes available to
// readers when all ranks have asked, and is sealed when the server knows the root of every shard.
//
// Publishing under the label of a published version adds a further holder: its shards must have the
// same layouts, and it becomes a source only once its checksums are known to agree. A version that
// no worker has announced since the server's restart gives its label up instead, because nobody can
// tell whether the bytes are the same.
#ifndef TH_REFERENCE_REGISTRY_PUBLISHING_H_
#define TH_REFERENCE_REGISTRY_PUBLISHING_H_

#include "absl/status/status.h"
#include "th/protocol/messages.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// Advances the replica's first pending operation, a publish, until it ends or has to wait. It ends
// with FAILED_PRECONDITION: a rank has an older lineage; the replica holds something already; the
// version that it derives from is not held by the group. ALREADY_EXISTS naming the difference: the
// label belongs to other content. NOT_FOUND: derives from an unknown version. INVALID_ARGUMENT: a
// derived form names another label than its version's. RESOURCE_EXHAUSTED naming the limit.
void EvaluatePublish(Turn& turn, Replica& replica, Transaction& transaction);

// The publisher's checksums of one shard are known.
struct SealShard {
  BufferAddress buffer;
  ShardSealed message;

  // FAILED_PRECONDITION: this buffer has not published that version, or its publication was
  // refused.
  absl::Status CanApply(const RegistryState& state) const;
  // The root that the shard's first publisher reports is authoritative. A root that a further
  // publisher reports earlier is kept until then. A publisher that differs receives
  // PublicationRefused and stops being a source.
  void Apply(Turn& turn) const;
};

// Handles the report of `buffer` that its shard has `root`. Returns false when the buffer is
// refused. A root that is known is compared with. Else a reader's report settles it, because a
// server has sent the reader that root; the report of a publisher, or of its offload copy, is kept,
// and the first publisher's settles it, which for a version of an earlier epoch waits until
// adoption ends.
bool TakeRootReport(Turn& turn, Buffer& buffer, const Digest& root);
// True when the buffer holds what was published from it, and the publication stands.
bool HoldsPublication(const Buffer& buffer);
// Ends what the ranks of `replica` have published: rank `gone` holds its part no more and will not
// have it again, so that the version cannot become whole at this group. `why` follows the rank's
// name ("was replaced by a new process"). Each rank that holds a part receives PublicationRefused
// (UNAVAILABLE: publish again) and stops being a source. Does nothing to what was received by an
// update: that stays with its ranks until they update again.
void LosePublication(Turn& turn, Replica& replica, const RankName& gone, absl::string_view why);
// Call after a rank was sent an earlier result that it had not heard: where that made a publication
// that is lost since, the rank hears that too.
void RepeatLoss(Turn& turn, const Buffer& buffer, const FinishedOperation& result);
// The status for a rank that was away when the publication of its group was lost.
absl::Status LostWhileAway();
// Sends the buffer's worker the root and its receipt. Does nothing while the root is unknown.
void SendRoot(Turn& turn, const Buffer& buffer);

// True when a server with this state's key has issued `receipt` for the shard. Once the root is
// known, only that root's receipt counts.
bool IsGenuineFor(const RegistryState& state, const Shard& shard, const RootReceipt& receipt);
// Settles an unknown root by a genuine receipt, and refuses every publisher that differs.
void TakeReceipt(Turn& turn, Shard& shard, const RootReceipt& receipt);
// Settles the roots that no reader has reported by their first publishers, once no worker of an
// earlier epoch can come back any more.
void SettleRootsByFirstPublishers(Turn& turn, Version& version);

// Layouts without checksums have the empty root: nobody needs to tell it.
void SealIfNoChecksums(Turn& turn, Buffer& buffer);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_PUBLISHING_H_
