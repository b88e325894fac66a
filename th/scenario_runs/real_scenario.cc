#include "th/scenario_runs/real_scenario.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "th/status/status_macros.h"
#include "th/topology/location.h"
#include "th/weights/synthetic.h"

namespace th {
namespace {

absl::Status OnlySimulated(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("cannot be run for real on virtual hosts: ", what,
                                                 "; it can be simulated (th simulate)"));
}

absl::string_view EventName(ScenarioEvent::Kind kind) {
  using Kind = ScenarioEvent::Kind;
  if (kind == Kind::kCrash) return "crash";
  if (kind == Kind::kReplace) return "replace";
  if (kind == Kind::kPreempt) return "preempt";
  if (kind == Kind::kSlowSiteLink) return "slow_link";
  return "slow of one side";
}

absl::Status CheckEvents(const Scenario& scenario) {
  using Kind = ScenarioEvent::Kind;
  for (const ScenarioEvent& event : scenario.events) {
    const bool one_side = event.kind == Kind::kSlowHost && event.side != LinkSide::kBoth;
    if (one_side || event.kind == Kind::kCrash || event.kind == Kind::kReplace ||
        event.kind == Kind::kPreempt || event.kind == Kind::kSlowSiteLink) {
      return OnlySimulated(absl::StrCat("the event '", EventName(event.kind), "'"));
    }
  }
  return absl::OkStatus();
}

// Every place of every rank.
std::vector<const Location*> PlacesOf(const Scenario& scenario) {
  std::vector<const Location*> places;
  for (const ScenarioFamily& family : scenario.families) {
    for (const std::vector<Location>& group : family.places) {
      for (const Location& place : group) places.push_back(&place);
    }
  }
  return places;
}

absl::Status CheckSize(const Scenario& scenario, size_t ranks) {
  if (ranks > kMaxRealRanks) {
    return OnlySimulated(absl::StrCat(ranks, " ranks, more than ", kMaxRealRanks, " processes"));
  }
  if (scenario.shard_bytes * scenario.shards < kMinSyntheticBytes) {
    return OnlySimulated(absl::StrCat("a replica of ", scenario.shard_bytes * scenario.shards,
                                      " bytes, fewer than ", kMinSyntheticBytes));
  }
  if (ranks * scenario.shard_bytes > kMaxRealBytes) {
    return OnlySimulated(absl::StrCat(ranks, " ranks of ", scenario.shard_bytes,
                                      " bytes, more than ", kMaxRealBytes, " bytes together"));
  }
  if (scenario.end > kMaxRealTime) {
    return OnlySimulated(absl::StrCat("an end after ", absl::FormatDuration(scenario.end),
                                      ", more than ", absl::FormatDuration(kMaxRealTime)));
  }
  return absl::OkStatus();
}

absl::Status CheckFleet(const Scenario& scenario, const std::vector<const Location*>& places) {
  TH_RETURN_IF_ERROR(CheckSize(scenario, places.size()));
  const SchedulerLimits defaults;
  if (scenario.scheduler.max_sources != defaults.max_sources ||
      scenario.scheduler.max_chain != defaults.max_chain ||
      scenario.scheduler.max_readers_per_source != defaults.max_readers_per_source) {
    return OnlySimulated("'scheduler' other than the server's own limits");
  }
  if (scenario.fabric.rack_rate.has_value()) return OnlySimulated("'rack_uplinks'");
  for (const Location* place : places) {
    if (!place->nics.empty()) {
      return OnlySimulated(absl::StrCat("the host ", place->host, " has several adapters"));
    }
  }
  return CheckEvents(scenario);
}

absl::StatusOr<uint64_t> RateOf(const Scenario& scenario, const std::string& host) {
  const HostRates& rates = scenario.fabric.hosts.at(host);
  if (rates.up != rates.down) {
    return OnlySimulated(
        absl::StrCat("the host ", host, " has an uplink that is not as fast as ", "its downlink"));
  }
  const auto rate = static_cast<uint64_t>(rates.up);
  if (rate >= kSlowestLink && rate <= kFastestLink) return rate;
  return OnlySimulated(absl::StrCat("a link of ", rate, " bytes a second at the host ", host,
                                    ", not between 1Mbps and 10Gbps"));
}

}  // namespace

absl::StatusOr<RealPlan> PlanRealScenario(const Scenario& scenario) {
  const std::vector<const Location*> places = PlacesOf(scenario);
  TH_RETURN_IF_ERROR(CheckFleet(scenario, places));
  // The server's site is the first one.
  std::map<std::string, std::set<std::string>> hosts_of_site;
  hosts_of_site[scenario.server_site];
  for (const Location* place : places) hosts_of_site[place->site].insert(place->host);
  if (hosts_of_site.size() > 2) {
    return OnlySimulated(absl::StrCat(hosts_of_site.size(), " sites, more than two"));
  }
  RealPlan plan;
  plan.rates.push_back(kFastestLink);  // the server's: it moves no weights
  const auto add = [&](const std::set<std::string>& hosts) -> absl::Status {
    for (const std::string& host : hosts) {
      TH_ASSIGN_OR_RETURN(const uint64_t rate, RateOf(scenario, host));
      plan.host_of[host] = plan.rates.size();
      plan.rate_of[host] = rate;
      plan.rates.push_back(rate);
    }
    return absl::OkStatus();
  };
  TH_RETURN_IF_ERROR(add(hosts_of_site[scenario.server_site]));
  for (const auto& [site, hosts] : hosts_of_site) {
    if (site == scenario.server_site) continue;
    const SiteLink& link = scenario.fabric.site_links.at({scenario.server_site, site});
    plan.second_site = SecondSite{.first_host = plan.rates.size(),
                                  .rate = static_cast<uint64_t>(link.rate),
                                  .latency = link.latency};
    TH_RETURN_IF_ERROR(add(hosts));
  }
  return plan;
}

}  // namespace th
