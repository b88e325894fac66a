#include "th/simulator/scenarios/scenario.h"

#include <algorithm>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "th/simulator/scenarios/scenario_line.h"
#include "th/simulator/scenarios/scenario_whole.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

constexpr double kDefaultChecksumRate = 20e9;
constexpr absl::Duration kDefaultDrain = absl::Seconds(5);

struct PolicyName {
  ScenarioPolicy policy;
  absl::string_view name;
};
constexpr PolicyName kPolicyNames[] = {{ScenarioPolicy::kNearest, "nearest"},
                                       {ScenarioPolicy::kDirect, "direct"},
                                       {ScenarioPolicy::kChain, "chain"},
                                       {ScenarioPolicy::kRandom, "random"},
                                       {ScenarioPolicy::kBroadcast, "broadcast"},
                                       {ScenarioPolicy::kSnapshotBroadcast, "snapshot-broadcast"}};

// Reads a file from top to bottom: what a line names stands above it. Stops at the first error.
class ScenarioParser {
 public:
  ScenarioParser(const std::string& file, const ScenarioOverrides& overrides)
      : file_(file), overrides_(overrides) {}
  absl::StatusOr<Scenario> Parse(absl::string_view text);

 private:
  struct HostPlace {
    std::string name, site, rack;
    uint32_t nics = 1;
  };

  void Statement(ScenarioLine& line);
  void Let(ScenarioLine& line);
  void Site(ScenarioLine& line);
  void Link(ScenarioLine& line);
  void Latency(ScenarioLine& line);
  void Rack(ScenarioLine& line);
  void RackUplinks(ScenarioLine& line);
  void Hosts(ScenarioLine& line);
  void Weights(ScenarioLine& line);
  void Scheduler(ScenarioLine& line);
  void Server(ScenarioLine& line);
  void Group(ScenarioLine& line);
  void PlaceGroups(ScenarioLine& line, ScenarioFamily* family);
  void Train(ScenarioLine& line);
  void Update(ScenarioLine& line);
  void UpdateTimes(ScenarioLine& line, ScenarioUpdates* updates);
  void Event(ScenarioLine& line, bool repeated);
  void Action(ScenarioLine& line, ScenarioEvent* event);
  void CountEvents(ScenarioLine& line, const ScenarioEvent& event);
  void Join(ScenarioLine& line, ScenarioEvent* event);
  void Replace(ScenarioLine& line, ScenarioEvent* event);
  void TargetRanks(ScenarioLine& line, ScenarioEvent* event);
  void OnlyOnce(ScenarioLine& line, absl::string_view statement);

  std::string KnownSite(ScenarioLine& line, std::string site) const;
  std::string KnownHost(ScenarioLine& line) const;
  ScenarioFamily* KnownFamily(ScenarioLine& line);
  absl::Status CheckOverrides() const;
  absl::Status Wrong(absl::string_view reason) const {
    return absl::InvalidArgumentError(absl::StrCat(file_, ": ", reason));
  }

  const std::string file_;
  const ScenarioOverrides& overrides_;
  Scenario scenario_;
  std::set<std::string> once_;  // statements that may stand once and did
  std::set<std::string> sites_;
  std::map<std::string, std::string> racks_;                     // name to site
  std::map<std::string, std::vector<HostPlace>> host_families_;  // by name, in order
  std::set<std::string> host_names_;
  std::map<std::string, uint32_t> joining_;  // groups that events bring, by family
  std::vector<int> event_lines_;             // of scenario_.events
  uint64_t ranks_ = 0, events_counted_ = 0;
};

// ---- lines

absl::StatusOr<Scenario> ScenarioParser::Parse(absl::string_view text) {
  scenario_.name = file_;
  if (text.size() > kMaxScenarioBytes) {
    return Wrong(absl::StrCat("longer than ", kMaxScenarioBytes, " bytes"));
  }
  int number = 0;
  for (absl::string_view part : absl::StrSplit(text, '\n')) {
    ScenarioLine line(file_, ++number, part, scenario_.variables);
    if (line.blank()) continue;
    if (line.ok()) Statement(line);
    TH_RETURN_IF_ERROR(line.Finish());
  }
  TH_RETURN_IF_ERROR(CheckOverrides());
  TH_RETURN_IF_ERROR(CheckWhole(scenario_, event_lines_));
  return std::move(scenario_);
}

void ScenarioParser::Statement(ScenarioLine& line) {
  using Parse = void (ScenarioParser::*)(ScenarioLine&);
  static constexpr std::pair<absl::string_view, Parse> kStatements[] = {
      {"let", &ScenarioParser::Let},
      {"site", &ScenarioParser::Site},
      {"link", &ScenarioParser::Link},
      {"latency", &ScenarioParser::Latency},
      {"rack", &ScenarioParser::Rack},
      {"rack_uplinks", &ScenarioParser::RackUplinks},
      {"hosts", &ScenarioParser::Hosts},
      {"weights", &ScenarioParser::Weights},
      {"scheduler", &ScenarioParser::Scheduler},
      {"server", &ScenarioParser::Server},
      {"group", &ScenarioParser::Group},
      {"train", &ScenarioParser::Train},
      {"update", &ScenarioParser::Update}};
  const std::string statement = line.Word("the statement");
  for (const auto& [name, parse] : kStatements) {
    if (name == statement) return (this->*parse)(line);
  }
  if (statement == "at" || statement == "every") return Event(line, statement == "every");
  if (statement == "seed") {
    OnlyOnce(line, statement);
    scenario_.seed = line.CountWord("the seed", 1'000'000'000);
  } else if (statement == "end") {
    OnlyOnce(line, statement);
    scenario_.end = line.TimeWord("the end");
    if (scenario_.end <= absl::ZeroDuration() || scenario_.end > kMaxScenarioTime) {
      line.Fail(absl::StrCat("the end must lie within ", absl::FormatDuration(kMaxScenarioTime)));
    }
  } else {
    std::vector<absl::string_view> known = {"seed", "at", "every", "end"};
    for (const auto& [name, parse] : kStatements) known.push_back(name);
    std::sort(known.begin(), known.end());
    line.Fail(absl::StrCat("the statement '", statement.substr(0, 40),
                           "' is unknown; known: ", absl::StrJoin(known, ", ")));
  }
}

void ScenarioParser::OnlyOnce(ScenarioLine& line, absl::string_view statement) {
  const bool first = once_.emplace(statement).second;
  if (!first) line.Fail(absl::StrCat("'", statement, "' is given twice"));
}

void ScenarioParser::Let(ScenarioLine& line) {
  const std::map<std::string, std::string> values = line.AllFields();
  if (values.empty()) line.Fail("let what? name=value");
  for (const auto& [name, value] : values) {
    const auto outside = overrides_.find(name);
    const bool first =
        scenario_.variables.emplace(name, outside == overrides_.end() ? value : outside->second)
            .second;
    if (!first) line.Fail(absl::StrCat("'", name, "' is let twice"));
  }
}

// ---- the network

void ScenarioParser::Site(ScenarioLine& line) {
  const std::string name = line.Name("the site's name");
  if (!sites_.insert(name).second) line.Fail(absl::StrCat("the site '", name, "' is given twice"));
  if (sites_.size() > kMaxScenarioSites) {
    line.Fail(absl::StrCat("more than ", kMaxScenarioSites, " sites"));
  }
}

std::string ScenarioParser::KnownSite(ScenarioLine& line, std::string site) const {
  if (!sites_.contains(site)) line.Fail(absl::StrCat("there is no site '", site, "' above"));
  return site;
}

void ScenarioParser::Link(ScenarioLine& line) {
  const std::string from = KnownSite(line, line.Name("the first site"));
  const std::string to = KnownSite(line, line.Name("the second site"));
  const SiteLink link{line.Rate("rate"), line.Time("latency")};
  if (from == to) line.Fail("a link joins two sites");
  const bool first = scenario_.fabric.site_links.emplace(std::pair(from, to), link).second;
  scenario_.fabric.site_links.emplace(std::pair(to, from), link);
  if (!first) line.Fail(absl::StrCat("the link of '", from, "' and '", to, "' is given twice"));
}

void ScenarioParser::Latency(ScenarioLine& line) {
  OnlyOnce(line, "latency");
  FabricSpec& fabric = scenario_.fabric;
  fabric.same_host_latency = line.Time("same_host", fabric.same_host_latency);
  fabric.same_site_latency = line.Time("same_site", fabric.same_site_latency);
  scenario_.jitter = line.Time("jitter", absl::ZeroDuration());
}

void ScenarioParser::Rack(ScenarioLine& line) {
  const std::string name = line.Name("the rack's name");
  const std::string site = KnownSite(line, line.Text("site"));
  const bool first = racks_.emplace(name, site).second;
  if (!first) line.Fail(absl::StrCat("the rack '", name, "' is given twice"));
}

void ScenarioParser::RackUplinks(ScenarioLine& line) {
  OnlyOnce(line, "rack_uplinks");
  scenario_.fabric.rack_rate = line.Rate("rate");
}

void ScenarioParser::Hosts(ScenarioLine& line) {
  const std::string name = line.Name("the hosts' name");
  const uint32_t count = line.Count("count", kMaxScenarioHosts, 1);
  const bool has_rack = line.Has("rack");
  const std::string rack = line.Text("rack", "");
  if (has_rack && !racks_.contains(rack)) {
    return line.Fail(absl::StrCat("there is no rack '", rack, "' above"));
  }
  const std::string site = has_rack ? racks_[rack] : KnownSite(line, line.Text("site"));
  const uint32_t nics = line.Count("nics", kMaxNics, 1);
  const HostRates rates{line.Rate("up"), line.Rate("down"), line.Rate("inside")};
  if (host_names_.size() + count > kMaxScenarioHosts) {
    return line.Fail(absl::StrCat("more than ", kMaxScenarioHosts, " hosts"));
  }
  std::vector<HostPlace>& hosts = host_families_[name];
  if (!hosts.empty()) return line.Fail(absl::StrCat("the hosts '", name, "' are given twice"));
  for (uint32_t i = 1; i <= count; ++i) {
    const std::string host = count == 1 ? name : absl::StrCat(name, "-", i);
    if (!host_names_.insert(host).second) {
      return line.Fail(absl::StrCat("the host '", host, "' is given twice"));
    }
    hosts.push_back({host, site, rack, nics});
    scenario_.fabric.hosts[host] = rates;
  }
}

std::string ScenarioParser::KnownHost(ScenarioLine& line) const {
  std::string host = line.Name("the host's name");
  if (!host_names_.contains(host)) line.Fail(absl::StrCat("there is no host '", host, "' above"));
  return host;
}

// ---- what moves, and by which rules

void ScenarioParser::Weights(ScenarioLine& line) {
  OnlyOnce(line, "weights");
  scenario_.shard_bytes = line.Bytes("rank_bytes");
  scenario_.shards = line.Count("shards", kMaxScenarioRanks, 1);
  const uint64_t segment = line.Bytes("segment");
  scenario_.checksum_rate = line.Rate("checksum", kDefaultChecksumRate);
  if (line.Has("copy")) scenario_.copy_rate = line.Rate("copy");
  const uint64_t segments = (scenario_.shard_bytes + segment - 1) / segment;
  if (segments > kMaxScenarioSegments) {
    return line.Fail(absl::StrCat("a shard has ", segments, " segments, more than ",
                                  kMaxScenarioSegments, ": take larger ones"));
  }
  scenario_.segments = static_cast<uint32_t>(segments);
  scenario_.segment_bytes = scenario_.shard_bytes / segments;
  scenario_.shard_bytes = scenario_.segment_bytes * segments;
}

void ScenarioParser::Scheduler(ScenarioLine& line) {
  OnlyOnce(line, "scheduler");
  SchedulerLimits& limits = scenario_.scheduler;
  limits.max_sources = line.Count("max_sources", 16, limits.max_sources);
  limits.max_readers_per_source =
      line.Count("max_readers", kMaxScenarioRanks, limits.max_readers_per_source);
  limits.max_chain = line.Count("max_chain", kMaxScenarioRanks, limits.max_chain);
}

void ScenarioParser::Server(ScenarioLine& line) {
  OnlyOnce(line, "server");
  scenario_.server_site = KnownSite(line, line.Text("site"));
}

// ---- groups

void ScenarioParser::Group(ScenarioLine& line) {
  ScenarioFamily family;
  family.name = line.Name("the group's name");
  family.role = static_cast<GroupRole>(line.Choice("role", {"trainer", "rollout", "spot"}, {}));
  family.ranks = line.Count("ranks", kMaxScenarioRanks);
  const uint32_t count = line.Count("count", kMaxScenarioRanks, 1);
  family.copies = line.Count("copies", kMaxScenarioCopies, 0);
  ranks_ += uint64_t{count} * family.ranks;
  if (scenario_.shard_bytes == 0) return line.Fail("'weights' must stand above");
  if (ranks_ > kMaxScenarioRanks) {
    return line.Fail(absl::StrCat("more than ", kMaxScenarioRanks, " ranks"));
  }
  if (family.ranks % scenario_.shards != 0) {
    return line.Fail(absl::StrCat(family.ranks, " ranks are no whole number of replicas of ",
                                  scenario_.shards, " shards"));
  }
  for (const ScenarioFamily& other : scenario_.families) {
    if (other.name != family.name) continue;
    return line.Fail(absl::StrCat("the group '", family.name, "' is given twice"));
  }
  for (uint32_t i = 1; i <= count; ++i) {
    family.groups.push_back(count == 1 ? family.name : absl::StrCat(family.name, "-", i));
  }
  PlaceGroups(line, &family);
  scenario_.families.push_back(std::move(family));
}

// Ranks go onto the hosts in order, per_host on each; each has the next adapter of its host.
void ScenarioParser::PlaceGroups(ScenarioLine& line, ScenarioFamily* family) {
  const std::string on = line.Text("on");
  const uint32_t per_host = line.Count("per_host", kMaxScenarioRanks, 1);
  const auto hosts = host_families_.find(on);
  if (hosts == host_families_.end()) {
    return line.Fail(absl::StrCat("there are no hosts '", on, "' above"));
  }
  const uint64_t ranks = uint64_t{family->ranks} * family->groups.size();
  if (ranks > uint64_t{per_host} * hosts->second.size()) {
    return line.Fail(absl::StrCat(ranks, " ranks do not fit on ", hosts->second.size(),
                                  " hosts with ", per_host, " each"));
  }
  uint64_t placed = 0;
  for (size_t group = 0; group < family->groups.size(); ++group) {
    std::vector<Location>& places = family->places.emplace_back();
    for (uint32_t rank = 0; rank < family->ranks; ++rank, ++placed) {
      const HostPlace& host = hosts->second[placed / per_host];
      Location place;
      place.site = host.site;
      place.rack = host.rack;
      place.host = host.name;
      if (host.nics > 1) place.nics = {absl::StrCat("nic", placed % per_host % host.nics)};
      places.push_back(std::move(place));
    }
  }
}

ScenarioFamily* ScenarioParser::KnownFamily(ScenarioLine& line) {
  const std::string name = line.Name("the group's name");
  for (ScenarioFamily& family : scenario_.families) {
    if (family.name == name) return &family;
  }
  line.Fail(absl::StrCat("there is no group '", name, "' above"));
  return nullptr;
}

void ScenarioParser::Train(ScenarioLine& line) {
  OnlyOnce(line, "train");
  ScenarioTraining& training = scenario_.training;
  const ScenarioFamily* family = KnownFamily(line);
  if (family == nullptr) return;
  training.family = family->name;
  if (scenario_.server_site.empty()) scenario_.server_site = family->places[0][0].site;
  training.first = line.Time("first");
  training.steps = line.Count("steps", kMaxScenarioEvents, 1);
  training.step = line.Time("step", absl::Seconds(60));
  training.write = line.Time("write", absl::ZeroDuration());
  training.drain = line.Time("drain", kDefaultDrain);
  if (family->role != GroupRole::kTrainer || family->groups.size() != 1) {
    return line.Fail(absl::StrCat("'", family->name, "' is not one group with role=trainer"));
  }
  if (training.write > training.step) line.Fail("'write' is longer than 'step'");
  if (training.steps > 1 && !line.Has("step")) line.Fail("'steps' needs 'step': how long is one?");
  if (training.steps > 1 && training.step <= absl::ZeroDuration()) line.Fail("'step' is nothing");
}

void ScenarioParser::UpdateTimes(ScenarioLine& line, ScenarioUpdates* updates) {
  updates->after_publish = !line.Has("every");
  if (!updates->after_publish) {
    updates->every = line.Time("every");
    if (updates->every < absl::Milliseconds(1)) line.Fail("'every' is less than 1ms");
    return;
  }
  line.Choice("after", {"publish"}, {});
  updates->delay = line.Time("delay", absl::ZeroDuration());
  updates->stagger = line.Time("stagger", absl::ZeroDuration());
  updates->retry = line.Time("retry", updates->retry);
  if (updates->retry < absl::Milliseconds(1)) line.Fail("'retry' is less than 1ms");
}

void ScenarioParser::Update(ScenarioLine& line) {
  ScenarioFamily* family = KnownFamily(line);
  if (family == nullptr) return;
  ScenarioUpdates updates;
  updates.family = family->name;
  UpdateTimes(line, &updates);
  updates.when_seeding =
      static_cast<WhenSeeding>(1 + line.Choice("when_seeding", {"wait", "skip", "copy"}, 0));
  if (updates.when_seeding == WhenSeeding::kCopy && family->copies == 0) {
    line.Fail(
        absl::StrCat("'", family->name, "' has no memory for copies; give its group 'copies'"));
  }
  family->stages = line.Choice("stage", {"no", "yes"}, 0) == 1;
  if (family->stages && updates.when_seeding == WhenSeeding::kCopy) {
    line.Fail(
        "'when_seeding=copy' does nothing with 'stage=yes': what is staged is a copy; take skip");
  }
  if (family->role == GroupRole::kTrainer) line.Fail("a trainer publishes, it does not update");
  for (const ScenarioUpdates& other : scenario_.updates) {
    if (other.family == updates.family) line.Fail("the group's updates are given twice");
  }
  scenario_.updates.push_back(std::move(updates));
}

// ---- events

void ScenarioParser::Event(ScenarioLine& line, bool repeated) {
  ScenarioEvent event;
  const absl::Duration time = line.TimeWord("the time");
  event.at = time;
  event.until = kMaxScenarioTime;
  if (repeated) {
    event.every = time;
    event.at = line.Time("from", time);
    event.until = line.Time("until", kMaxScenarioTime);
    if (time < absl::Milliseconds(1)) return line.Fail("'every' less than 1ms");
    if (line.Has("from") && event.at > event.until) line.Fail("'from' is later than 'until'");
  }
  Action(line, &event);
  if (line.ok()) CountEvents(line, event);
  scenario_.events.push_back(std::move(event));
  event_lines_.push_back(line.number());
}

void ScenarioParser::CountEvents(ScenarioLine& line, const ScenarioEvent& event) {
  events_counted_ += 1;
  if (event.every.has_value() && event.until > event.at) {
    const absl::Duration most = scenario_.end > absl::ZeroDuration() ? scenario_.end : event.until;
    const absl::Duration lasts =
        std::max(std::min(event.until, most) - event.at, absl::ZeroDuration());
    events_counted_ += static_cast<uint64_t>(absl::FDivDuration(lasts, *event.every));
  }
  if (events_counted_ > kMaxScenarioEvents) {
    line.Fail(
        absl::StrCat("more than ", kMaxScenarioEvents, " events; give 'until', or 'end' above"));
  }
}

void ScenarioParser::Action(ScenarioLine& line, ScenarioEvent* event) {
  using Kind = ScenarioEvent::Kind;
  static constexpr Kind kKinds[] = {Kind::kJoin,     Kind::kUpdate,      Kind::kLeave,
                                    Kind::kPreempt,  Kind::kKill,        Kind::kCrash,
                                    Kind::kStop,     Kind::kReplace,     Kind::kCutHost,
                                    Kind::kSlowHost, Kind::kSlowSiteLink};
  event->kind =
      kKinds[line.Choice("the event", {"join", "update", "leave", "preempt", "kill", "crash",
                                       "stop", "replace", "cut", "slow", "slow_link"})];
  switch (event->kind) {
    case Kind::kJoin:
      return Join(line, event);
    case Kind::kUpdate:
    case Kind::kLeave:
    case Kind::kKill:
    case Kind::kCrash:
      return TargetRanks(line, event);
    case Kind::kPreempt:
      TargetRanks(line, event);
      event->lasting = line.Time("notice");
      if (event->lasting < absl::Milliseconds(1)) line.Fail("a 'notice' of less than 1ms");
      return;
    case Kind::kStop:
      TargetRanks(line, event);
      event->lasting = line.Time("for");
      return;
    case Kind::kReplace:
      return Replace(line, event);
    case Kind::kCutHost:
      event->target = KnownHost(line);
      event->lasting = line.Time("for");
      return;
    case Kind::kSlowHost:
      event->target = KnownHost(line);
      event->factor = line.Fraction("to");
      event->side = static_cast<LinkSide>(line.Choice("side", {"both", "up", "down"}, 0));
      event->lasting = line.Time("for", absl::ZeroDuration());
      return;
    case Kind::kSlowSiteLink:
      event->target = KnownSite(line, line.Name("the first site"));
      event->other_site = KnownSite(line, line.Name("the second site"));
      if (!scenario_.fabric.site_links.contains({event->target, event->other_site})) {
        line.Fail("the two sites have no link above");
      }
      event->factor = line.Fraction("to");
      event->lasting = line.Time("for", absl::ZeroDuration());
      return;
  }
}

void ScenarioParser::Join(ScenarioLine& line, ScenarioEvent* event) {
  ScenarioFamily* family = KnownFamily(line);
  event->groups = line.CountWord("the number of groups", kMaxScenarioRanks);
  if (family == nullptr) return;
  event->target = family->name;
  family->joins_later = true;
  uint32_t& joining = joining_[family->name];
  joining += event->groups;
  if (event->every.has_value()) return line.Fail("'join' happens 'at' a time");
  if (family->role == GroupRole::kTrainer) return line.Fail("the trainer is there from the start");
  if (joining > family->groups.size()) {
    line.Fail(absl::StrCat("'", family->name, "' has only ", family->groups.size(), " groups"));
  }
}

void ScenarioParser::Replace(ScenarioLine& line, ScenarioEvent* event) {
  const ScenarioFamily* family = KnownFamily(line);
  event->lasting = line.Time("after", absl::Seconds(1));
  if (family == nullptr) return;
  event->target = family->name;
  if (family->role == GroupRole::kTrainer) line.Fail("a trainer is not replaced");
}

// "rollout", "rollout-2" or "rollout-2/3".
void ScenarioParser::TargetRanks(ScenarioLine& line, ScenarioEvent* event) {
  const std::string target = line.Word("whom");
  const std::vector<std::string> parts = absl::StrSplit(target, absl::MaxSplits('/', 1));
  event->target = parts[0];
  for (const ScenarioFamily& family : scenario_.families) {
    const bool is_group =
        std::find(family.groups.begin(), family.groups.end(), parts[0]) != family.groups.end();
    if (!is_group && family.name != parts[0]) continue;
    if (event->kind == ScenarioEvent::Kind::kUpdate &&
        (family.role == GroupRole::kTrainer || parts.size() == 2)) {
      return line.Fail("groups of readers update, whole ones");
    }
    if (parts.size() == 1) return;
    uint32_t rank = 0;
    if (is_group && absl::SimpleAtoi(parts[1], &rank) && rank < family.ranks) {
      event->rank = rank;
      return;
    }
    return line.Fail(absl::StrCat("'", parts[0], "' has no rank '", parts[1].substr(0, 20), "'"));
  }
  line.Fail(absl::StrCat("there is no group '", parts[0].substr(0, 60), "' above"));
}

// ---- the whole file

absl::Status ScenarioParser::CheckOverrides() const {
  for (const auto& [name, value] : overrides_) {
    if (scenario_.variables.contains(name)) continue;
    std::vector<std::string> known;
    for (const auto& [known_name, known_value] : scenario_.variables) known.push_back(known_name);
    return Wrong(absl::StrCat("nothing is let be '", name, "' that could be set; known: ",
                              known.empty() ? "nothing" : absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view ScenarioPolicyName(ScenarioPolicy policy) {
  for (const PolicyName& known : kPolicyNames) {
    if (known.policy == policy) return known.name;
  }
  return "unknown";
}

absl::StatusOr<ScenarioPolicy> ParseScenarioPolicy(absl::string_view name) {
  for (const PolicyName& known : kPolicyNames) {
    if (known.name == name) return known.policy;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no policy '", name, "'; known: ",
                   absl::StrJoin(kPolicyNames, ", ", [](std::string* out, const PolicyName& known) {
                     absl::StrAppend(out, known.name);
                   })));
}

absl::string_view GroupRoleName(GroupRole role) {
  switch (role) {
    case GroupRole::kTrainer:
      return "trainer";
    case GroupRole::kRollout:
      return "rollout";
    case GroupRole::kSpot:
      return "spot";
  }
  return "unknown";
}

absl::StatusOr<Scenario> ParseScenario(const std::string& file, absl::string_view text,
                                       const ScenarioOverrides& overrides) {
  return ScenarioParser(file, overrides).Parse(text);
}

}  // namespace th
