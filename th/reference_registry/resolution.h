// Which version a selector names right now, and whether a replica could get it.
#ifndef TH_REFERENCE_REGISTRY_RESOLUTION_H_
#define TH_REFERENCE_REGISTRY_RESOLUTION_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "th/protocol/messages.h"
#include "th/registry_state/state.h"

namespace th::registry {

// Either a version or the reason why there is none.
struct Resolution {
  const Version* version = nullptr;
  NotAvailableReason reason = NotAvailableReason::kNone;
};

// `latest` is the highest published version that is not withdrawn, which is never below the durable
// high-water mark, whether anybody holds it or not.
Resolution ResolveSelector(const Model& model, const VersionSelector& selector);

// The same, and that `replica` could be filled with it: its form is published, not older than
// `floor` (see IsBehindFloor), and every shard that its ranks need has a holder.
Resolution ResolveFor(const Replica& replica, const VersionSelector& selector,
                      VersionSequence floor);

// The replica's ranks whose layout is none of the version's shards in the replica's form.
std::vector<const Buffer*> RanksWithoutShard(const Replica& replica, const Version& version);
// True when shards of the version, in this form, may be missing because a rank that held one has
// not come back since the server restarted: some holder's group has it in part, or nobody has any.
bool HasLostShards(const Version& version, const std::string& form);
// True when they must be: no group has all of the version, and fewer distinct shards are
// known than the largest group that has a part has ranks. The server knows a shard by the ranks
// that announce it alone.
bool LacksUnknownShards(const Version& version, const std::string& form);
// UNAVAILABLE when that may be why. INVALID_ARGUMENT naming the rank and the first tensor in which
// the closest shard differs.
absl::Status NobodyHoldsShardOf(const RegistryState& state, const Buffer& buffer,
                                const Version& version);

// In words, for statuses and logs.
std::string DescribeNotAvailable(const VersionSelector& selector, NotAvailableReason reason);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_RESOLUTION_H_
