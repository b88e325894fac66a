// Finds the shard that a streaming reader asks for, without a list of the model.
#ifndef TH_REFERENCE_REGISTRY_SHARD_LOOKUP_H_
#define TH_REFERENCE_REGISTRY_SHARD_LOOKUP_H_

#include "absl/status/statusor.h"
#include "th/protocol/catalog.h"
#include "th/registry_state/state.h"

namespace th::registry {

// Where a group is named: the layout that the rank has a buffer with, what it holds before what it
// fills or has idle. Without one: the only layout that the version has in the form. It looks at one
// group's replicas, or at one version's shards. NOT_FOUND: the rank has no buffer of that form,
// naming groups that have one; INVALID_ARGUMENT: the version has several shards, and no group is
// named; FAILED_PRECONDITION: the version was withdrawn; UNAVAILABLE: the server recovers, and who
// knows the answer may still come back.
absl::StatusOr<FoundShard> FindShard(const RegistryState& state, const ShardQuery& query);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_SHARD_LOOKUP_H_
