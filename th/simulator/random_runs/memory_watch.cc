#include "th/simulator/random_runs/memory_watch.h"

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
      if (!IsTemporary(replica.role)) continue;
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

void MemoryWatch::JudgeBytes(const SimulatedWorker& worker, const char* what, uint64_t bytes,
                             uint64_t limit) {
  if (bytes <= limit) return;
  cluster_->checker().Violated(
      absl::StrCat(worker.Name(), " holds ", bytes, " bytes of ", what, "; its limit is ", limit));
}

void MemoryWatch::JudgeLimits(const SimulatedWorker& worker) {
  const ClusterSpec& spec = cluster_->spec();
  const uint64_t copy_bytes = spec.segment_count * spec.segment_bytes;
  JudgeBytes(worker, "copies", worker.copies().size() * copy_bytes,
             worker.spec().offload_limit_bytes);
  JudgeBytes(worker, "what is staged", worker.staged_copies().size() * copy_bytes,
             worker.spec().staging_limit_bytes);
}

void MemoryWatch::JudgeListings(const SimulatedWorker& worker, const Listed& listed) {
  for (const BufferId copy : worker.copies()) JudgeListing(worker, copy, listed);
  for (const BufferId copy : worker.staged_copies()) JudgeListing(worker, copy, listed);
}

void MemoryWatch::JudgeListing(const SimulatedWorker& worker, BufferId copy, const Listed& listed) {
  const bool is_listed = listed.contains({worker.Name(), worker.NameOf(copy)});
  if (is_listed || !cluster_->server().Hears(worker)) {
    unlisted_since_.erase({&worker, copy});
    return;
  }
  const auto since = unlisted_since_.try_emplace({&worker, copy}, cluster_->now()).first;
  if (cluster_->now() - since->second < kMaxUnlisted) return;
  since->second = absl::InfiniteFuture();  // told once
  cluster_->checker().Violated(absl::StrCat(worker.Name(), " holds ", worker.NameOf(copy),
                                            ", which the server has not listed for ",
                                            absl::FormatDuration(kMaxUnlisted)));
}

void MemoryWatch::Look() {
  // One that was freed meanwhile may be made again under the same number.
  std::erase_if(unlisted_since_, [](const auto& entry) {
    const auto& [worker, buffer] = entry.first;
    return worker->FindBuffer(buffer) == nullptr;
  });
  std::vector<const SimulatedWorker*> with_copies;
  for (const auto& worker : cluster_->workers()) {
    const bool has_copies = worker->alive() && !worker->ended().has_value() &&
                            !(worker->copies().empty() && worker->staged_copies().empty());
    if (has_copies) with_copies.push_back(worker.get());
  }
  for (const SimulatedWorker* worker : with_copies) JudgeLimits(*worker);
  if (with_copies.empty() || cluster_->now() < next_listing_) return;
  next_listing_ = cluster_->now() + kBetweenListings;
  const Listed listed = Temporaries();
  for (const SimulatedWorker* worker : with_copies) JudgeListings(*worker, listed);
}

}  // namespace th
