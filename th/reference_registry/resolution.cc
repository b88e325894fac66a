#include "th/reference_registry/resolution.h"

#include <algorithm>
#include <optional>
#include <set>
#include <variant>

#include "absl/strings/str_cat.h"
#include "th/reference_registry/assignment.h"
#include "th/registry_state/floor.h"
#include "th/registry_state/holders.h"

namespace th::registry {
namespace {

// Layouts that are compared to find the closest one; comparing costs a pass over all tensors.
constexpr size_t kMaxLayoutsCompared = 16;

Resolution Published(const Version* version) {
  if (version == nullptr) return {.reason = NotAvailableReason::kNotPublished};
  switch (version->phase) {
    case VersionPhase::kPublished:
      return {.version = version};
    case VersionPhase::kWithdrawn:
      return {.reason = NotAvailableReason::kWithdrawn};
    case VersionPhase::kPublishing:
      return {.reason = NotAvailableReason::kNotPublished};
  }
  return {.reason = NotAvailableReason::kNotPublished};
}

Resolution ResolveLabel(const Model& model, const VersionLabel& label) {
  auto found = model.labels.find(label.text());
  if (found != model.labels.end()) return Published(FindVersion(model, found->second));
  const bool withdrawn =
      std::any_of(model.versions.begin(), model.versions.end(), [&](const auto& entry) {
        return entry.second.phase == VersionPhase::kWithdrawn && entry.second.info.label == label;
      });
  return {.reason = withdrawn ? NotAvailableReason::kWithdrawn : NotAvailableReason::kNotPublished};
}

Resolution ResolveSequence(const Model& model, VersionSequence sequence) {
  const Version* version = FindVersion(model, sequence);
  if (version != nullptr) return Published(version);
  // Forgotten, or from before a restart and never announced again.
  const bool was_there = sequence != VersionSequence() && sequence <= model.durable.high_water;
  return {.reason = was_there ? NotAvailableReason::kLost : NotAvailableReason::kNotPublished};
}

// `back` published versions before the latest.
Resolution ResolveLatest(const Model& model, uint32_t back) {
  auto version = model.versions.find(LatestOf(model));
  for (; version != model.versions.end() && back > 0; --back) {
    do {
      if (version == model.versions.begin()) return {.reason = NotAvailableReason::kNotPublished};
      --version;
    } while (version->second.phase != VersionPhase::kPublished);
  }
  return Published(version == model.versions.end() ? nullptr : &version->second);
}

bool HasForm(const Version& version, const std::string& form) {
  auto found = version.shards.lower_bound(ShardKey{form, Digest()});
  return found != version.shards.end() && found->first.form == form;
}

// Tensors of `reader` that `holder` has just so; both are in canonical order.
size_t TensorsInCommon(const ShardLayout& reader, const ShardLayout& holder) {
  size_t common = 0;
  auto other = holder.tensors().begin();
  for (const TensorSpec& tensor : reader.tensors()) {
    while (other != holder.tensors().end() && other->name < tensor.name) ++other;
    if (other != holder.tensors().end() && *other == tensor) ++common;
  }
  return common;
}

const ShardLayout* ClosestLayout(const RegistryState& state, const ShardLayout& reader,
                                 const Version& version, const std::string& form) {
  const ShardLayout* closest = nullptr;
  size_t most = 0;
  size_t compared = 0;
  for (const auto& [key, shard] : version.shards) {
    if (key.form != form || compared >= kMaxLayoutsCompared) continue;
    const ShardLayout* layout = FindLayoutOf(state, key.layout);
    if (layout == nullptr) continue;
    ++compared;
    const size_t common = TensorsInCommon(reader, *layout);
    if (closest != nullptr && common <= most) continue;
    closest = layout;
    most = common;
  }
  return closest;
}

// True when every rank of the replica's group has something of the version.
bool IsWhole(const Replica& replica, VersionSequence version) {
  return replica.buffers.size() == replica.group->ranks &&
         std::all_of(replica.buffers.begin(), replica.buffers.end(), [&](const auto& entry) {
           const std::optional<Content>& content = entry.second->content;
           return content.has_value() && content->version == version;
         });
}

}  // namespace

Resolution ResolveSelector(const Model& model, const VersionSelector& selector) {
  if (const auto* label = std::get_if<VersionLabel>(&selector)) return ResolveLabel(model, *label);
  if (const auto* sequence = std::get_if<VersionSequence>(&selector)) {
    return ResolveSequence(model, *sequence);
  }
  return ResolveLatest(model, std::get<LatestVersion>(selector).back);
}

Resolution ResolveFor(const Replica& replica, const VersionSelector& selector,
                      VersionSequence floor) {
  const Model& model = *replica.group->model;
  const Resolution resolved = ResolveSelector(model, selector);
  if (resolved.version == nullptr) return resolved;
  const Version& version = *resolved.version;
  if (IsBehindFloor(replica, version.info.sequence, floor)) {
    return {.reason = NotAvailableReason::kBehindFloor};
  }
  const NotAvailableReason gone =
      version.announced ? NotAvailableReason::kGone : NotAvailableReason::kLost;
  if (!HasForm(version, replica.form)) {
    return {.reason = version.announced ? NotAvailableReason::kNotPublished : gone};
  }
  for (const auto& [rank, buffer] : replica.buffers) {
    auto shard = version.shards.find(ShardKeyOf(*buffer));
    const bool has_it = buffer->content.has_value() && buffer->content->complete &&
                        buffer->content->version == version.info.sequence;
    if (has_it) continue;
    if (shard != version.shards.end() && !IsCompletable(shard->second)) return {.reason = gone};
  }
  return resolved;
}

std::vector<const Buffer*> RanksWithoutShard(const Replica& replica, const Version& version) {
  std::vector<const Buffer*> without;
  for (const auto& [rank, buffer] : replica.buffers) {
    if (!version.shards.contains(ShardKeyOf(*buffer))) without.push_back(buffer);
  }
  return without;
}

bool HasLostShards(const Version& version, const std::string& form) {
  if (!version.from_earlier_epoch) return false;
  std::set<ReplicaId> seen;
  for (const auto& [key, shard] : version.shards) {
    for (const auto& [address, holder] : shard.holders) {
      if (key.form != form || !seen.insert(holder->replica->id).second) continue;
      if (!IsWhole(*holder->replica, version.info.sequence)) return true;
    }
  }
  return seen.empty();
}

bool LacksUnknownShards(const Version& version, const std::string& form) {
  if (!version.from_earlier_epoch) return false;
  uint32_t shards = 0, most_ranks = 0;
  for (const auto& [key, shard] : version.shards) {
    if (key.form != form) continue;
    ++shards;
    for (const auto& [address, holder] : shard.holders) {
      if (IsWhole(*holder->replica, version.info.sequence)) return false;
      most_ranks = std::max(most_ranks, holder->replica->group->ranks);
    }
  }
  return shards < most_ranks;
}

absl::Status NobodyHoldsShardOf(const RegistryState& state, const Buffer& buffer,
                                const Version& version) {
  std::string text = absl::StrCat(
      "rank ", NameOf(buffer).ToString(), ": nobody holds its shard of ", version.info.ToString(),
      " in form ", buffer.form, " (layout ", buffer.layout.ShortHex(), ")");
  if (HasLostShards(version, buffer.form)) {
    return absl::UnavailableError(
        absl::StrCat(text,
                     ": a rank that held a part of the version has not come back since the "
                     "server restarted; update again when it has, or to a version that is "
                     "published anew"));
  }
  const ShardLayout* own = FindLayoutOf(state, buffer.layout);
  if (own != nullptr) {
    const ShardLayout* closest = ClosestLayout(state, *own, version, buffer.form);
    if (closest != nullptr) absl::StrAppend(&text, ": ", FirstDifference(*own, *closest));
  }
  absl::StrAppend(&text, "; readers must be sharded as the publisher is");
  return absl::InvalidArgumentError(text);
}

std::string DescribeNotAvailable(const VersionSelector& selector, NotAvailableReason reason) {
  const std::string name = ToString(selector);
  switch (reason) {
    case NotAvailableReason::kNotPublished:
      return absl::StrCat(name, " is not published");
    case NotAvailableReason::kGone:
      return absl::StrCat("nobody holds ", name, " any more");
    case NotAvailableReason::kLost:
      return absl::StrCat(name,
                          " is lost: nobody who would hold it has announced it to this server");
    case NotAvailableReason::kWithdrawn:
      return absl::StrCat(name, " was withdrawn by a roll-back");
    case NotAvailableReason::kBehindFloor:
      return absl::StrCat(name, " is older than what the caller has seen");
    case NotAvailableReason::kNone:
    case NotAvailableReason::kSeeding:
      break;
  }
  return absl::StrCat(name, " is not available");
}

}  // namespace th::registry
