#include "th/scheduler/scheduler.h"

#include <algorithm>
#include <compare>
#include <limits>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
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

// What candidates are compared by, most important first; the least is the best.
struct Preference {
  bool leaving = false;
  bool crosses = false;  // over to another site
  bool at_limit = false;
  Distance distance = Distance::kSameDevice;
  bool suspected = false;
  uint64_t load = 0;
  bool publisher = false;
  bool unproved = false;
  uint32_t chain = 0;
  BufferAddress buffer;
  friend auto operator<=>(const Preference&, const Preference&) = default;
};

struct Candidate {
  const SchedulerHolder* holder;
  Distance distance;
  uint32_t chain;
  Preference preference;
};

// A number that two addresses alone decide, and that looks like chance.
uint64_t Mix(const BufferAddress& reader, const BufferAddress& source) {
  uint64_t mixed = reader.worker.value * 0x9e3779b97f4a7c15 ^ source.worker.value;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;  // the finaliser of SplitMix64
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

// A copy in the reader's own process is as near as any can be.
bool IsOwn(const SchedulerHolder& holder, const BufferAddress& reader) {
  return holder.buffer.worker == reader.worker;
}

Distance DistanceTo(const SchedulerHolder& holder, const SchedulerDemand& demand) {
  return IsOwn(holder, demand.reader) ? Distance::kSameDevice
                                      : DistanceBetween(demand.location, holder.location);
}

// The rules 3 to 7, or those of a model.
Preference PreferenceOf(const Candidate& candidate, const BufferAddress& reader,
                        const SchedulerLimits& limits) {
  const SchedulerHolder& holder = *candidate.holder;
  Preference preference{.suspected = holder.suspected, .buffer = holder.buffer};
  switch (limits.policy) {
    case SchedulerPolicy::kNearest:
      preference.leaving = TH_MUTATE(kGiveReadersToWhoLeaves, holder.leaving, false);
      preference.crosses =
          TH_MUTATE(kCrossRatherThanWaitInLine, candidate.distance == Distance::kOtherSite, false);
      preference.at_limit =
          !IsOwn(holder, reader) && (holder.readers >= limits.max_readers_per_source ||
                                     ComesLast(limits, holder.publisher, candidate.chain));
      preference.distance = TH_MUTATE(kIgnoreDistance, candidate.distance, Distance::kSameSite);
      preference.load = holder.readers;
      preference.publisher = holder.publisher;
      preference.unproved = holder.readers >= ReadersAllowed(limits, holder);
      preference.chain = candidate.chain;
      break;
    case SchedulerPolicy::kDirect:
      preference.load = holder.readers;
      break;
    case SchedulerPolicy::kChain:
      preference.load = holder.readers;
      preference.chain = kUnfed - candidate.chain;
      break;
    case SchedulerPolicy::kRandom:
      preference.load = Mix(reader, holder.buffer);
      break;
  }
  return preference;
}

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
    if (limits.policy == SchedulerPolicy::kDirect && !holder.publisher) continue;
    Candidate candidate{.holder = &holder,
                        .distance = DistanceTo(holder, demand),
                        .chain = chains[i],
                        .preference = {}};
    candidate.preference = PreferenceOf(candidate, demand.reader, limits);
    candidates.push_back(candidate);
  }
  return candidates;
}

// Rule 8. `chosen` is not empty, best first.
bool AddsAnUplink(const Candidate& candidate, const std::vector<Candidate>& chosen) {
  const SchedulerHolder& holder = *candidate.holder;
  const Candidate& first = chosen.front();
  if (candidate.preference.at_limit || candidate.preference.leaving) return false;
  if (holder.suspected || !holder.complete) return false;
  if (holder.readers > 0 || candidate.distance > first.distance) return false;
  if (holder.publisher && !first.holder->publisher) return false;
  if (candidate.distance <= Distance::kSameHost || holder.location.host.empty()) return false;
  return std::none_of(chosen.begin(), chosen.end(), [&](const Candidate& before) {
    return before.holder->location.host == holder.location.host;
  });
}

}  // namespace

absl::string_view SchedulerPolicyName(SchedulerPolicy policy) {
  switch (policy) {
    case SchedulerPolicy::kNearest:
      return "nearest";
    case SchedulerPolicy::kDirect:
      return "direct";
    case SchedulerPolicy::kChain:
      return "chain";
    case SchedulerPolicy::kRandom:
      return "random";
  }
  return "unknown";
}

absl::StatusOr<SchedulerPolicy> ParseSchedulerPolicy(absl::string_view name) {
  for (const SchedulerPolicy policy : {SchedulerPolicy::kNearest, SchedulerPolicy::kDirect,
                                       SchedulerPolicy::kChain, SchedulerPolicy::kRandom}) {
    if (name == SchedulerPolicyName(policy)) return policy;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is no policy; give nearest, direct, chain or random"));
}

bool ComesLast(const SchedulerLimits& limits, bool publisher, uint32_t chain) {
  if (limits.policy == SchedulerPolicy::kDirect) return !publisher;
  return limits.policy == SchedulerPolicy::kNearest && chain >= limits.max_chain;
}

uint32_t ReadersAllowed(const SchedulerLimits& limits, const SchedulerHolder& holder) {
  if (holder.complete || holder.segments == 0 || 2 * holder.segments_held >= holder.segments) {
    return limits.max_readers_per_source;
  }
  const uint32_t proved = 4 * holder.segments_held >= holder.segments ? 2 : 1;
  return std::min(proved, limits.max_readers_per_source);
}

std::vector<SchedulerChoice> Schedule(const SchedulerSnapshot& snapshot,
                                      const SchedulerDemand& demand,
                                      const SchedulerLimits& limits) {
  std::vector<Candidate> candidates = Candidates(snapshot, demand, limits);
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.preference < b.preference; });
  const uint32_t wanted = limits.policy == SchedulerPolicy::kNearest ? limits.max_sources : 1;
  std::vector<Candidate> chosen;
  for (const Candidate& candidate : candidates) {
    if (chosen.size() >= wanted) break;
    if (chosen.empty() || AddsAnUplink(candidate, chosen)) chosen.push_back(candidate);
  }
  std::vector<SchedulerChoice> choices;
  choices.reserve(chosen.size());
  for (const Candidate& candidate : chosen) {
    choices.push_back({.source = candidate.holder->buffer,
                       .distance = candidate.distance,
                       .at_limit = candidate.preference.at_limit || candidate.preference.leaving});
  }
  return choices;
}

}  // namespace th
