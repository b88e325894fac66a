#include "th/reference_registry/shard_lookup.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "th/reference_registry/assignment.h"
#include "th/reference_registry/roll_back.h"

namespace th::registry {
namespace {

// Groups that an error names.
constexpr size_t kGroupsNamed = 8;
// Groups that are looked at for those names: the error is made on the server's loop.
constexpr size_t kGroupsLookedAt = 256;

bool HasForm(const Group& group, const std::string& form) {
  for (const auto& [buffer_name, replica] : group.replicas) {
    if (replica.form == form && replica.role != BufferRole::kStreaming) return true;
  }
  return false;
}

// Some groups of the model that have buffers of the form.
std::string GroupsWith(const Model& model, const std::string& form) {
  std::vector<std::string> named;
  size_t looked_at = 0;
  for (const auto& [name, group] : model.groups) {
    if (named.size() == kGroupsNamed || ++looked_at > kGroupsLookedAt) break;
    if (!HasForm(group, form)) continue;
    named.push_back(absl::StrCat(name, " (", group.ranks, group.ranks == 1 ? " rank)" : " ranks)"));
  }
  return named.empty() ? "no group" : absl::StrJoin(named, ", ");
}

absl::Status TryAgain() {
  return absl::UnavailableError(
      "the server is recovering from a restart, and ranks may still come back; try again in a "
      "moment");
}

// True when `replica` is the better answer: one that holds a version comes before one that does
// not, and a newer version before an older one.
bool IsBetter(const Replica& replica, const Replica* best) {
  if (best == nullptr) return true;
  const bool holds = replica.phase == ReplicaPhase::kHolding;
  const bool best_holds = best->phase == ReplicaPhase::kHolding;
  if (holds != best_holds) return holds;
  const bool idle = replica.phase == ReplicaPhase::kIdle;
  const bool best_idle = best->phase == ReplicaPhase::kIdle;
  if (idle != best_idle) return best_idle;
  return !idle && replica.version > best->version;
}

absl::StatusOr<FoundShard> LikeRank(const RegistryState& state, const Model& model,
                                    const ShardQuery& query) {
  const Replica* best = nullptr;
  const auto group = model.groups.find(query.group);
  if (group != model.groups.end()) {
    for (const auto& [buffer_name, replica] : group->second.replicas) {
      if (replica.form != query.form || replica.role == BufferRole::kStreaming) continue;
      if (replica.buffers.contains(query.rank) && IsBetter(replica, best)) best = &replica;
    }
  }
  if (best != nullptr) return FoundShard{.layout = best->buffers.at(query.rank)->layout};
  if (state.adopting) return TryAgain();
  return absl::NotFoundError(absl::StrCat("rank ", query.group, "/", query.rank.value,
                                          " has no buffer of form ", query.form,
                                          "; these groups have: ", GroupsWith(model, query.form)));
}

absl::StatusOr<FoundShard> OnlyShard(const RegistryState& state, const ShardQuery& query) {
  const auto found = FindPublished(state, query.key, query.selector);
  if (absl::IsNotFound(found.status())) {
    return FoundShard{.not_available = NotAvailableReason::kNotPublished};
  }
  if (!found.ok()) return found.status();
  const Version& version = **found;
  // Shards that nobody has announced yet are not known.
  if (version.from_earlier_epoch && state.adopting) return TryAgain();
  const Shard* only = nullptr;
  uint32_t shards = 0;
  for (const auto& [key, shard] : version.shards) {
    if (key.form != query.form) continue;
    ++shards;
    only = &shard;
  }
  if (shards > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "version #", version.info.sequence.ToString(), " has ", shards, " shards in form ",
        query.form, "; say which one: a layout, or a rank of one of these groups: ",
        GroupsWith(*version.model, query.form)));
  }
  if (only == nullptr || only->holders.empty()) {
    return FoundShard{.not_available = NotAvailableReason::kGone};
  }
  return FoundShard{.layout = only->key.layout};
}

bool IsOffered(const Version& version, const std::string& form) {
  bool is_known = false;
  for (auto shard = version.shards.lower_bound(ShardKey{form, Digest()});
       shard != version.shards.end() && shard->first.form == form; ++shard) {
    if (!IsCompletable(shard->second)) return false;
    is_known = true;
  }
  return is_known;
}

}  // namespace

absl::StatusOr<FoundShard> FindShard(const RegistryState& state, const ShardQuery& query) {
  if (query.group.empty()) return OnlyShard(state, query);
  const Model* model = FindModel(state, query.key);
  if (model != nullptr) return LikeRank(state, *model, query);
  if (state.adopting) return TryAgain();
  return absl::NotFoundError(absl::StrCat("the server knows no model ", query.key.ToString()));
}

absl::StatusOr<FoundForm> FindForm(const RegistryState& state, const FormQuery& query) {
  const auto found = FindPublished(state, query.key, query.selector);
  if (!found.ok()) return found.status();
  const Version& version = **found;
  const bool offered = IsOffered(version, query.form);
  if (!offered && version.from_earlier_epoch && state.adopting) return TryAgain();
  if (!HasGroup(state, query.key, query.group)) {
    if (state.adopting) return TryAgain();
    return absl::FailedPreconditionError(
        absl::StrCat("group ", query.group, " has no rank in ", query.key.ToString()));
  }
  return FoundForm{version.info, offered};
}

bool HasGroup(const RegistryState& state, const ModelKey& key, const std::string& group) {
  const Model* model = FindModel(state, key);
  if (model == nullptr) return false;
  const auto found = model->groups.find(group);
  return found != model->groups.end() && !found->second.members.empty();
}

}  // namespace th::registry
