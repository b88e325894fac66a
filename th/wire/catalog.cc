#include "th/wire/catalog.h"

#include <limits>
#include <string>
#include <utility>

#include "th/wire/cost.h"
#include "th/wire/field_reader.h"
#include "th/wire/limits.h"

namespace th {
namespace {

// The catalog comes from the server that the caller trusts with its weights; its size is bounded by
// the message's, so its lists need no limits of their own.
constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

pb::CatalogRank RankToProto(const CatalogRank& rank) {
  pb::CatalogRank out;
  *out.mutable_name() = ToProto(rank.name);
  out.set_worker(rank.worker.value);
  out.set_buffer_name(rank.buffer_name);
  *out.mutable_location() = ToProto(rank.location);
  for (const Endpoint& endpoint : rank.endpoints) *out.add_endpoints() = ToProto(endpoint);
  out.set_layout(DigestToProto(rank.layout));
  out.set_bytes(rank.bytes);
  out.set_bytes_held(rank.bytes_held);
  out.set_connected(rank.connected);
  *out.mutable_since_heard() = ToProto(rank.since_heard);
  out.set_readers(rank.readers);
  for (const RankName& source : rank.sources) *out.add_sources() = ToProto(source);
  out.set_snapshot_bytes(rank.snapshot_bytes);
  if (rank.leaves_in != absl::InfiniteDuration()) {
    *out.mutable_leaves_in() = ToProto(rank.leaves_in);
  }
  for (const std::string& transport : rank.transports.names) {
    out.add_transports(CleanText(transport, kMaxTransportNameBytes));
  }
  for (const PassedOver& one : rank.transports.passed_over) *out.add_passed_over() = ToProto(one);
  if (SumOf(rank.stall) > absl::ZeroDuration()) {
    for (const absl::Duration stall : rank.stall) *out.add_stall() = ToProto(stall);
  }
  return out;
}

absl::StatusOr<CatalogRank> RankFromProto(const pb::CatalogRank& in) {
  FieldReader reader;
  CatalogRank out{.worker = WorkerId(in.worker()),
                  .bytes = in.bytes(),
                  .bytes_held = in.bytes_held(),
                  .connected = in.connected(),
                  .readers = in.readers(),
                  .snapshot_bytes = in.snapshot_bytes()};
  reader.Message("name", in.has_name(), FromProto(in.name()), out.name);
  reader.OptionalName("buffer_name", in.buffer_name(), out.buffer_name);
  reader.Nested("location", FromProto(in.location()), out.location);
  reader.Each("endpoints", in.endpoints(), kMaxEndpointsOnWire, out.endpoints,
              [](const pb::Endpoint& endpoint) { return FromProto(endpoint); });
  reader.Digest("layout", in.layout(), out.layout);
  reader.Duration("since_heard", in.has_since_heard(), in.since_heard(), out.since_heard);
  reader.Each("sources", in.sources(), kMaxSourcesOnWire, out.sources,
              [](const pb::RankName& source) { return FromProto(source); });
  reader.DurationOrInfinite("leaves_in", in.has_leaves_in(), in.leaves_in(), out.leaves_in);
  reader.Each("transports", in.transports(), kMaxReceivedKinds, out.transports.names,
              [](const std::string& name) -> absl::StatusOr<std::string> { return name; });
  reader.Each("passed_over", in.passed_over(), kMaxPassedOverKinds, out.transports.passed_over,
              [](const pb::PassedOver& one) { return FromProto(one); });
  ReadStall(reader, in.stall(), out.stall);
  return reader.Finish(std::move(out));
}

pb::CatalogReplica ReplicaToProto(const CatalogReplica& replica) {
  pb::CatalogReplica out;
  out.set_group(replica.group);
  out.set_buffer_name(replica.buffer_name);
  out.set_form(replica.form);
  out.set_state(replica.state);
  out.set_publisher(replica.publisher);
  out.set_role(static_cast<pb::BufferRole>(replica.role));
  for (const CatalogRank& rank : replica.ranks) *out.add_ranks() = RankToProto(rank);
  if (replica.event.empty()) return out;
  out.set_event(replica.event.value);
  out.set_operation(static_cast<pb::OperationKind>(replica.operation));
  *out.mutable_operation_since() = ToProto(replica.operation_since);
  return out;
}

absl::StatusOr<CatalogReplica> ReplicaFromProto(const pb::CatalogReplica& in) {
  FieldReader reader;
  CatalogReplica out{.publisher = in.publisher(), .event = EventId(in.event())};
  reader.Name("group", in.group(), out.group);
  reader.OptionalName("buffer_name", in.buffer_name(), out.buffer_name);
  reader.OptionalName("form", in.form(), out.form);
  reader.Enum("role", in.role(), BufferRole::kStreaming, true, out.role);
  reader.Prose(in.state(), out.state);
  reader.Each("ranks", in.ranks(), kNoLimit, out.ranks, RankFromProto);
  if (out.event.empty()) return reader.Finish(std::move(out));
  reader.Enum("operation", in.operation(), OperationKind::kUpdate, true, out.operation);
  reader.Duration("operation_since", in.has_operation_since(), in.operation_since(),
                  out.operation_since);
  return reader.Finish(std::move(out));
}

pb::CatalogPin PinToProto(const CatalogPin& pin) {
  pb::CatalogPin out;
  out.set_owner(CleanText(pin.owner, kMaxNameBytes));
  out.set_form(pin.form);
  if (pin.expires_in != absl::InfiniteDuration()) {
    *out.mutable_expires_in() = ToProto(pin.expires_in);
  }
  return out;
}

absl::StatusOr<CatalogPin> PinFromProto(const pb::CatalogPin& in) {
  FieldReader reader;
  CatalogPin out;
  reader.Prose(in.owner(), out.owner);
  reader.OptionalName("form", in.form(), out.form);
  reader.DurationOrInfinite("expires_in", in.has_expires_in(), in.expires_in(), out.expires_in);
  return reader.Finish(std::move(out));
}

pb::CatalogVersion VersionToProto(const CatalogVersion& version) {
  pb::CatalogVersion out;
  *out.mutable_info() = ToProto(version.info);
  out.set_published(version.published);
  out.set_sealed(version.sealed);
  out.set_withdrawn(version.withdrawn);
  out.set_bytes(version.bytes);
  for (const SealedShard& shard : version.shards) *out.add_shards() = ToProto(shard);
  for (const CatalogPin& pin : version.pins) *out.add_pins() = PinToProto(pin);
  for (const std::string& form : version.lost_forms) out.add_lost_forms(form);
  for (const CatalogReplica& replica : version.replicas) {
    *out.add_replicas() = ReplicaToProto(replica);
  }
  return out;
}

absl::StatusOr<CatalogVersion> VersionFromProto(const pb::CatalogVersion& in) {
  FieldReader reader;
  CatalogVersion out{.published = in.published(),
                     .sealed = in.sealed(),
                     .withdrawn = in.withdrawn(),
                     .bytes = in.bytes()};
  out.lost_forms.assign(in.lost_forms().begin(), in.lost_forms().end());
  reader.Message("info", in.has_info(), FromProto(in.info()), out.info);
  reader.Each("shards", in.shards(), kNoLimit, out.shards,
              [](const pb::SealedShard& shard) { return FromProto(shard); });
  reader.Each("pins", in.pins(), kNoLimit, out.pins, PinFromProto);
  reader.Each("replicas", in.replicas(), kNoLimit, out.replicas, ReplicaFromProto);
  return reader.Finish(std::move(out));
}

pb::CatalogModel ModelToProto(const CatalogModel& model) {
  pb::CatalogModel out;
  *out.mutable_key() = ToProto(model.key);
  out.set_lineage(model.lineage.value);
  out.set_high_water(model.high_water.value);
  out.set_keep_latest(model.keep_latest);
  for (const auto& [form, count] : model.keep_latest_of_form) {
    (*out.mutable_keep_latest_of_form())[form] = count;
  }
  for (const CatalogVersion& version : model.versions) {
    *out.add_versions() = VersionToProto(version);
  }
  for (const CatalogReplica& replica : model.idle) *out.add_idle() = ReplicaToProto(replica);
  *out.mutable_totals() = ToProto(model.totals);
  return out;
}

absl::StatusOr<CatalogModel> ModelFromProto(const pb::CatalogModel& in) {
  FieldReader reader;
  CatalogModel out{
      .lineage = Lineage(in.lineage()),
      .high_water = VersionSequence(in.high_water()),
      .keep_latest = in.keep_latest(),
      .keep_latest_of_form = {in.keep_latest_of_form().begin(), in.keep_latest_of_form().end()}};
  reader.Message("key", in.has_key(), FromProto(in.key()), out.key);
  reader.Each("versions", in.versions(), kNoLimit, out.versions, VersionFromProto);
  reader.Each("idle", in.idle(), kNoLimit, out.idle, ReplicaFromProto);
  reader.Nested("totals", FromProto(in.totals()), out.totals);
  return reader.Finish(std::move(out));
}

}  // namespace

pb::Catalog ToProto(const Catalog& catalog) {
  pb::Catalog out;
  out.set_epoch(catalog.epoch.value);
  out.set_recovering(catalog.recovering);
  for (const CatalogModel& model : catalog.models) *out.add_models() = ModelToProto(model);
  return out;
}

absl::StatusOr<Catalog> FromProto(const pb::Catalog& in) {
  FieldReader reader;
  Catalog out{.epoch = Epoch(in.epoch()), .recovering = in.recovering()};
  reader.Each("models", in.models(), kNoLimit, out.models, ModelFromProto);
  return reader.Finish(std::move(out));
}

}  // namespace th
