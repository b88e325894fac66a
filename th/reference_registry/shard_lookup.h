// Finds the shard or the form that somebody asks for, without a list of the model.
#ifndef TH_REFERENCE_REGISTRY_SHARD_LOOKUP_H_
#define TH_REFERENCE_REGISTRY_SHARD_LOOKUP_H_

#include <string>

#include "absl/status/statusor.h"
#include "th/protocol/catalog.h"
#include "th/registry_state/registry_types.h"
#include "th/registry_state/state.h"

namespace th::registry {

// Where a group is named: the layout that the rank has a buffer with, what it holds before what it
// fills or has idle. Without one: the only layout that the version has in the form. It looks at one
// group's replicas, or at one version's shards. NOT_FOUND: the rank has no buffer of that form,
// naming groups that have one; INVALID_ARGUMENT: the version has several shards, and no group is
// named; FAILED_PRECONDITION: the version was withdrawn; UNAVAILABLE: the server recovers, and who
// knows the answer may still come back.
absl::StatusOr<FoundShard> FindShard(const RegistryState& state, const ShardQuery& query);

// The version that the query names, and whether its form is offered: some shards of it are known,
// and a reader of any of them may hope to complete it (IsCompletable). NOT_FOUND: there is no such
// version; FAILED_PRECONDITION: it was withdrawn, or the group has no rank; UNAVAILABLE: the server
// recovers, and who has the form may still come back.
absl::StatusOr<FoundForm> FindForm(const RegistryState& state, const FormQuery& query);
// True while the group has a rank.
bool HasGroup(const RegistryState& state, const ModelKey& key, const std::string& group);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_SHARD_LOOKUP_H_
