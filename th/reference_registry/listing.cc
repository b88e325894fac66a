#include "th/reference_registry/listing.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "th/reference_registry/retention.h"
#include "th/registry_state/holders.h"

namespace th::registry {
namespace {

const char* NameOf(ReplicaPhase phase) {
  switch (phase) {
    case ReplicaPhase::kIdle:
      return "idle";
    case ReplicaPhase::kPublishing:
      return "publishing";
    case ReplicaPhase::kFilling:
      return "filling";
    case ReplicaPhase::kDraining:
      return "draining";
    case ReplicaPhase::kHolding:
      return "holding";
  }
  return "unknown";
}

// Replicas that hold are told apart: who published, who received, and who is about to go.
const char* StateName(const Replica& replica) {
  if (replica.phase != ReplicaPhase::kHolding) return NameOf(replica.phase);
  const bool leaving =
      std::any_of(replica.buffers.begin(), replica.buffers.end(),
                  [](const auto& entry) { return entry.second->worker->leaving(); });
  if (leaving) return "leaving";
  const bool published =
      std::all_of(replica.buffers.begin(), replica.buffers.end(), [](const auto& entry) {
        return entry.second->content.has_value() && entry.second->content->publisher;
      });
  return published ? "published" : "complete";
}

std::vector<RankName> SourceNames(const Buffer& buffer) {
  std::vector<RankName> names;
  if (buffer.shard == nullptr) return names;
  for (const BufferAddress& source : SourcesOf(*buffer.shard, buffer.address)) {
    auto found = buffer.shard->holders.find(source);
    if (found != buffer.shard->holders.end()) names.push_back(NameOf(*found->second));
  }
  return names;
}

// Progress is told in segments; all but the last are equally long.
uint64_t BytesHeld(const Buffer& buffer) {
  if (!buffer.content.has_value()) return 0;
  if (buffer.content->complete) return buffer.bytes;
  if (buffer.segment_count == 0) return 0;
  const double part = static_cast<double>(buffer.content->segments.count()) /
                      static_cast<double>(buffer.segment_count);
  return static_cast<uint64_t>(part * static_cast<double>(buffer.bytes));
}

bool IsPublisher(const Buffer& buffer) {
  return buffer.content.has_value() && buffer.content->publisher;
}

CatalogRank ListRank(const Buffer& buffer, absl::Time now) {
  const Worker& worker = *buffer.worker;
  CatalogRank listed{
      .name = worker.name,
      .worker = worker.id,
      .buffer_name = buffer.name,
      .location = worker.location,
      .endpoints = worker.endpoints,
      .layout = buffer.layout,
      .bytes = buffer.bytes,
      .bytes_held = BytesHeld(buffer),
      .connected = worker.connection.has_value(),
      .since_heard = now - worker.last_heard,
      .readers = buffer.shard == nullptr ? 0 : ReaderCount(*buffer.shard, buffer.address),
      .sources = SourceNames(buffer),
      .snapshot_bytes = IsPublisher(buffer) ? buffer.snapshot_bytes : 0,
      .leaves_in = std::max(worker.leaves_at - now, absl::ZeroDuration()),
      .stall = buffer.stall};
  if (buffer.content.has_value()) listed.transports = buffer.content->transports;
  return listed;
}

CatalogReplica ListReplica(const Replica& replica, absl::Time now) {
  CatalogReplica listed{.group = replica.group->name,
                        .buffer_name = replica.buffer_name,
                        .form = replica.form,
                        .role = replica.role,
                        .state = StateName(replica)};
  if (!replica.pending.empty()) {
    const Transaction& head = replica.pending.begin()->second;
    listed.event = head.event;
    listed.operation = head.kind();
    listed.operation_since = now - head.started;
  }
  for (const auto& [rank, buffer] : replica.buffers) {
    listed.publisher |= IsPublisher(*buffer);
    listed.ranks.push_back(ListRank(*buffer, now));
  }
  return listed;
}

// The bytes of one shard, as far as a holder or its layout tells them.
uint64_t BytesOf(const RegistryState& state, const Shard& shard) {
  if (!shard.holders.empty()) return shard.holders.begin()->second->bytes;
  const ShardLayout* layout = FindLayoutOf(state, shard.key.layout);
  return layout == nullptr ? 0 : layout->bytes();
}

std::vector<CatalogPin> PinsOf(const Model& model, VersionSequence version, absl::Time now) {
  std::vector<CatalogPin> pins;
  for (const DurablePin& pin : model.durable.pins) {
    if (pin.version != version) continue;
    pins.push_back({.owner = pin.owner,
                    .form = pin.form,
                    .expires_in = std::max(pin.expires_at - now, absl::ZeroDuration())});
  }
  return pins;
}

// The versions that were pinned before a restart and that nobody has announced since: their numbers
// are all that is known. None while ranks may come back.
std::set<VersionSequence> ForgottenPins(const RegistryState& state, const Model& model) {
  std::set<VersionSequence> forgotten;
  if (state.adopting) return forgotten;
  for (const DurablePin& pin : model.durable.pins) {
    if (!model.versions.contains(pin.version)) forgotten.insert(pin.version);
  }
  return forgotten;
}

void AddForgottenPins(const RegistryState& state, const Model& model, absl::Time now,
                      CatalogModel* listed) {
  for (const VersionSequence sequence : ForgottenPins(state, model)) {
    CatalogVersion& version = listed->versions.emplace_back();
    version.info.sequence = sequence;
    version.pins = PinsOf(model, sequence, now);
    version.lost_forms = {""};
  }
  std::sort(listed->versions.begin(), listed->versions.end(),
            [](const CatalogVersion& a, const CatalogVersion& b) {
              return a.info.sequence > b.info.sequence;
            });
}

CatalogVersion ListVersion(const RegistryState& state, const Version& version, absl::Time now) {
  CatalogVersion listed{.info = version.info,
                        .published = version.phase == VersionPhase::kPublished,
                        .sealed = IsSealed(version),
                        .withdrawn = version.phase == VersionPhase::kWithdrawn};
  for (const auto& [key, shard] : version.shards) {
    // The bytes of one form: others derive from it.
    if (key.form == version.shards.begin()->first.form) listed.bytes += BytesOf(state, shard);
    if (shard.root.has_value()) listed.shards.push_back({key.layout, *shard.root});
  }
  listed.pins = PinsOf(*version.model, version.info.sequence, now);
  listed.lost_forms = LostForms(state, version);
  return listed;
}

// Streams and staged copies are registered without memory while they are idle. A rank may hold what
// it has staged though its group is none any more, or have memory for a Stage that waits.
bool HasNoMemory(const Replica& replica) {
  if (replica.role == BufferRole::kStreaming) return true;
  const auto holds = [](const auto& entry) { return entry.second->content.has_value(); };
  return replica.role == BufferRole::kStaged && replica.pending.empty() &&
         std::none_of(replica.buffers.begin(), replica.buffers.end(), holds);
}

CatalogModel ListModel(const RegistryState& state, const Model& model, absl::Time now) {
  CatalogModel listed{.key = model.key,
                      .lineage = model.durable.lineage,
                      .high_water = model.durable.high_water,
                      .keep_latest = model.durable.keep_latest,
                      .keep_latest_of_form = model.durable.keep_latest_of_form,
                      .totals = model.totals};
  std::map<VersionSequence, std::vector<CatalogReplica>> replicas;
  for (const auto& [name, group] : model.groups) {
    for (const auto& [buffer_name, replica] : group.replicas) {
      const bool idle = replica.phase == ReplicaPhase::kIdle;
      if (idle && HasNoMemory(replica)) continue;
      auto& home = idle ? listed.idle : replicas[replica.version];
      home.push_back(ListReplica(replica, now));
    }
  }
  for (auto it = model.versions.rbegin(); it != model.versions.rend(); ++it) {
    listed.versions.push_back(ListVersion(state, it->second, now));
    listed.versions.back().replicas = std::move(replicas[it->first]);
  }
  AddForgottenPins(state, model, now, &listed);
  return listed;
}

void ListGroups(const Model& model, size_t most, ModelFigures& figures) {
  std::vector<VersionSequence> published;  // rising
  for (const auto& [sequence, version] : model.versions) {
    if (version.phase == VersionPhase::kPublished) published.push_back(sequence);
  }
  for (const auto& [name, group] : model.groups) {
    const auto newer = std::upper_bound(published.begin(), published.end(), group.came_to);
    const auto behind = static_cast<uint64_t>(published.end() - newer);
    figures.most_versions_behind = std::max(figures.most_versions_behind, behind);
    if (figures.groups.size() < most) {
      figures.groups.push_back({name, behind, group.published_at});
    } else {
      ++figures.groups_left_out;
    }
  }
}

}  // namespace

absl::string_view ReplicaPhaseName(const RegistryState& state, const ModelKey& key,
                                   const std::string& group, const std::string& buffer_name) {
  const Model* const model = FindModel(state, key);
  if (model == nullptr) return "";
  const auto found = model->groups.find(group);
  if (found == model->groups.end()) return "";
  const auto replica = found->second.replicas.find(buffer_name);
  return replica == found->second.replicas.end() ? "" : NameOf(replica->second.phase);
}

Catalog ListCatalog(const RegistryState& state, const std::string& run, const std::string& model,
                    absl::Time now) {
  Catalog catalog{.epoch = state.epoch, .recovering = state.adopting};
  for (const auto& [key, record] : state.models) {
    if (!run.empty() && key.run != run) continue;
    if (!model.empty() && key.model != model) continue;
    catalog.models.push_back(ListModel(state, record, now));
  }
  return catalog;
}

std::vector<ModelFigures> ListFigures(const RegistryState& state) {
  std::vector<ModelFigures> figures;
  figures.reserve(state.models.size());
  size_t groups_left = kMaxGroupFigures;
  for (const auto& [key, model] : state.models) {
    ModelFigures& one = figures.emplace_back(ModelFigures{.key = key,
                                                          .totals = model.totals,
                                                          .update_seconds = model.update_seconds,
                                                          .stall_seconds = model.stall_seconds});
    ListGroups(model, std::min(kMaxGroupFiguresOfModel, groups_left), one);
    groups_left -= one.groups.size();
    for (const auto& [sequence, version] : model.versions) {
      if (version.phase != VersionPhase::kWithdrawn) ++one.versions;
      one.retained_lost += LostForms(state, version).size();
    }
    one.retained_lost += ForgottenPins(state, model).size();
    const auto latest = model.versions.find(LatestOf(model));
    if (latest != model.versions.end()) {
      one.latest_lost = FormsWithoutHolder(state, latest->second).size();
    }
    one.replicas["idle"] = 0;
    for (const auto& [name, group] : model.groups) {
      for (const auto& [buffer_name, replica] : group.replicas) ++one.replicas[StateName(replica)];
    }
  }
  return figures;
}

}  // namespace th::registry
