#include "th/scheduler/scheduler.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "tools/mutation/mutation.h"

namespace th {
namespace {

// Hops up to a complete holder, when no path leads there.
constexpr uint32_t kUnfed = std::numeric_limits<uint32_t>::max();

// The holders as a graph: an edge leads from a source down to each reader that fills from it.
class FillGraph {
 public:
  explicit FillGraph(const SchedulerSnapshot& snapshot) : holders_(snapshot.holders) {
    index_.reserve(holders_.size());
    for (size_t i = 0; i < holders_.size(); ++i) index_.emplace(holders_[i].buffer, i);
    readers_.resize(holders_.size());
    for (size_t i = 0; i < holders_.size(); ++i) {
      for (const BufferAddress& source : holders_[i].sources) {
        if (auto found = index_.find(source); found != index_.end()) {
          readers_[found->second].push_back(i);
        }
      }
    }
  }

  // Which holders fill from `reader`, directly or through others; `reader` itself too.
  std::vector<bool> DownstreamOf(const BufferAddress& reader) const {
    std::vector<bool> downstream(holders_.size(), false);
    std::vector<size_t> frontier;
    const auto visit = [&](size_t i) {
      if (downstream[i]) return;
      downstream[i] = true;
      frontier.push_back(i);
    };
    if (auto found = index_.find(reader); found != index_.end()) visit(found->second);
    // A reader that holds nothing yet may be named as a source all the same.
    for (size_t i = 0; i < holders_.size(); ++i) {
      if (std::count(holders_[i].sources.begin(), holders_[i].sources.end(), reader) > 0) visit(i);
    }
    while (!frontier.empty()) {
      const size_t next = frontier.back();
      frontier.pop_back();
      for (size_t below : readers_[next]) visit(below);
    }
    return downstream;
  }

  // The longest chain of fills above each holder: 0 for complete ones, kUnfed where no chain ends
  // in a complete one. Holders on a cycle are never reached, so they count as unfed.
  std::vector<uint32_t> ChainLengths() const {
    std::vector<uint32_t> chain(holders_.size(), kUnfed);
    std::vector<size_t> waiting_for = SourceCounts();
    std::vector<size_t> ready;
    for (size_t i = 0; i < holders_.size(); ++i) {
      if (holders_[i].complete) chain[i] = 0;
      if (waiting_for[i] == 0) ready.push_back(i);
    }
    while (!ready.empty()) {
      const size_t above = ready.back();
      ready.pop_back();
      for (size_t below : readers_[above]) {
        if (!holders_[below].complete) chain[below] = Longer(chain[below], chain[above]);
        if (--waiting_for[below] == 0) ready.push_back(below);
      }
    }
    return chain;
  }

 private:
  // Sources that are holders; none of a complete holder, which needs nobody.
  std::vector<size_t> SourceCounts() const {
    std::vector<size_t> counts(holders_.size(), 0);
    for (const std::vector<size_t>& below : readers_) {
      for (size_t reader : below) ++counts[reader];
    }
    return counts;
  }

  static uint32_t Longer(uint32_t known, uint32_t above) {
    if (above == kUnfed) return known;
    return known == kUnfed ? above + 1 : std::max(known, above + 1);
  }

  const std::vector<SchedulerHolder>& holders_;  // the snapshot's, which outlives this
  absl::flat_hash_map<BufferAddress, size_t> index_;
  std::vector<std::vector<size_t>> readers_;
};

struct Candidate {
  const SchedulerHolder* holder;
  Distance distance;
  bool at_limit;
  uint32_t chain;

  bool last_resort() const { return at_limit || holder->suspected; }
  // The rules 3 to 7, most important first.
  auto Key() const {
    return std::tuple(at_limit, TH_MUTATE(kIgnoreDistance, distance, Distance::kSameSite),
                      holder->suspected, holder->readers, holder->publisher, chain, holder->buffer);
  }
};

std::vector<Candidate> Candidates(const SchedulerSnapshot& snapshot, const SchedulerDemand& demand,
                                  const SchedulerLimits& limits) {
  const FillGraph graph(snapshot);
  const std::vector<bool> downstream = graph.DownstreamOf(demand.reader);
  const std::vector<uint32_t> chains = graph.ChainLengths();
  const absl::flat_hash_set<BufferAddress> excluded(demand.excluded.begin(), demand.excluded.end());
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < snapshot.holders.size(); ++i) {
    const SchedulerHolder& holder = snapshot.holders[i];
    const bool cycle = TH_MUTATE(kAllowCycles, downstream[i], false);
    if (cycle || holder.buffer == demand.reader) continue;
    if (!holder.available || excluded.contains(holder.buffer) || chains[i] == kUnfed) continue;
    const bool at_limit =
        holder.readers >= limits.max_readers_per_source || chains[i] >= limits.max_chain;
    candidates.push_back({.holder = &holder,
                          .distance = DistanceBetween(demand.location, holder.location),
                          .at_limit = at_limit,
                          .chain = chains[i]});
  }
  return candidates;
}

}  // namespace

std::vector<SchedulerChoice> Schedule(const SchedulerSnapshot& snapshot,
                                      const SchedulerDemand& demand,
                                      const SchedulerLimits& limits) {
  std::vector<Candidate> candidates = Candidates(snapshot, demand, limits);
  const size_t wanted = std::min<size_t>(limits.max_sources, candidates.size());
  std::partial_sort(candidates.begin(), candidates.begin() + wanted, candidates.end(),
                    [](const Candidate& a, const Candidate& b) { return a.Key() < b.Key(); });
  std::vector<SchedulerChoice> choices;
  for (size_t i = 0; i < wanted; ++i) {
    if (i > 0 && candidates[i].last_resort()) continue;
    choices.push_back({candidates[i].holder->buffer, candidates[i].distance});
  }
  return choices;
}

}  // namespace th
