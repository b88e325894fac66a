#include "th/worker/version_shards.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

absl::StatusOr<const CatalogVersion*> FindVersion(const Catalog& catalog, const ModelKey& key,
                                                  VersionSequence sequence) {
  const CatalogModel* model = FindModel(catalog, key);
  if (model == nullptr) {
    return absl::NotFoundError(absl::StrCat("the server knows nothing of ", key.ToString()));
  }
  for (const CatalogVersion& version : model->versions) {
    if (version.info.sequence == sequence) return &version;
  }
  return absl::NotFoundError(
      absl::StrCat(key.ToString(), " has no version #", sequence.ToString()));
}

// Limits the versions that an error names.
constexpr size_t kMaxVersionsNamed = 8;

// A replica whose ranks have given notice is read until they leave.
bool IsWhole(const CatalogReplica& replica) {
  return replica.state == "published" || replica.state == "complete" || replica.state == "leaving";
}

bool IsConnected(const CatalogReplica& replica) {
  return std::all_of(replica.ranks.begin(), replica.ranks.end(),
                     [](const CatalogRank& rank) { return rank.connected; });
}

// The publisher's is there first and is what the others were filled from.
const CatalogReplica* BestReplica(const CatalogVersion& version, absl::string_view form) {
  const CatalogReplica* best = nullptr;
  for (const CatalogReplica& replica : version.replicas) {
    if (replica.form != form || !IsWhole(replica)) continue;
    if (best == nullptr || (replica.publisher && !best->publisher)) best = &replica;
  }
  return best;
}

std::string WholeForms(const CatalogVersion& version) {
  std::set<std::string> forms;
  for (const CatalogReplica& replica : version.replicas) {
    if (IsWhole(replica)) forms.insert(replica.form);
  }
  return forms.empty() ? "none" : absl::StrJoin(forms, ", ");
}

// The newest version that can be had in this form; null when there is none.
const CatalogVersion* NewestHeld(const Catalog& catalog, const ModelKey& key,
                                 absl::string_view form) {
  const CatalogModel* model = FindModel(catalog, key);
  if (model == nullptr) return nullptr;
  for (const CatalogVersion& version : model->versions) {
    const bool offered = version.published && !version.withdrawn;
    if (offered && BestReplica(version, form) != nullptr) return &version;
  }
  return nullptr;
}

// The advice on a version that nobody holds.
std::string WayOut(const Catalog& catalog, const ModelKey& key, const CatalogVersion& version,
                   absl::string_view form) {
  const std::string again =
      absl::StrCat("have version '", version.info.label.text(), "' published again in that form");
  const CatalogVersion* held = NewestHeld(catalog, key, form);
  if (held == nullptr) return absl::StrCat("no other version is held in it either: ", again);
  return absl::StrCat("the newest that is held in it is ", held->info.ToString(),
                      ": ask for it by its name (th pull --version), go back to it for all "
                      "(th rollback), or ",
                      again);
}

Digest RootOf(const CatalogVersion& version, const Digest& layout) {
  for (const SealedShard& shard : version.shards) {
    if (shard.layout == layout) return shard.root;
  }
  return {};
}

}  // namespace

absl::StatusOr<VersionShards> FindVersionShards(const Catalog& catalog, const ModelKey& key,
                                                VersionSequence sequence, absl::string_view form) {
  TH_ASSIGN_OR_RETURN(const CatalogVersion* version, FindVersion(catalog, key, sequence));
  const CatalogReplica* replica = BestReplica(*version, form);
  if (replica == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("nobody holds all of ", key.ToString(), " version=", version->info.ToString(),
                     " in the form \"", form, "\"; whole ones: ", WholeForms(*version), "; ",
                     WayOut(catalog, key, *version, form)));
  }
  VersionShards found{
      .version = version->info, .form = replica->form, .buffer_name = replica->buffer_name};
  for (const CatalogRank& rank : replica->ranks) {
    const auto same = [&](const SealedShard& shard) { return shard.layout == rank.layout; };
    if (std::any_of(found.shards.begin(), found.shards.end(), same)) continue;
    found.shards.push_back({.layout = rank.layout, .root = RootOf(*version, rank.layout)});
    found.bytes += rank.bytes;
  }
  return found;
}

VersionHolders FindHolders(const Catalog& catalog, const ModelKey& key, VersionSequence sequence,
                           absl::string_view form) {
  VersionHolders holders;
  const absl::StatusOr<const CatalogVersion*> version = FindVersion(catalog, key, sequence);
  if (!version.ok()) return holders;
  for (const CatalogReplica& replica : (*version)->replicas) {
    if (replica.form != form || !IsWhole(replica)) continue;
    if (!IsConnected(replica)) {
      holders.disconnected.push_back(replica.group);
      continue;
    }
    holders.connected.push_back(replica.group);
    for (const CatalogRank& rank : replica.ranks) {
      for (const Endpoint& endpoint : rank.endpoints) holders.transports.insert(endpoint.transport);
    }
  }
  return holders;
}

std::string NameHeldVersions(const Catalog& catalog, const ModelKey& key, absl::string_view form) {
  std::vector<std::string> held;
  if (const CatalogModel* model = FindModel(catalog, key); model != nullptr) {
    for (const CatalogVersion& version : model->versions) {
      const bool offered = version.published && !version.withdrawn;
      if (!offered || FindHolders(catalog, key, version.info.sequence, form).connected.empty()) {
        continue;
      }
      held.push_back(version.info.label.text());
    }
  }
  if (held.empty()) {
    return absl::StrCat("no version of the model is held by anybody in form ", form);
  }
  const size_t more = held.size() - std::min(held.size(), kMaxVersionsNamed);
  held.resize(held.size() - more);
  return absl::StrCat(held.size() == 1 && more == 0 ? "held is " : "held are ",
                      absl::StrJoin(held, ", "),
                      more == 0 ? "" : absl::StrCat(" and ", more, " older ones"));
}

}  // namespace th
