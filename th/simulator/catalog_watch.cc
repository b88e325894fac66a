#include "th/simulator/catalog_watch.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "th/simulator/cluster.h"
#include "th/simulator/simulated_worker.h"

namespace th {

std::set<CatalogWatch::Held> CatalogWatch::Listed() const {
  std::set<Held> listed;
  for (const CatalogModel& model : cluster_->server().List().models) {
    for (const CatalogVersion& version : model.versions) {
      for (const CatalogReplica& replica : version.replicas) {
        if (replica.buffer_name != kSimulatedBufferName) continue;
        listed.insert({model.key, replica.group, version.info.sequence});
      }
    }
  }
  return listed;
}

std::set<CatalogWatch::Held> CatalogWatch::Served() const {
  std::map<Held, std::set<Rank>> holders;
  std::map<std::string, uint32_t> ranks_of;
  std::set<std::string> lying;
  for (const auto& worker : cluster_->workers()) {
    if (worker->says_falsely()) lying.insert(worker->spec().name.group);
    if (!worker->alive() || worker->ended().has_value()) continue;
    if (worker->state() != BufferState::kPublished || !cluster_->server().Hears(*worker)) continue;
    const VersionInfo version = worker->session().buffer_version(worker->buffer_id());
    if (version.sequence == VersionSequence()) continue;
    const RankName& name = worker->spec().name;
    holders[{worker->spec().key, name.group, version.sequence}].insert(name.rank);
    ranks_of[name.group] = worker->spec().ranks;
  }
  std::set<Held> served;
  for (const auto& [held, ranks] : holders) {
    if (ranks.size() == ranks_of[held.group] && !lying.contains(held.group)) served.insert(held);
  }
  return served;
}

void CatalogWatch::Look() {
  const std::set<Held> served = Served(), listed = Listed();
  std::erase_if(unlisted_since_, [&](const auto& entry) {
    return !served.contains(entry.first) || listed.contains(entry.first);
  });
  for (const Held& held : served) {
    if (listed.contains(held)) continue;
    const auto since = unlisted_since_.try_emplace(held, cluster_->now()).first;
    if (cluster_->now() - since->second < kMaxServedUnlisted) continue;
    since->second = absl::InfiniteFuture();  // told once
    cluster_->checker().Violated(absl::StrCat(held.group, " serves #", held.version.ToString(),
                                              ", and the server has not listed it there for ",
                                              absl::FormatDuration(kMaxServedUnlisted)));
  }
}

}  // namespace th
