#include "th/c_interface/json_text.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "th/text/utf8.h"

namespace th {
namespace {

using Json = nlohmann::ordered_json;

std::string Text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json ToJson(const VersionInfo& version) {
  if (version.sequence == VersionSequence() && version.label.empty()) return nullptr;
  Json json;
  json["sequence"] = version.sequence.ToString();
  json["label"] = version.label.text();
  json["lineage"] = version.lineage.value;
  json["attributes"] = Json::object();
  for (const auto& [key, value] : version.attributes) json["attributes"][key] = value;
  return json;
}

const char* OutcomeName(UpdateOutcome outcome) {
  switch (outcome) {
    case UpdateOutcome::kNone:
      return "none";
    case UpdateOutcome::kMoved:
      return "moved";
    case UpdateOutcome::kAlreadyThere:
      return "already_there";
    case UpdateOutcome::kNotAvailable:
      return "not_available";
  }
  return "none";
}

const char* ReasonName(NotAvailableReason reason) {
  switch (reason) {
    case NotAvailableReason::kNone:
      return "";
    case NotAvailableReason::kNotPublished:
      return "not_published";
    case NotAvailableReason::kGone:
      return "gone";
    case NotAvailableReason::kLost:
      return "lost";
    case NotAvailableReason::kWithdrawn:
      return "withdrawn";
    case NotAvailableReason::kSeeding:
      return "seeding";
    case NotAvailableReason::kBehindFloor:
      return "behind_floor";
  }
  return "";
}

const char* WhatName(ReaderReport::What what) {
  switch (what) {
    case ReaderReport::What::kAdmitted:
      return "admitted";
    case ReaderReport::What::kRefused:
      return "refused";
    case ReaderReport::What::kReleased:
      return "released";
  }
  return "";
}

Json ToJson(const SourceShare& share) {
  return {{"name", share.name},           {"peer", share.peer},
          {"transport", share.transport}, {"passed_over", share.passed_over},
          {"bytes", share.bytes},         {"active_seconds", absl::ToDoubleSeconds(share.active)},
          {"failure", share.failure}};
}

Json ToJson(const CatalogRank& rank) {
  Json json = {{"name", rank.name.ToString()},
               {"worker", rank.worker.value},
               {"buffer_name", rank.buffer_name},
               {"location", rank.location.ToString()},
               {"layout", rank.layout.ToHex()},
               {"bytes", rank.bytes},
               {"bytes_held", rank.bytes_held},
               {"connected", rank.connected},
               {"since_heard_seconds", absl::ToDoubleSeconds(rank.since_heard)},
               {"readers", rank.readers},
               {"stall_seconds", SecondsByPhaseName(rank.stall)}};
  json["endpoints"] = Json::array();
  for (const Endpoint& endpoint : rank.endpoints) {
    json["endpoints"].push_back(absl::StrCat(endpoint.transport, " ", endpoint.address));
  }
  if (rank.leaves_in != absl::InfiniteDuration()) {
    json["leaves_in_seconds"] = absl::ToDoubleSeconds(rank.leaves_in);
  }
  json["sources"] = Json::array();
  for (const RankName& source : rank.sources) json["sources"].push_back(source.ToString());
  json["transports"] = rank.transports.names;
  json["passed_over"] = DescribePassedOver(rank.transports.passed_over);
  return json;
}

Json ToJson(const CatalogReplica& replica) {
  Json json = {{"group", replica.group},
               {"buffer_name", replica.buffer_name},
               {"form", replica.form},
               {"state", replica.state},
               {"role", std::string(BufferRoleKey(replica.role))},
               {"publisher", replica.publisher}};
  json["ranks"] = Json::array();
  for (const CatalogRank& rank : replica.ranks) json["ranks"].push_back(ToJson(rank));
  return json;
}

Json ToJson(const std::vector<CatalogReplica>& replicas) {
  Json json = Json::array();
  for (const CatalogReplica& replica : replicas) json.push_back(ToJson(replica));
  return json;
}

Json ToJson(const CatalogPin& pin) {
  Json json = {{"owner", pin.owner}, {"form", pin.form}};
  if (pin.expires_in != absl::InfiniteDuration()) {
    json["expires_in_seconds"] = absl::ToDoubleSeconds(pin.expires_in);
  }
  return json;
}

Json ToJson(const CatalogVersion& version) {
  Json json = {{"version", ToJson(version.info)}, {"published", version.published},
               {"sealed", version.sealed},        {"withdrawn", version.withdrawn},
               {"bytes", version.bytes},          {"lost_forms", version.lost_forms}};
  json["pins"] = Json::array();
  for (const CatalogPin& pin : version.pins) json["pins"].push_back(ToJson(pin));
  json["replicas"] = ToJson(version.replicas);
  return json;
}

Json ToJson(const CatalogModel& model) {
  Json json = {{"run", model.key.run},
               {"model", model.key.model},
               {"lineage", model.lineage.value},
               {"high_water", model.high_water.ToString()},
               {"keep_latest", model.keep_latest},
               {"keep_latest_of_form", model.keep_latest_of_form}};
  json["versions"] = Json::array();
  for (const CatalogVersion& version : model.versions) json["versions"].push_back(ToJson(version));
  json["idle"] = ToJson(model.idle);
  return json;
}

}  // namespace

std::string VersionToJson(const VersionInfo& version) { return Text(ToJson(version)); }

std::string UpdateResultToJson(const UpdateResult& result) {
  Json json = {{"outcome", OutcomeName(result.outcome)},
               {"reason", ReasonName(result.reason)},
               {"version", ToJson(result.info)},
               {"event", result.event.ToString()},
               {"seconds",
                {{"resolve", absl::ToDoubleSeconds(result.resolve)},
                 {"queue", absl::ToDoubleSeconds(result.queue)},
                 {"transfer", absl::ToDoubleSeconds(result.transfer)},
                 {"verify", absl::ToDoubleSeconds(result.verify)},
                 {"apply", absl::ToDoubleSeconds(result.apply)},
                 {"stall", absl::ToDoubleSeconds(result.stall())}}},
               {"bytes_received", result.bytes_received},
               {"bytes_unchanged", result.bytes_unchanged},
               {"reroutes", result.reroutes},
               {"rerouted_bytes", result.rerouted_bytes},
               {"reread_bytes", result.reread_bytes},
               {"corrupt_segments", result.corrupt_segments},
               {"packing_overhead_bytes", result.packing_overhead_bytes},
               {"peak_extra_bytes", result.peak_extra_bytes},
               {"staged_bytes", result.staged_bytes}};
  json["sources"] = Json::array();
  for (const SourceShare& share : result.sources) json["sources"].push_back(ToJson(share));
  return Text(json);
}

std::string AttachResultToJson(const AttachResult& result) {
  Json json = {{"outcome", OutcomeName(result.outcome)}, {"reason", ReasonName(result.reason)}};
  if (!result.attached()) {
    json["version"] = nullptr;
    return Text(json);
  }
  const AttachedVersion& version = *result.version;
  json["version"] = ToJson(version.version());
  json["layout"] = version.layout().digest().ToHex();
  json["source"] = version.source();
  json["tensors"] = version.size();
  json["bytes"] = version.layout().bytes();
  return Text(json);
}

std::string PublishResultToJson(const PublishResult& result) {
  Json json = ToJson(result.version);
  if (result.snapshot_bytes == 0) return Text(json);
  json["snapshot_bytes"] = result.snapshot_bytes;
  json["snapshot_seconds"] = absl::ToDoubleSeconds(result.snapshot);
  return Text(json);
}

std::string ReceiveResultToJson(const ReceiveResult& result) {
  const Json json = {{"outcome", OutcomeName(result.outcome)},
                     {"reason", ReasonName(result.reason)},
                     {"version", ToJson(result.version)},
                     {"tensors", result.tensors},
                     {"slices", result.slices},
                     {"bytes", result.bytes},
                     {"bytes_received", result.bytes_received},
                     {"ring_bytes", result.ring_bytes},
                     {"peak_extra_bytes", result.peak_extra_bytes},
                     {"reroutes", result.reroutes},
                     {"reread_bytes", result.reread_bytes},
                     {"corrupt_segments", result.corrupt_segments},
                     {"sources", result.sources}};
  return Text(json);
}

std::string AwaitedFormToJson(const AwaitedForm& awaited) {
  return Text({{"make", awaited.make}, {"version", ToJson(awaited.version)}});
}

std::string AppliedResultToJson(const AppliedResult& result) {
  Json json = {
      {"all", result.all()}, {"version", ToJson(result.version)}, {"applied", result.applied}};
  json["lacking"] = Json::array();
  for (const AppliedResult::Lacking& each : result.lacking) {
    json["lacking"].push_back({{"group", each.group}, {"why", each.why}});
  }
  return Text(json);
}

std::string EventsToJson(const RecentEvents& events) {
  Json json = {{"epoch", events.epoch.value}, {"last", events.last}, {"lost", events.lost}};
  json["events"] = Json::array();
  for (const RecentEvent& event : events.events) {
    json["events"].push_back({{"number", event.number},
                              {"event", event.id.ToString()},
                              {"kind", std::string(EventKindName(event.kind))},
                              {"age_seconds", absl::ToDoubleSeconds(event.age)},
                              {"time", EventTimeText(event.at)},
                              {"run", event.key.run},
                              {"model", event.key.model},
                              {"who", event.who},
                              {"what", event.what}});
  }
  return Text(json);
}

std::string FoundShardToJson(const FoundShard& shard) {
  const bool found = shard.not_available == NotAvailableReason::kNone;
  return Text(
      {{"reason", ReasonName(shard.not_available)}, {"layout", found ? shard.layout.ToHex() : ""}});
}

std::string LayoutToJson(const ShardLayout& layout) {
  Json json = {{"layout", layout.digest().ToHex()},
               {"bytes", layout.bytes()},
               {"segment_bytes", layout.segment_bytes()}};
  json["tensors"] = Json::array();
  for (const TensorSpec& spec : layout.tensors()) {
    const bool opaque = spec.dtype == DType::kOpaque;
    json["tensors"].push_back({{"name", spec.name},
                               {"dtype", opaque ? "" : std::string(DTypeName(spec.dtype))},
                               {"shape", spec.shape},
                               {"bytes", spec.bytes},
                               {"global_shape", spec.global_shape},
                               {"slice_begin", spec.slice_begin}});
  }
  return Text(json);
}

std::string ReaderReportsToJson(const std::deque<ReaderReport>& reports, uint64_t dropped) {
  Json json = {{"dropped", dropped}};
  json["reports"] = Json::array();
  for (const ReaderReport& report : reports) {
    json["reports"].push_back({{"what", WhatName(report.what)},
                               {"event", report.event.ToString()},
                               {"reader", report.reader.value},
                               {"version", report.version.ToString()},
                               {"bytes_sent", report.bytes_sent},
                               {"refusal", std::string(report.refusal.message())},
                               {"why_ended", report.why_ended}});
  }
  return Text(json);
}

std::string ClientInfoToJson(const Client& client) {
  return Text({{"connected", client.connected()},
               {"data_endpoint", client.data_endpoint()},
               {"control_bytes", client.control_bytes()},
               {"left_out", client.left_out()}});
}

std::string BufferInfoToJson(const WeightBuffer& buffer) {
  return Text({{"bytes", buffer.bytes()},
               {"layout", buffer.layout_digest().ToHex()},
               {"snapshot_bytes", buffer.snapshot_bytes()},
               {"bytes_sent", buffer.bytes_sent()},
               {"gpu_registrations", buffer.gpu_registrations()}});
}

std::string CatalogToJson(const Catalog& catalog) {
  Json json = {{"epoch", catalog.epoch.value}, {"recovering", catalog.recovering}};
  json["models"] = Json::array();
  for (const CatalogModel& model : catalog.models) json["models"].push_back(ToJson(model));
  return Text(json);
}

absl::StatusOr<Attributes> AttributesFromJson(absl::string_view text) {
  Attributes attributes;
  if (text.empty()) return attributes;
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("the attributes are not a JSON object");
  }
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("attribute ", Quoted(key), " is not a string"));
    }
    attributes[key] = value.get<std::string>();
  }
  return attributes;
}

}  // namespace th
