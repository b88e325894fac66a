#include "th/client/shard_choice.h"

#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace th {
namespace {

constexpr size_t kGroupsNamed = 8;

// Those of the form: what holds a version first, the newest one before others.
std::vector<const CatalogReplica*> ReplicasOf(const CatalogModel& model, const std::string& form) {
  std::vector<const CatalogReplica*> replicas;
  const auto add = [&](const std::vector<CatalogReplica>& some, bool holding) {
    for (const CatalogReplica& replica : some) {
      const bool holds = replica.state == "published" || replica.state == "complete";
      if (replica.form == form && holds == holding) replicas.push_back(&replica);
    }
  };
  for (const CatalogVersion& version : model.versions) add(version.replicas, true);
  for (const CatalogVersion& version : model.versions) add(version.replicas, false);
  add(model.idle, false);
  return replicas;
}

std::string GroupsOf(const std::vector<const CatalogReplica*>& replicas) {
  std::set<std::string> groups;
  for (const CatalogReplica* replica : replicas) {
    if (groups.size() == kGroupsNamed) break;
    groups.insert(absl::StrCat(replica->group, " (", replica->ranks.size(),
                               replica->ranks.size() == 1 ? " rank)" : " ranks)"));
  }
  return groups.empty() ? "no group" : absl::StrJoin(groups, ", ");
}

absl::StatusOr<Digest> ShardOfRank(const CatalogModel& model, const ShardChoice& choice) {
  const auto replicas = ReplicasOf(model, choice.form);
  for (const CatalogReplica* replica : replicas) {
    for (const CatalogRank& rank : replica->ranks) {
      if (replica->group == choice.group && rank.name.rank.value == choice.rank) return rank.layout;
    }
  }
  return absl::NotFoundError(absl::StrCat("rank ", choice.group, "/", choice.rank,
                                          " has no buffer of form ", choice.form,
                                          "; these groups have: ", GroupsOf(replicas)));
}

absl::StatusOr<Digest> OnlyShard(const CatalogModel& model, const ShardChoice& choice) {
  std::set<Digest> layouts;
  for (const CatalogVersion& version : model.versions) {
    if (version.info.sequence != choice.version) continue;
    for (const CatalogReplica& replica : version.replicas) {
      if (replica.form != choice.form) continue;
      for (const CatalogRank& rank : replica.ranks) layouts.insert(rank.layout);
    }
  }
  const std::string groups = GroupsOf(ReplicasOf(model, choice.form));
  if (layouts.empty()) {
    return absl::NotFoundError(absl::StrCat("nobody holds version #", choice.version.ToString(),
                                            " in form ", choice.form,
                                            "; with buffers of it: ", groups));
  }
  if (layouts.size() == 1) return *layouts.begin();
  return absl::InvalidArgumentError(absl::StrCat(
      "version #", choice.version.ToString(), " has ", layouts.size(), " shards in form ",
      choice.form, "; say which one: a layout, or a rank of one of these groups: ", groups));
}

}  // namespace

absl::StatusOr<Digest> ChooseShard(const CatalogModel& model, const ShardChoice& choice) {
  return choice.group.empty() ? OnlyShard(model, choice) : ShardOfRank(model, choice);
}

}  // namespace th
