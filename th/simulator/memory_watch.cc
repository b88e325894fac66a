#include "th/simulator/memory_watch.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/simulator/cluster.h"
#include "th/simulator/simulated_worker.h"

namespace th {

MemoryWatch::Listed MemoryWatch::Temporaries() const {
  Listed listed;
  const auto add = [&](const std::vector<CatalogReplica>& replicas) {
    for (const CatalogReplica& replica : replicas) {
      if (!replica.temporary) continue;
      for (const CatalogRank& rank : replica.ranks) {
        listed.emplace(rank.name.ToString(), rank.buffer_name);
      }
    }
  };
  for (const CatalogModel& model : cluster_->server().List().models) {
    add(model.idle);
    for (const CatalogVersion& version : model.versions) add(version.replicas);
  }
  return listed;
}

bool MemoryWatch::CanBeListed(const SimulatedWorker& worker) const {
  const SimulatedServer& server = cluster_->server();
  return server.alive() && !server.stopped() && !worker.stopped() && worker.session().joined() &&
         cluster_->Connected(worker, server);
}

void MemoryWatch::LookAt(const SimulatedWorker& worker, const Listed& listed) {
  const ClusterSpec& spec = cluster_->spec();
  const std::vector<BufferId> copies = worker.copies();
  const uint64_t bytes = copies.size() * spec.segment_count * spec.segment_bytes;
  if (bytes > worker.spec().offload_limit_bytes) {
    cluster_->judge().Violated(absl::StrCat(worker.Name(), " holds ", bytes,
                                            " bytes of copies; its limit is ",
                                            worker.spec().offload_limit_bytes));
  }
  for (const BufferId copy : copies) {
    const bool is_listed = listed.contains({worker.Name(), worker.NameOf(copy)});
    if (is_listed || !CanBeListed(worker)) {
      unlisted_since_.erase({&worker, copy});
      continue;
    }
    const auto since = unlisted_since_.try_emplace({&worker, copy}, cluster_->now()).first;
    if (cluster_->now() - since->second < kMaxUnlisted) continue;
    since->second = absl::InfiniteFuture();  // told once
    cluster_->judge().Violated(absl::StrCat(worker.Name(), " holds ", worker.NameOf(copy),
                                            ", which the server has not listed for ",
                                            absl::FormatDuration(kMaxUnlisted)));
  }
}

void MemoryWatch::Look() {
  const auto& workers = cluster_->workers();
  const auto holds = [](const auto& worker) {
    return worker->alive() && !worker->ended().has_value() && !worker->copies().empty();
  };
  if (std::none_of(workers.begin(), workers.end(), holds)) return;
  const Listed listed = Temporaries();
  for (const auto& worker : workers) {
    if (holds(worker)) LookAt(*worker, listed);
  }
}

}  // namespace th
