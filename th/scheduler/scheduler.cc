#include "th/scheduler/scheduler.h"

#include <algorithm>
#include <compare>
#include <limits>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/mutation/mutation.h"

namespace th {
namespace {

// The order of candidates: members are compared one after another, and the least is the best.
struct Preference {
  bool leaving = false;
  bool crosses = false;  // over to another site
  bool at_limit = false;
  bool slower = false;
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

Distance DistanceForChoice(const SchedulerHolder& holder, const SchedulerDemand& demand) {
  return IsOwn(holder, demand.reader) ? Distance::kSameDevice
                                      : DistanceBetween(demand.location, *holder.location);
}

// Rule 5.
uint64_t LoadOf(const SchedulerHolder& holder, uint64_t shard_bytes) {
  const uint64_t unit = std::max<uint64_t>(shard_bytes / 4, 1);
  return holder.outstanding_bytes / unit + (holder.outstanding_bytes % unit == 0 ? 0 : 1);
}

// Rule 4. Within a host the two share their link.
bool HoldsBack(const Candidate& candidate, const SchedulerDemand& demand) {
  return candidate.distance > Distance::kSameHost &&
         IsSlower(candidate.holder->link_limit, demand.link_limit);
}

// The rules 3 to 7.
Preference PreferenceOfNearest(const Candidate& candidate, const SchedulerDemand& demand,
                               const SchedulerLimits& limits) {
  const SchedulerHolder& holder = *candidate.holder;
  const bool at_limit = holder.readers >= limits.max_readers_per_source ||
                        IsDeprioritized(limits, holder.publisher, candidate.chain);
  return {.leaving = TH_MUTATE(kGiveReadersToWhoLeaves, holder.leaving, false),
          .crosses = TH_MUTATE(kCrossRatherThanWaitInLine,
                               candidate.distance == Distance::kOtherSite, false),
          .at_limit = at_limit && !IsOwn(holder, demand.reader),
          .slower = TH_MUTATE(kReadFromSlowerLinks, HoldsBack(candidate, demand), false),
          .distance = TH_MUTATE(kIgnoreDistance, candidate.distance, Distance::kSameSite),
          .suspected = holder.suspected,
          .load = LoadOf(holder, demand.bytes),
          .publisher = holder.publisher,
          .unproved = holder.readers >= ReadersAllowed(limits, holder),
          .chain = candidate.chain,
          .buffer = holder.buffer};
}

// Those, or what a model of others goes by.
Preference PreferenceOf(const Candidate& candidate, const SchedulerDemand& demand,
                        const SchedulerLimits& limits) {
  const SchedulerHolder& holder = *candidate.holder;
  Preference preference{.suspected = holder.suspected, .buffer = holder.buffer};
  switch (limits.policy) {
    case SchedulerPolicy::kNearest:
      return PreferenceOfNearest(candidate, demand, limits);
    case SchedulerPolicy::kDirect:
      preference.load = holder.readers;
      break;
    case SchedulerPolicy::kChain:
      preference.load = holder.readers;
      preference.chain = std::numeric_limits<uint32_t>::max() - candidate.chain;
      break;
    case SchedulerPolicy::kRandom:
      preference.load = Mix(demand.reader, holder.buffer);
      break;
  }
  return preference;
}

std::vector<Candidate> Candidates(const SchedulerSnapshot& snapshot, const SchedulerDemand& demand,
                                  const SchedulerLimits& limits) {
  std::vector<Candidate> candidates;
  candidates.reserve(snapshot.holders.size());
  for (const SchedulerHolder& holder : snapshot.holders) {
    if (holder.buffer == demand.reader) continue;
    if (std::count(demand.excluded.begin(), demand.excluded.end(), holder.buffer) > 0) continue;
    if (limits.policy == SchedulerPolicy::kDirect && !holder.publisher) continue;
    Candidate candidate{.holder = &holder,
                        .distance = DistanceForChoice(holder, demand),
                        .chain = holder.chain,
                        .preference = {}};
    candidate.preference = PreferenceOf(candidate, demand, limits);
    candidates.push_back(candidate);
  }
  return candidates;
}

// As a heap has it: the best is the greatest.
bool IsWorse(const Candidate& a, const Candidate& b) { return b.preference < a.preference; }

// Rule 8. `chosen` is not empty, best first.
bool AddsAnUplink(const Candidate& candidate, const std::vector<Candidate>& chosen) {
  const SchedulerHolder& holder = *candidate.holder;
  const Candidate& first = chosen.front();
  if (candidate.preference.at_limit || candidate.preference.leaving) return false;
  if (holder.suspected || !holder.complete) return false;
  if (holder.outstanding_bytes > 0 || candidate.distance > first.distance) return false;
  if (holder.publisher && !first.holder->publisher) return false;
  if (candidate.distance <= Distance::kSameHost || holder.location->host.empty()) return false;
  return std::none_of(chosen.begin(), chosen.end(), [&](const Candidate& before) {
    return before.holder->location->host == holder.location->host;
  });
}

std::vector<SchedulerChoice> ToChoices(const std::vector<Candidate>& chosen) {
  std::vector<SchedulerChoice> choices;
  choices.reserve(chosen.size());
  for (const Candidate& candidate : chosen) {
    choices.push_back({.source = candidate.holder->buffer,
                       .distance = candidate.distance,
                       .at_limit = candidate.preference.at_limit || candidate.preference.leaving,
                       .slower = candidate.preference.slower,
                       .chain = candidate.chain});
  }
  return choices;
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

bool IsDeprioritized(const SchedulerLimits& limits, bool publisher, uint32_t chain) {
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
                                      const SchedulerDemand& demand, const SchedulerLimits& limits,
                                      FillPaths& paths) {
  std::vector<Candidate> left = Candidates(snapshot, demand, limits);
  std::make_heap(left.begin(), left.end(), IsWorse);
  const uint32_t wanted = limits.policy == SchedulerPolicy::kNearest ? limits.max_sources : 1;
  std::vector<Candidate> chosen;
  while (!left.empty() && chosen.size() < wanted) {
    std::pop_heap(left.begin(), left.end(), IsWorse);
    Candidate best = left.back();
    left.pop_back();
    if (!chosen.empty() && !AddsAnUplink(best, chosen)) continue;
    const std::optional<uint32_t> chain = paths.ChainAbove(best.holder->buffer);
    if (!chain.has_value()) continue;
    if (*chain == best.chain) {
      chosen.push_back(best);
      continue;
    }
    // The note was wrong: it is compared again by what is true.
    best.chain = *chain;
    best.preference = PreferenceOf(best, demand, limits);
    left.push_back(best);
    std::push_heap(left.begin(), left.end(), IsWorse);
  }
  return ToChoices(chosen);
}

}  // namespace th
