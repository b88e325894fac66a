// Publishing: a version comes to be when the first rank asks, is there for readers when all ranks
// have asked, and is sealed when the publisher's checksums are known.
//
// A label that a published version has already makes the publisher a further holder of that
// version: its shards must have the same layouts, and it is no source before its sums are known and
// agree.
#ifndef TH_REFERENCE_REGISTRY_PUBLISHING_H_
#define TH_REFERENCE_REGISTRY_PUBLISHING_H_

#include "absl/status/status.h"
#include "th/protocol/messages.h"
#include "th/reference_registry/state.h"
#include "th/reference_registry/turn.h"

namespace th::registry {

// Takes the replica's publish, its first pending operation, as far as it goes. It fails with
// FAILED_PRECONDITION: an older lineage; the replica holds something already; the version that it
// derives from is not held by the group. ALREADY_EXISTS naming the difference: the label belongs to
// other content. NOT_FOUND: derives from an unknown version. INVALID_ARGUMENT: a derived form names
// another label than its version's. RESOURCE_EXHAUSTED naming the limit.
void EvaluatePublish(Turn& turn, Replica& replica, Transaction& transaction);

// The publisher's checksums of one shard are known.
struct SealShard {
  BufferAddress buffer;
  ShardSealed message;

  // FAILED_PRECONDITION: this buffer has not published that version, or its publication was
  // refused.
  absl::Status CanApply(const RegistryState& state) const;
  // What the first publisher of the shard has summed is the authority; what a further one has
  // summed before it is kept until then. A publisher that differs is told so (PublicationRefused)
  // and is no source any more.
  void Apply(Turn& turn) const;
};

// `buffer` says that `root` is its shard's: it agrees with the root that is known, makes it known
// (and those that are filling the shard are told), or is refused (false).
//
// Of a version of an earlier reign a reader says what an earlier server had told it; a publisher,
// and the copy that it makes of its own buffer while there is no server, says what it has summed
// itself, which that server may have been about to refuse. So while ranks may still come back since
// a restart, such a word is kept and told to nobody, and a reader's settles it.
bool AgreeOnRoot(Turn& turn, Buffer& buffer, const Digest& root);
// The worker hears the root of what the buffer holds and its receipt, if the root is known.
void TellRoot(Turn& turn, const Buffer& buffer);

// Whether a server of this state has told that root of the shard.
bool IsGenuineFor(const RegistryState& state, const Shard& shard, const RootReceipt& receipt);
// A genuine receipt settles the shard's root at once: whoever differs is refused.
void TakeReceipt(Turn& turn, Shard& shard, const RootReceipt& receipt);
// Where no reader has told the root of a shard, its first publisher does, once it has summed it and
// nobody who knows better may come back any more.
void SettleRootsAlone(Turn& turn, Version& version);

// Layouts without checksums have the empty root: nobody needs to tell it.
void SealIfNoSums(Turn& turn, Buffer& buffer);

// The group knows the model's lineage from here on.
void TeachLineage(Group& group);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_PUBLISHING_H_
