#include "th/server/state_json.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/protocol/buffer_role.h"

namespace th {
namespace {

using Json = nlohmann::json;

// The value that all ranks share; empty where they differ.
template <typename Field>
std::string SharedValue(const CatalogReplica& replica, Field field) {
  const std::string* all = nullptr;
  for (const CatalogRank& rank : replica.ranks) {
    const std::string& own = field(rank);
    if (all != nullptr && *all != own) return "";
    all = &own;
  }
  return all == nullptr ? "" : *all;
}

std::vector<std::string> HostsOf(const CatalogReplica& replica) {
  std::vector<std::string> hosts;
  for (const CatalogRank& rank : replica.ranks) {
    if (hosts.size() == kMaxHostsInState) break;
    const Location& location = rank.location;
    const std::string& host = location.host_name.empty() ? location.host : location.host_name;
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  }
  return hosts;
}

// [["trainer", 4], ...]: each group that the replica fills from, and how many of its ranks do.
Json SourcesOf(const CatalogReplica& replica) {
  std::map<std::string, size_t> ranks;
  for (const CatalogRank& rank : replica.ranks) {
    std::set<std::string> groups;
    for (const RankName& source : rank.sources) groups.insert(source.group);
    for (const std::string& group : groups) ++ranks[group];
  }
  Json sources = Json::array();
  for (const auto& [group, count] : ranks) sources.push_back({group, count});
  return sources;
}

std::vector<std::string> TransportsOf(const CatalogReplica& replica) {
  TransportsUsed used;
  for (const CatalogRank& rank : replica.ranks) used.Add(rank.transports);
  return used.names;
}

// A null `version` means that the replica holds none.
Json ToJson(const CatalogReplica& replica, const VersionInfo* version) {
  uint64_t readers = 0;
  size_t connected = 0;
  for (const CatalogRank& rank : replica.ranks) {
    readers += rank.readers;
    connected += rank.connected ? 1 : 0;
  }
  const bool busy = !replica.event.empty();
  return {{"group", replica.group},
          {"buffer", replica.buffer_name},
          {"form", replica.form},
          {"role", BufferRoleKey(replica.role)},
          {"state", replica.state},
          {"version", version == nullptr ? "" : version->sequence.ToString()},
          {"label", version == nullptr ? "" : version->label.text()},
          {"publisher", replica.publisher},
          {"ranks", replica.ranks.size()},
          {"connected", connected},
          {"bytes", AllBytes(replica)},
          {"held", HeldBytes(replica)},
          {"site", SharedValue(
                       replica, [](const auto& rank) -> auto& { return rank.location.site; })},
          {"rack", SharedValue(
                       replica, [](const auto& rank) -> auto& { return rank.location.rack; })},
          {"hosts", HostsOf(replica)},
          {"readers", readers},
          {"sources", SourcesOf(replica)},
          {"transports", TransportsOf(replica)},
          {"operation", busy ? OperationKindName(replica.operation) : ""},
          {"operation_s", busy ? absl::ToDoubleSeconds(replica.operation_since) : 0},
          {"event", replica.event.ToString()}};
}

Json ToJson(const CatalogVersion& version) {
  return {{"number", version.info.sequence.ToString()},
          {"label", version.info.label.text()},
          {"bytes", version.bytes},
          {"published", version.published},
          {"withdrawn", version.withdrawn},
          {"lost", !version.lost_forms.empty()},
          {"pins", version.pins.size()}};
}

// The ranks with the longest stalls, the longest first. Ranks without stall are left out.
Json LongestStalls(const CatalogModel& model) {
  std::vector<std::pair<absl::Duration, const CatalogRank*>> stalled;
  const auto add = [&](const CatalogReplica& replica) {
    for (const CatalogRank& rank : replica.ranks) {
      const absl::Duration stall = SumOf(rank.stall);
      if (stall > absl::ZeroDuration()) stalled.emplace_back(stall, &rank);
    }
  };
  for (const CatalogVersion& version : model.versions) {
    for (const CatalogReplica& replica : version.replicas) add(replica);
  }
  for (const CatalogReplica& replica : model.idle) add(replica);
  const auto end = stalled.begin() + std::min(stalled.size(), kMaxStalledRanksInState);
  std::partial_sort(stalled.begin(), end, stalled.end(),
                    [](const auto& a, const auto& b) { return a.first > b.first; });
  Json listed = Json::array();
  for (auto it = stalled.begin(); it != end; ++it) {
    const CatalogRank& rank = *it->second;
    listed.push_back({{"rank", rank.name.ToString()},
                      {"buffer", rank.buffer_name},
                      {"stall_s", SecondsByPhaseName(rank.stall)}});
  }
  return listed;
}

// `room` is the number of replicas that may still be listed; this lowers it.
Json ToJson(const CatalogModel& model, size_t& room) {
  Json versions = Json::array(), replicas = Json::array();
  size_t left_out = 0;
  const auto add = [&](const CatalogReplica& replica, const VersionInfo* version) {
    if (room == 0) {
      ++left_out;
    } else {
      --room;
      replicas.push_back(ToJson(replica, version));
    }
  };
  for (const CatalogVersion& version : model.versions) {
    if (versions.size() < kMaxVersionsInState) versions.push_back(ToJson(version));
    for (const CatalogReplica& replica : version.replicas) add(replica, &version.info);
  }
  for (const CatalogReplica& replica : model.idle) add(replica, nullptr);
  return {{"run", model.key.run},
          {"model", model.key.model},
          {"keep_latest", model.keep_latest},
          {"left_out", left_out},
          {"versions", std::move(versions)},
          {"replicas", std::move(replicas)},
          {"stall_s", SecondsByPhaseName(model.totals.stall)},
          {"longest_stalls", LongestStalls(model)},
          {"received_bytes", model.totals.bytes_received()},
          {"copies_from_publisher", model.totals.copies_published}};
}

bool HasReplicas(const CatalogModel* model) {
  return !model->idle.empty() ||
         std::any_of(model->versions.begin(), model->versions.end(),
                     [](const CatalogVersion& version) { return !version.replicas.empty(); });
}

// At most kMaxModelsInState, those with replicas first.
std::vector<const CatalogModel*> ModelsToList(const Catalog& catalog) {
  std::vector<const CatalogModel*> listed;
  for (const CatalogModel& model : catalog.models) listed.push_back(&model);
  std::stable_partition(listed.begin(), listed.end(), HasReplicas);
  listed.resize(std::min(listed.size(), kMaxModelsInState));
  return listed;
}

Json ToJson(const RecentEvent& event) {
  return {{"n", event.number},
          {"time", EventTimeText(event.at)},
          {"kind", EventKindName(event.kind)},
          {"id", event.id.ToString()},
          {"run", event.key.run},
          {"model", event.key.model},
          {"who", event.who},
          {"what", event.what}};
}

}  // namespace

std::string RenderStateJson(const StatusSnapshot& snapshot) {
  Json models = Json::array(), events = Json::array();
  size_t room = kMaxReplicasInState;
  const std::vector<const CatalogModel*> listed = ModelsToList(snapshot.catalog);
  for (const CatalogModel* model : listed) models.push_back(ToJson(*model, room));
  for (const RecentEvent& event : snapshot.events.events) events.push_back(ToJson(event));
  const Json state = {{"server",
                       {{"address", snapshot.address},
                        {"version", snapshot.version},
                        {"epoch", snapshot.epoch.value},
                        {"uptime_s", absl::ToDoubleSeconds(snapshot.uptime)},
                        {"time", EventTimeText(snapshot.wall)},
                        {"workers", snapshot.workers},
                        {"models_left_out", snapshot.catalog.models.size() - listed.size()},
                        {"recovering", snapshot.catalog.recovering}}},
                      {"models", std::move(models)},
                      {"events", std::move(events)}};
  // A peer's bytes that are no UTF-8 must not end the server.
  return state.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace th
