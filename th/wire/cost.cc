#include "th/wire/cost.h"

#include <algorithm>
#include <utility>

#include "th/wire/field_reader.h"
#include "th/wire/limits.h"

namespace th {
namespace {

pb::ReceivedBytes ReceivedToProto(const ReceivedBytes& received) {
  pb::ReceivedBytes out;
  out.set_transport(CleanText(received.transport, kMaxTransportNameBytes));
  out.set_distance(static_cast<pb::Distance>(static_cast<int>(received.distance) + 1));
  out.set_publisher(received.publisher);
  out.set_bytes(received.bytes);
  return out;
}

absl::StatusOr<ReceivedBytes> ReceivedFromProto(const pb::ReceivedBytes& in) {
  FieldReader reader;
  ReceivedBytes out{.publisher = in.publisher(), .bytes = in.bytes()};
  reader.Text("transport", in.transport(), kMaxTransportNameBytes, out.transport);
  reader.Check(in.distance() != pb::DISTANCE_UNSPECIFIED, "distance", "is missing");
  reader.Enum("distance", in.distance() - 1, Distance::kOtherSite, false, out.distance);
  return reader.Finish(std::move(out));
}

pb::FillCost FillToProto(const FillCost& cost) {
  pb::FillCost out;
  const size_t kinds = std::min(cost.received.size(), kMaxReceivedKinds);
  for (size_t i = 0; i < kinds; ++i) *out.add_received() = ReceivedToProto(cost.received[i]);
  const size_t passed_over = std::min(cost.passed_over.size(), kMaxPassedOverKinds);
  for (size_t i = 0; i < passed_over; ++i) *out.add_passed_over() = ToProto(cost.passed_over[i]);
  out.set_unchanged_bytes(cost.unchanged_bytes);
  out.set_rerouted_bytes(cost.rerouted_bytes);
  out.set_reread_bytes(cost.reread_bytes);
  out.set_reroutes(cost.reroutes);
  return out;
}

absl::StatusOr<FillCost> FillFromProto(const pb::FillCost& in) {
  FieldReader reader;
  FillCost out{.unchanged_bytes = in.unchanged_bytes(),
               .rerouted_bytes = in.rerouted_bytes(),
               .reread_bytes = in.reread_bytes(),
               .reroutes = in.reroutes()};
  reader.Each("received", in.received(), kMaxReceivedKinds, out.received, ReceivedFromProto);
  reader.Each("passed_over", in.passed_over(), kMaxPassedOverKinds, out.passed_over,
              [](const pb::PassedOver& one) { return FromProto(one); });
  return reader.Finish(std::move(out));
}

// Absent is none: a worker of before has no costs.
void ReadPhase(FieldReader& reader, absl::string_view field, bool present, const pb::Duration& in,
               absl::Duration& out) {
  if (present) reader.Duration(field, present, in, out);
}

pb::FailureCount FailureToProto(const FailureCount& failure) {
  pb::FailureCount out;
  out.set_kind(static_cast<pb::OperationKind>(failure.kind));
  out.set_code(failure.code);
  out.set_count(failure.count);
  return out;
}

absl::StatusOr<FailureCount> FailureFromProto(const pb::FailureCount& in) {
  FieldReader reader;
  FailureCount out{.code = in.code(), .count = in.count()};
  OperationKind kind = OperationKind::kPublish;
  reader.Enum("kind", in.kind(), OperationKind::kUpdate, true, kind);
  out.kind = static_cast<uint8_t>(kind);
  return reader.Finish(out);
}

}  // namespace

pb::PassedOver ToProto(const PassedOver& passed_over) {
  pb::PassedOver out;
  out.set_transport(CleanText(passed_over.transport, kMaxTransportNameBytes));
  out.set_reason(CleanText(passed_over.reason, kMaxPassedOverReasonBytes));
  out.set_sources(passed_over.sources);
  return out;
}

absl::StatusOr<PassedOver> FromProto(const pb::PassedOver& in) {
  FieldReader reader;
  PassedOver out{.sources = in.sources()};
  reader.Text("transport", in.transport(), kMaxTransportNameBytes, out.transport);
  reader.Prose(in.reason(), out.reason);
  return reader.Finish(std::move(out));
}

pb::TransportsUsed ToProto(const TransportsUsed& used) {
  pb::TransportsUsed out;
  const size_t names = std::min(used.names.size(), kMaxTransportsReported);
  for (size_t i = 0; i < names; ++i) {
    out.add_names(CleanText(used.names[i], kMaxTransportNameBytes));
  }
  const size_t passed_over = std::min(used.passed_over.size(), kMaxPassedOverKinds);
  for (size_t i = 0; i < passed_over; ++i) *out.add_passed_over() = ToProto(used.passed_over[i]);
  return out;
}

absl::StatusOr<TransportsUsed> FromProto(const pb::TransportsUsed& in) {
  FieldReader reader;
  TransportsUsed out;
  reader.Each("names", in.names(), kMaxTransportsReported, out.names,
              [](const std::string& name) -> absl::StatusOr<std::string> { return name; });
  reader.Each("passed_over", in.passed_over(), kMaxPassedOverKinds, out.passed_over,
              [](const pb::PassedOver& one) { return FromProto(one); });
  return reader.Finish(std::move(out));
}

pb::RankCost ToProto(const RankCost& cost) {
  pb::RankCost out;
  *out.mutable_resolve() = ToProto(cost.resolve);
  *out.mutable_queue() = ToProto(cost.queue);
  *out.mutable_transfer() = ToProto(cost.transfer);
  *out.mutable_verify() = ToProto(cost.verify);
  *out.mutable_fill() = FillToProto(cost.fill);
  return out;
}

absl::StatusOr<RankCost> FromProto(const pb::RankCost& in) {
  FieldReader reader;
  RankCost out;
  ReadPhase(reader, "resolve", in.has_resolve(), in.resolve(), out.resolve);
  ReadPhase(reader, "queue", in.has_queue(), in.queue(), out.queue);
  ReadPhase(reader, "transfer", in.has_transfer(), in.transfer(), out.transfer);
  ReadPhase(reader, "verify", in.has_verify(), in.verify(), out.verify);
  reader.Nested("fill", FillFromProto(in.fill()), out.fill);
  return reader.Finish(std::move(out));
}

void ReadStall(FieldReader& reader, const google::protobuf::RepeatedPtrField<pb::Duration>& in,
               StallByPhase& out) {
  const int phases = std::min(in.size(), static_cast<int>(kStallPhases));
  for (int i = 0; i < phases; ++i) reader.Duration("stall", true, in[i], out[i]);
}

pb::CatalogTotals ToProto(const ModelTotals& totals) {
  pb::CatalogTotals out;
  for (const absl::Duration stall : totals.stall) *out.add_stall() = ToProto(stall);
  *out.mutable_fill() = FillToProto(totals.fill);
  out.set_copies_published(totals.copies_published);
  out.set_copies_relayed(totals.copies_relayed);
  out.set_publishes(totals.publishes);
  out.set_moves(totals.moves);
  out.set_not_available(totals.not_available);
  out.set_drains(totals.drains);
  out.set_readers_cut(totals.readers_cut);
  out.set_sources_failed(totals.sources_failed);
  out.set_sources_suspected(totals.sources_suspected);
  out.set_offloads(totals.offloads);
  out.set_offloads_failed(totals.offloads_failed);
  out.set_leases_expired(totals.leases_expired);
  out.set_claims_refused(totals.claims_refused);
  for (const FailureCount& failure : totals.failures) *out.add_failures() = FailureToProto(failure);
  return out;
}

absl::StatusOr<ModelTotals> FromProto(const pb::CatalogTotals& in) {
  FieldReader reader;
  ModelTotals out{.copies_published = in.copies_published(),
                  .copies_relayed = in.copies_relayed(),
                  .publishes = in.publishes(),
                  .moves = in.moves(),
                  .not_available = in.not_available(),
                  .drains = in.drains(),
                  .readers_cut = in.readers_cut(),
                  .sources_failed = in.sources_failed(),
                  .sources_suspected = in.sources_suspected(),
                  .offloads = in.offloads(),
                  .offloads_failed = in.offloads_failed(),
                  .leases_expired = in.leases_expired(),
                  .claims_refused = in.claims_refused()};
  ReadStall(reader, in.stall(), out.stall);
  reader.Nested("fill", FillFromProto(in.fill()), out.fill);
  reader.Each("failures", in.failures(), kMaxFailureKinds, out.failures, FailureFromProto);
  return reader.Finish(std::move(out));
}

}  // namespace th
