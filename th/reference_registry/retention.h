// What has to stay fetchable: which versions are retained, and who is the last to hold one.
//
// A version is retained in a form while it is pinned there, or one of the form's `keep_latest`
// newest complete versions of the current history. A replica *stays* while all its ranks hold their
// shards, are connected, and it neither drains nor moves on; spot workers never count. When an
// operation would take away the last replica that stays, it ends with `offload_first` instead: the
// ranks copy their shards into offload buffers (an update like any other, to exactly this version),
// and ask again. When such a copy may go: copies.h.
#ifndef TH_REFERENCE_REGISTRY_RETENTION_H_
#define TH_REFERENCE_REGISTRY_RETENTION_H_

#include <string>

#include "absl/status/status.h"
#include "th/reference_registry/state.h"
#include "th/reference_registry/turn.h"

namespace th::registry {

// O(newer versions of the model, up to keep_latest complete ones).
bool IsRetained(const Version& version, const std::string& form);

// Whether `transaction`, which is about to take away what `replica` holds, has ended here instead:
// with offload_first, or FAILED_PRECONDITION naming the first rank that has no memory for a copy.
bool EndsForOffload(Turn& turn, Replica& replica, const Transaction& transaction);

// FAILED_PRECONDITION naming the first rank whose limit has no room for a copy of its shard of
// `version`, beside the copies that it has.
absl::Status HasRoomForCopy(const Replica& replica, const Version& version);

// What the replica holds whole, where that counts: see above. Null otherwise.
const Version* VersionThatStays(const Replica& replica);

// Whether no other group has what `replica`, a copy, holds and something retains.
bool IsLastRetainedCopy(const Replica& replica);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_RETENTION_H_
