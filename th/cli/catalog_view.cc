#include "th/cli/catalog_view.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "th/command_line/quantity.h"
#include "th/command_line/text_table.h"
#include "th/protocol/buffer_role.h"
#include "th/protocol/messages.h"

namespace th {
namespace {

using nlohmann::json;

std::string StateOf(const CatalogVersion& version) {
  if (version.withdrawn) return "withdrawn";
  const bool lost = !version.lost_forms.empty();
  if (lost && version.replicas.empty()) return "LOST";
  if (!version.published) return "publishing";
  const std::string state = version.sealed ? "sealed" : "published";
  if (!lost) return state;
  return absl::StrCat(state, ", LOST in form ", absl::StrJoin(version.lost_forms, ", "));
}

std::string HeldPercent(const CatalogReplica& replica) {
  const uint64_t all = AllBytes(replica);
  if (all == 0) return "100 %";
  // Rounded down: 100 only when nothing is missing.
  return absl::StrCat(static_cast<uint64_t>(static_cast<double>(HeldBytes(replica)) * 100 / all),
                      " %");
}

std::string RoleOf(const CatalogReplica& replica) {
  return replica.publisher ? absl::StrCat(replica.state, ", publisher") : replica.state;
}

std::vector<std::string> Names(const std::vector<RankName>& ranks) {
  std::vector<std::string> names;
  names.reserve(ranks.size());
  for (const RankName& rank : ranks) names.push_back(rank.ToString());
  return names;
}

std::vector<std::string> Addresses(const CatalogRank& rank) {
  std::vector<std::string> addresses;
  for (const Endpoint& endpoint : rank.endpoints) {
    addresses.push_back(absl::StrCat(endpoint.transport, " ", endpoint.address));
  }
  return addresses;
}

// How the group's bytes came: "tcp (same_host: on another host)".
std::string OverTransports(const CatalogReplica& replica) {
  TransportsUsed used;
  for (const CatalogRank& rank : replica.ranks) used.Add(rank.transports);
  return used.ToString();
}

std::string Dash(std::string text) { return text.empty() ? "-" : std::move(text); }

void AddReplicaRow(const CatalogModel& model, const CatalogVersion* version,
                   const CatalogReplica* replica, TextTable* table) {
  std::vector<std::string> row = {model.key.run, model.key.model, "-", "-"};
  if (version != nullptr) {
    row[2] = version->info.ToString();
    row[3] = StateOf(*version);
    if (!version->pins.empty()) row[3] += ", pinned";
  }
  if (replica == nullptr) {
    row.insert(row.end(), {"nobody", "", "", "", "", "", ""});
  } else {
    row.insert(
        row.end(),
        {replica->group, replica->form, version == nullptr ? "idle" : RoleOf(*replica),
         absl::StrCat(replica->ranks.size()), version == nullptr ? "-" : HeldPercent(*replica),
         FormatBytes(AllBytes(*replica)), Dash(OverTransports(*replica))});
  }
  table->AddRow(std::move(row));
}

std::string RankTable(const CatalogReplica& replica) {
  TextTable table({{"RANK"},
                   {"SHARD"},
                   {"HELD", Align::kRight},
                   {"OF", Align::kRight},
                   {"FROM"},
                   {"OVER"},
                   {"READERS", Align::kRight},
                   {"ADDRESS"},
                   {"LOCATION"},
                   {"HEARD"}});
  for (const CatalogRank& rank : replica.ranks) {
    table.AddRow({rank.name.ToString(), rank.layout.ShortHex(), FormatBytes(rank.bytes_held),
                  FormatBytes(rank.bytes), Dash(absl::StrJoin(Names(rank.sources), ", ")),
                  Dash(rank.transports.ToString()), absl::StrCat(rank.readers),
                  Dash(absl::StrJoin(Addresses(rank), ", ")), Dash(rank.location.ToString()),
                  rank.connected
                      ? absl::StrFormat("%.1f s ago", absl::ToDoubleSeconds(rank.since_heard))
                      : "disconnected"});
  }
  return table.ToString();
}

// "" when it is published in place.
std::string DescribeSnapshots(const CatalogReplica& replica) {
  uint64_t bytes = 0;
  for (const CatalogRank& rank : replica.ranks) bytes += rank.snapshot_bytes;
  return bytes == 0 ? "" : absl::StrCat(", from snapshots of ", FormatBytes(bytes));
}

std::string DescribeReplica(const CatalogReplica& replica, absl::string_view state) {
  const std::string under_way =
      replica.event.empty()
          ? ""
          : absl::StrFormat(", %s for %.1f s%s", OperationKindName(replica.operation),
                            absl::ToDoubleSeconds(replica.operation_since),
                            EventSuffix(replica.event));
  return absl::StrCat("\n", replica.group, " (", state, "), buffer ", replica.buffer_name,
                      ", form ", replica.form, IsTemporary(replica.role) ? ", temporary" : "",
                      replica.role == BufferRole::kSiteCopy ? ", seeds its site" : "",
                      DescribeSnapshots(replica), under_way, "\n", RankTable(replica));
}

// "eval", "eval in form fp8 for another 2h".
std::string DescribePin(const CatalogPin& pin) {
  return absl::StrCat(pin.owner, pin.form.empty() ? "" : absl::StrCat(" in form ", pin.form),
                      pin.expires_in == absl::InfiniteDuration()
                          ? ""
                          : absl::StrCat(" for another ", absl::FormatDuration(absl::Trunc(
                                                              pin.expires_in, absl::Seconds(1)))));
}

std::string DescribePins(const CatalogVersion& version) {
  return absl::StrJoin(version.pins, ", ", [](std::string* text, const CatalogPin& pin) {
    text->append(DescribePin(pin));
  });
}

// "" without a policy.
std::string DescribePolicy(const CatalogModel& model) {
  std::vector<std::string> parts;
  if (model.keep_latest > 0) {
    parts.push_back(absl::StrCat(NewestVersionsAre(model.keep_latest), " retained"));
  }
  for (const auto& [form, count] : model.keep_latest_of_form) {
    parts.push_back(absl::StrCat("the ", count, " newest in form ", form));
  }
  return absl::StrJoin(parts, ", ");
}

std::string HowToRelease(const CatalogVersion& version, const CatalogPin& pin) {
  return absl::StrCat("  th release '#", version.info.sequence.ToString(), "' --owner ", pin.owner,
                      pin.form.empty() ? "" : absl::StrCat(" --form ", pin.form), "\n");
}

// The advice on a version that is retained and that nobody has.
std::string HintOnLost(const CatalogModel& model, const CatalogVersion& version) {
  const bool known = !version.lost_forms.front().empty();
  std::string text =
      known ? absl::StrCat("nobody holds it in form ", absl::StrJoin(version.lost_forms, ", "),
                           ": publish it again")
            : "nobody has come back with it since the server restarted: what is published again "
              "is another version";
  const std::string policy = DescribePolicy(model);
  if (!version.pins.empty() || !policy.empty()) {
    absl::StrAppend(&text, known || version.pins.empty()
                               ? ", or give it up:"
                               : ", to be pinned anew; or give this one up:");
  }
  text.push_back('\n');
  for (const CatalogPin& pin : version.pins) text += HowToRelease(version, pin);
  if (!policy.empty()) {
    absl::StrAppend(&text, "  th retain with a smaller number, or 0: ", policy, "\n");
  }
  return text;
}

json PassedOverToJson(const std::vector<PassedOver>& passed_over) {
  json listed = json::array();
  for (const PassedOver& one : passed_over) {
    listed.push_back(
        {{"transport", one.transport}, {"reason", one.reason}, {"sources", one.sources}});
  }
  return listed;
}

json RankToJson(const CatalogRank& rank) {
  json listed = {{"rank", rank.name.ToString()},
                 {"worker", rank.worker.value},
                 {"layout", rank.layout.ToHex()},
                 {"bytes", rank.bytes},
                 {"bytes_held", rank.bytes_held},
                 {"snapshot_bytes", rank.snapshot_bytes},
                 {"connected", rank.connected},
                 {"seconds_since_heard", absl::ToDoubleSeconds(rank.since_heard)},
                 {"readers", rank.readers},
                 {"sources", Names(rank.sources)},
                 {"endpoints", Addresses(rank)},
                 {"location", rank.location.ToString()},
                 {"stall_seconds", SecondsByPhaseName(rank.stall)},
                 {"transports", rank.transports.names},
                 {"passed_over", PassedOverToJson(rank.transports.passed_over)}};
  if (rank.leaves_in != absl::InfiniteDuration()) {
    listed["seconds_until_leave"] = absl::ToDoubleSeconds(rank.leaves_in);
  }
  return listed;
}

json ReplicaToJson(const CatalogReplica& replica) {
  json ranks = json::array();
  for (const CatalogRank& rank : replica.ranks) ranks.push_back(RankToJson(rank));
  json out = {{"group", replica.group},         {"buffer", replica.buffer_name},
              {"form", replica.form},           {"state", replica.state},
              {"publisher", replica.publisher}, {"role", std::string(BufferRoleKey(replica.role))},
              {"ranks", std::move(ranks)}};
  out.update(OperationToJson(replica));
  return out;
}

json PinToJson(const CatalogPin& pin) {
  json listed = {{"owner", pin.owner}, {"form", pin.form}};
  if (pin.expires_in != absl::InfiniteDuration()) {
    listed["seconds_until_expiry"] = absl::ToDoubleSeconds(pin.expires_in);
  }
  return listed;
}

json ModelToJson(const CatalogModel& model) {
  json versions = json::array(), idle = json::array();
  for (const CatalogVersion& version : model.versions) versions.push_back(ToJson(version));
  for (const CatalogReplica& replica : model.idle) idle.push_back(ReplicaToJson(replica));
  return {{"run", model.key.run},
          {"model", model.key.model},
          {"lineage", model.lineage.value},
          {"high_water", model.high_water.ToString()},
          {"keep_latest", model.keep_latest},
          {"keep_latest_of_form", model.keep_latest_of_form},
          {"versions", std::move(versions)},
          {"idle", std::move(idle)},
          {"totals", TotalsToJson(model.totals)}};
}

// True when the selector names the version. Versions are walked from the newest on; `before` counts
// down the published ones.
bool Names(const VersionSelector& selector, const CatalogVersion& version, uint32_t* before) {
  if (std::holds_alternative<LatestVersion>(selector)) {
    return version.published && !version.withdrawn && (*before)-- == 0;
  }
  if (const auto* label = std::get_if<VersionLabel>(&selector)) {
    return version.info.label == *label && !version.withdrawn;
  }
  return version.info.sequence == std::get<VersionSequence>(selector);
}

absl::Status NoSuchGroup(const CatalogModel& model, absl::string_view group) {
  return absl::NotFoundError(
      absl::StrCat(model.key.ToString(), " has no version or group \"", group, "\""));
}

}  // namespace

json OperationToJson(const CatalogReplica& replica) {
  if (replica.event.empty()) return json::object();
  return {{"operation", OperationKindName(replica.operation)},
          {"operation_seconds", absl::ToDoubleSeconds(replica.operation_since)},
          {"event", replica.event.ToString()}};
}

json TotalsToJson(const ModelTotals& totals) {
  json received = json::array(), failures = json::array();
  for (const ReceivedBytes& one : totals.fill.received) {
    received.push_back({{"transport", one.transport},
                        {"distance", std::string(DistanceName(one.distance))},
                        {"source", one.publisher ? "publisher" : "relay"},
                        {"bytes", one.bytes}});
  }
  for (const FailureCount& failure : totals.failures) {
    failures.push_back(
        {{"operation", OperationKindName(static_cast<OperationKind>(failure.kind))},
         {"cause", absl::StatusCodeToString(static_cast<absl::StatusCode>(failure.code))},
         {"count", failure.count}});
  }
  return {{"stall_seconds", SecondsByPhaseName(totals.stall)},
          {"received", std::move(received)},
          {"passed_over", PassedOverToJson(totals.fill.passed_over)},
          {"unchanged_bytes", totals.fill.unchanged_bytes},
          {"reread_bytes", totals.fill.reread_bytes},
          {"rerouted_bytes", totals.fill.rerouted_bytes},
          {"reroutes", totals.fill.reroutes},
          {"copies", {{"publisher", totals.copies_published}, {"relay", totals.copies_relayed}}},
          {"publishes", totals.publishes},
          {"moves", totals.moves},
          {"not_available", totals.not_available},
          {"drains", totals.drains},
          {"readers_cut", totals.readers_cut},
          {"sources_failed", totals.sources_failed},
          {"sources_suspected", totals.sources_suspected},
          {"offloads", totals.offloads},
          {"offloads_failed", totals.offloads_failed},
          {"leases_expired", totals.leases_expired},
          {"claims_refused", totals.claims_refused},
          {"failures", std::move(failures)}};
}

std::string CatalogTable(const Catalog& catalog) {
  TextTable table({{"RUN"},
                   {"MODEL"},
                   {"VERSION"},
                   {"STATE"},
                   {"GROUP"},
                   {"FORM"},
                   {"HOLDS"},
                   {"RANKS", Align::kRight},
                   {"HELD", Align::kRight},
                   {"BYTES", Align::kRight},
                   {"OVER"}});
  for (const CatalogModel& model : catalog.models) {
    for (const CatalogVersion& version : model.versions) {
      for (const CatalogReplica& replica : version.replicas) {
        AddReplicaRow(model, &version, &replica, &table);
      }
      if (version.replicas.empty()) AddReplicaRow(model, &version, nullptr, &table);
    }
    for (const CatalogReplica& replica : model.idle)
      AddReplicaRow(model, nullptr, &replica, &table);
  }
  const std::string text =
      table.empty() ? "nothing is published and nobody has joined\n" : table.ToString();
  if (!catalog.recovering) return text;
  return absl::StrCat(text,
                      "the server has restarted: ranks may still come back with what they hold\n");
}

size_t LimitVersions(size_t limit, Catalog& catalog) {
  size_t left_out = 0;
  for (CatalogModel& model : catalog.models) {
    if (model.versions.size() <= limit) continue;
    left_out += model.versions.size() - limit;
    model.versions.erase(model.versions.begin() + static_cast<std::ptrdiff_t>(limit),
                         model.versions.end());
  }
  return left_out;
}

std::string NewestVersionsAre(uint32_t count) {
  return count == 1 ? "the newest version is" : absl::StrCat("the ", count, " newest versions are");
}

absl::Status CheckNamed(const Catalog& catalog, const ModelKey& asked) {
  if (!catalog.models.empty() || (asked.run.empty() && asked.model.empty())) {
    return absl::OkStatus();
  }
  std::vector<std::string> named;
  if (!asked.run.empty()) named.push_back(absl::StrCat("run=", asked.run));
  if (!asked.model.empty()) named.push_back(absl::StrCat("model=", asked.model));
  return absl::NotFoundError(
      absl::StrCat("the server knows no ", absl::StrJoin(named, " "),
                   ": nothing is published there and nobody has joined; th list --all shows what "
                   "there is"));
}

json ToJson(const Catalog& catalog) {
  json models = json::array();
  for (const CatalogModel& model : catalog.models) models.push_back(ModelToJson(model));
  return {{"epoch", catalog.epoch.value},
          {"recovering", catalog.recovering},
          {"models", std::move(models)}};
}

json ToJson(const CatalogVersion& version) {
  json replicas = json::array(), shards = json::array(), pins = json::array();
  for (const CatalogPin& pin : version.pins) pins.push_back(PinToJson(pin));
  for (const CatalogReplica& replica : version.replicas) replicas.push_back(ReplicaToJson(replica));
  for (const SealedShard& shard : version.shards) {
    shards.push_back({{"layout", shard.layout.ToHex()}, {"root", shard.root.ToHex()}});
  }
  return {{"sequence", version.info.sequence.ToString()},
          {"label", version.info.label.text()},
          {"attributes", version.info.attributes},
          {"state", StateOf(version)},
          {"published", version.published},
          {"sealed", version.sealed},
          {"withdrawn", version.withdrawn},
          {"bytes", version.bytes},
          {"shards", std::move(shards)},
          {"pins", std::move(pins)},
          {"lost_forms", version.lost_forms},
          {"replicas", std::move(replicas)}};
}

std::string DescribeVersion(const CatalogModel& model, const CatalogVersion& version) {
  std::string text =
      absl::StrCat(model.key.ToString(), " version=", version.info.ToString(), "\n", "state    ",
                   StateOf(version), "\n", "bytes    ", FormatBytes(version.bytes), "\n");
  if (const std::string policy = DescribePolicy(model); !policy.empty()) {
    absl::StrAppend(&text, "policy   ", policy, "\n");
  }
  if (!version.pins.empty()) {
    absl::StrAppend(&text, "pinned   by ", DescribePins(version), "\n");
  }
  if (version.withdrawn) {
    absl::StrAppend(&text,
                    "a roll-back withdrew it, and nobody can move to it; th events tells when, as "
                    "long as the server remembers\n");
  }
  if (!version.lost_forms.empty()) text.append(HintOnLost(model, version));
  for (const auto& [key, value] : version.info.attributes) {
    absl::StrAppend(&text, "attribute ", key, "=", FitWidth(value, 80), "\n");
  }
  for (const SealedShard& shard : version.shards) {
    absl::StrAppend(&text, "shard    ", shard.layout.ShortHex(), " root ",
                    shard.root.empty() ? "not known yet" : shard.root.ToHex(), "\n");
  }
  for (const CatalogReplica& replica : version.replicas) {
    absl::StrAppend(&text, DescribeReplica(replica, RoleOf(replica)));
  }
  return text;
}

absl::StatusOr<const CatalogVersion*> SelectVersion(const CatalogModel& model,
                                                    const VersionSelector& selector) {
  const auto* latest = std::get_if<LatestVersion>(&selector);
  uint32_t before = latest == nullptr ? 0 : latest->back;
  for (const CatalogVersion& version : model.versions) {
    if (Names(selector, version, &before)) return &version;
  }
  // A label that only withdrawn versions have names the newest of them, whose state says so.
  const auto* label = std::get_if<VersionLabel>(&selector);
  for (const CatalogVersion& version : model.versions) {
    if (label != nullptr && version.info.label == *label) return &version;
  }
  return absl::NotFoundError(
      absl::StrCat(model.key.ToString(), " has no version ", ToString(selector)));
}

absl::StatusOr<std::string> DescribeGroup(const CatalogModel& model, absl::string_view group) {
  std::string text;
  for (const CatalogVersion& version : model.versions) {
    for (const CatalogReplica& replica : version.replicas) {
      if (replica.group != group) continue;
      absl::StrAppend(&text, DescribeReplica(replica, absl::StrCat(version.info.ToString(), ", ",
                                                                   RoleOf(replica))));
    }
  }
  for (const CatalogReplica& replica : model.idle) {
    if (replica.group == group) absl::StrAppend(&text, DescribeReplica(replica, "holds nothing"));
  }
  if (text.empty()) return NoSuchGroup(model, group);
  return text;
}

absl::StatusOr<json> GroupToJson(const CatalogModel& model, absl::string_view group) {
  json replicas = json::array();
  for (const CatalogVersion& version : model.versions) {
    for (const CatalogReplica& replica : version.replicas) {
      if (replica.group != group) continue;
      replicas.push_back(ReplicaToJson(replica));
      replicas.back()["version"] = version.info.ToString();
    }
  }
  for (const CatalogReplica& replica : model.idle) {
    if (replica.group == group) replicas.push_back(ReplicaToJson(replica));
  }
  if (replicas.empty()) return NoSuchGroup(model, group);
  return json{{"group", std::string(group)}, {"replicas", std::move(replicas)}};
}

}  // namespace th
