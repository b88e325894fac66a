#include "th/reference_registry/roll_back.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/reference_registry/resolution.h"
#include "th/reference_registry/retention.h"
#include "th/reference_registry/transactions.h"
#include "th/registry_state/holders.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

absl::Status RolledBack(const Version& version, const VersionInfo& to) {
  return absl::AbortedError(absl::StrCat(version.info.ToString(),
                                         " was withdrawn by a roll-back; the newest version is ",
                                         to.ToString()));
}

void RememberRollBack(DurableModel& durable, VersionSequence to, const Group* caller) {
  durable.lineage = durable.lineage.Next();
  std::vector<DurableRollBack>& kept = durable.roll_backs;
  // An earlier one that let later versions live says nothing more.
  while (!kept.empty() && kept.back().to >= to) kept.pop_back();
  kept.push_back({durable.lineage, to});
  if (caller != nullptr) {
    kept.back().group = caller->name;
    kept.back().group_generation = caller->generation;
  }
  if (kept.size() <= kMaxRollBacksKept) return;
  // The two oldest become one that withdraws what either does, and perhaps more: never less.
  kept[1].to = kept[0].to;
  kept.erase(kept.begin());
}

// Publishing operations of the withdrawn past, and readers that fill withdrawn versions.
void EndOperations(Turn& turn, Model& model, VersionSequence to, const VersionInfo& target) {
  for (auto& [name, group] : model.groups) {
    for (auto& [buffer_name, replica] : group.replicas) {
      Transaction* head = HeadOf(replica);
      if (head == nullptr || !(head->is_publishing() || head->is_filling())) continue;
      const Version* version = FindVersion(model, head->version);
      if (version == nullptr || head->version <= to) continue;
      FailOperation(turn, replica, head->number, RolledBack(*version, target));
    }
  }
}

// True when the holder's rank hears of the roll-back now. A group that has rolled back itself knows
// what becomes of its publication. Any group's staged copies go, because nothing else ends them:
// their ranks would announce the version to a server that has lost the roll-back. A buffer that
// received the version keeps it until it moves.
bool HearsOfRollBack(const Buffer& holder, const Group* caller) {
  const bool is_staged =
      TH_MUTATE(kKeepStagedOfRolledBack, holder.replica->role == BufferRole::kStaged, false);
  if (is_staged) return holder.content->complete;
  return holder.content->publisher && holder.replica->group != caller;
}

void Withdraw(Turn& turn, Version& version, const VersionInfo& target, const Group* caller) {
  ++turn.state.counters.versions_withdrawn;
  version.phase = VersionPhase::kWithdrawn;
  UnindexLabel(version);
  for (auto& [key, shard] : version.shards) {
    for (auto& [address, holder] : shard.holders) {
      Reindex(turn, *holder);
      DropSource(turn, shard, address, /*was_whole=*/false);
      if (!HearsOfRollBack(*holder, caller)) continue;
      Send(turn, *holder->worker,
           PublicationRefused{.buffer = address.buffer,
                              .version = version.info.sequence,
                              .status = RolledBack(version, target)});
    }
  }
}

// True when the model was rolled back to `target` last and nothing has come since: another
// roll-back to it would withdraw nothing, and only send every worker into one more lineage.
bool IsBackAlready(const Model& model, VersionSequence target) {
  const DurableModel& durable = model.durable;
  if (durable.roll_backs.empty() || durable.roll_backs.back().to != target) return false;
  if (durable.roll_backs.back().lineage != durable.lineage || durable.high_water != target) {
    return false;
  }
  return std::all_of(model.versions.upper_bound(target), model.versions.end(),
                     [](const auto& one) { return one.second.phase == VersionPhase::kWithdrawn; });
}

}  // namespace

absl::StatusOr<const Version*> FindPublished(const RegistryState& state, const ModelKey& key,
                                             const VersionSelector& selector) {
  if (state.recovering) {
    return absl::UnavailableError("the server is recovering from a restart; try again in a moment");
  }
  const Model* model = FindModel(state, key);
  if (model == nullptr) {
    return absl::NotFoundError(absl::StrCat("the server knows no ", key.ToString(),
                                            ": nothing is published there, or it was forgotten"));
  }
  const Resolution resolution = ResolveSelector(*model, selector);
  if (resolution.version != nullptr) return resolution.version;
  std::string text =
      absl::StrCat(key.ToString(), ": ", DescribeNotAvailable(selector, resolution.reason));
  const Version* latest = ResolveSelector(*model, LatestVersion{}).version;
  if (latest != nullptr) absl::StrAppend(&text, "; the latest is ", latest->info.ToString());
  if (resolution.reason == NotAvailableReason::kWithdrawn) {
    return absl::FailedPreconditionError(text);
  }
  return absl::NotFoundError(text);
}

absl::Status RollBackModel::CanApply(const RegistryState& state) const {
  return FindPublished(state, key, command.to).status();
}

VersionInfo RollBackModel::Apply(Turn& turn) const {
  const VersionInfo target = (*FindPublished(turn.state, key, command.to))->info;
  Model& model = *FindModel(turn.state, key);
  // A rank that asks means its own group too, which goes on in the lineage that this begins.
  if (caller == nullptr && IsBackAlready(model, target.sequence)) return target;
  EndOperations(turn, model, target.sequence, target);
  std::vector<Version*> later;
  for (auto it = model.versions.upper_bound(target.sequence); it != model.versions.end(); ++it) {
    if (it->second.phase == VersionPhase::kPublished) later.push_back(&it->second);
  }
  for (Version* version : later) {
    TH_MUTATE(kKeepRolledBackVersions, Withdraw(turn, *version, target, caller),
              static_cast<void>(0));
  }
  std::erase_if(model.durable.pins,
                [&](const DurablePin& pin) { return pin.version > target.sequence; });
  ExpectExpiry(turn.state, model);
  RememberRollBack(model.durable, target.sequence, caller);
  model.durable.high_water = target.sequence;
  model.durable.high_water_label = target.label.text();
  Persist(turn, model);
  Note(turn, key, {EventKind::kRolledBack, EventId(), asked_by},
       absl::StrCat("to ", target.ToString(), ", lineage ", model.durable.lineage.value));
  ReportLatestWithoutHolder(turn, model, "was gone before the roll-back");
  return target;
}

}  // namespace th::registry
