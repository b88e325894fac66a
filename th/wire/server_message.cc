#include "th/wire/server_message.h"

#include <string>
#include <utility>

#include "th/wire/field_reader.h"
#include "th/wire/limits.h"

namespace th {
namespace {

pb::Capability CapabilityToProto(const Capability& capability) {
  const CapabilityClaims& claims = capability.claims;
  pb::Capability out;
  out.set_reader(claims.reader.value);
  *out.mutable_source() = ToProto(claims.source);
  out.set_version(claims.version.value);
  out.set_epoch(claims.epoch.value);
  out.set_assignment(claims.assignment.value);
  out.set_mac(std::string(capability.mac.begin(), capability.mac.end()));
  return out;
}

absl::StatusOr<Capability> CapabilityFromProto(const pb::Capability& in) {
  FieldReader reader;
  Capability out{.claims = {.reader = WorkerId(in.reader()),
                            .source = BufferAddressFromProto(in.source()),
                            .version = VersionSequence(in.version()),
                            .epoch = Epoch(in.epoch()),
                            .assignment = AssignmentId(in.assignment())}};
  reader.Check(in.has_source(), "source", "is missing");
  reader.Bytes("mac", in.mac(), out.mac);
  return reader.Finish(std::move(out));
}

pb::AssignedSource SourceToProto(const AssignedSource& source) {
  pb::AssignedSource out;
  *out.mutable_buffer() = ToProto(source.buffer);
  *out.mutable_name() = ToProto(source.name);
  for (const Endpoint& endpoint : source.endpoints) *out.add_endpoints() = ToProto(endpoint);
  out.set_generation(source.generation.value);
  out.set_distance(static_cast<pb::Distance>(static_cast<int>(source.distance) + 1));
  out.set_partial(source.partial);
  out.set_publisher(source.publisher);
  *out.mutable_capability() = CapabilityToProto(source.capability);
  return out;
}

absl::StatusOr<AssignedSource> SourceFromProto(const pb::AssignedSource& in) {
  FieldReader reader;
  AssignedSource out{.buffer = BufferAddressFromProto(in.buffer()),
                     .generation = BufferGeneration(in.generation()),
                     .partial = in.partial(),
                     .publisher = in.publisher()};
  reader.Check(in.has_buffer(), "buffer", "is missing");
  reader.Message("name", in.has_name(), FromProto(in.name()), out.name);
  reader.Each("endpoints", in.endpoints(), kMaxEndpointsOnWire, out.endpoints,
              [](const pb::Endpoint& endpoint) { return FromProto(endpoint); });
  reader.Check(in.distance() != pb::DISTANCE_UNSPECIFIED, "distance", "is missing");
  reader.Enum("distance", in.distance() - 1, Distance::kOtherSite, false, out.distance);
  reader.Message("capability", in.has_capability(), CapabilityFromProto(in.capability()),
                 out.capability);
  return reader.Finish(std::move(out));
}

// ---------------------------------------------------------------------------------------------
// The frame's alternatives: to protobuf

struct Encode {
  pb::ServerToWorker& frame;

  void operator()(const Joined& in) const {
    pb::Joined& out = *frame.mutable_joined();
    *out.mutable_hello() = ToProto(in.hello);
    out.set_epoch(in.epoch.value);
    out.set_worker(in.worker.value);
    out.set_group_generation(in.group_generation.value);
    out.set_lineage(in.lineage.value);
    out.set_capability_key(std::string(in.key.bytes.begin(), in.key.bytes.end()));
    *out.mutable_lease() = ToProto(in.lease);
    *out.mutable_progress_interval() = ToProto(in.progress_interval);
    out.set_cluster(in.cluster.value);
    out.set_epoch_id(in.epoch_id.value);
    out.set_secret(std::string(in.secret.bytes.begin(), in.secret.bytes.end()));
  }
  void operator()(const Refused& in) const {
    *frame.mutable_refused()->mutable_status() = ToProto(in.status);
    if (in.retry_after != absl::InfiniteDuration()) {
      *frame.mutable_refused()->mutable_retry_after() = ToProto(in.retry_after);
    }
    frame.mutable_refused()->set_epoch(in.epoch.value);
    frame.mutable_refused()->set_redirect(CleanText(in.redirect, kMaxServerAddressOnWire));
  }
  void operator()(const LayoutWanted& in) const {
    frame.mutable_layout_wanted()->set_layout(DigestToProto(in.layout));
  }
  void operator()(const BufferRegistered& in) const {
    frame.mutable_buffer_registered()->set_buffer(in.buffer.value);
    *frame.mutable_buffer_registered()->mutable_status() = ToProto(in.status);
  }
  void operator()(const OperationResolved& in) const {
    pb::OperationResolved& out = *frame.mutable_operation_resolved();
    *out.mutable_key() = ToProto(in.key);
    *out.mutable_version() = ToProto(in.version);
    if (in.root.has_value()) out.set_root(DigestToProto(*in.root));
    out.set_event(in.event.value);
    if (in.receipt.has_value()) *out.mutable_receipt() = ToProto(*in.receipt);
  }
  void operator()(const AssignSources& in) const {
    pb::AssignSources& out = *frame.mutable_assign_sources();
    *out.mutable_key() = ToProto(in.key);
    out.set_assignment(in.assignment.value);
    out.set_version(in.version.value);
    for (const AssignedSource& source : in.sources) *out.add_sources() = SourceToProto(source);
    out.set_why_empty(CleanText(in.why_empty, kMaxProseBytesOnWire));
    out.set_event(in.event.value);
  }
  void operator()(const RootKnown& in) const {
    frame.mutable_root_known()->set_version(in.version.value);
    *frame.mutable_root_known()->mutable_shard() = ToProto(in.shard);
    if (in.receipt.has_value())
      *frame.mutable_root_known()->mutable_receipt() = ToProto(*in.receipt);
  }
  void operator()(const OperationFinished& in) const {
    pb::OperationFinished& out = *frame.mutable_operation_finished();
    *out.mutable_key() = ToProto(in.key);
    out.set_kind(static_cast<pb::OperationKind>(in.kind));
    *out.mutable_status() = ToProto(in.status);
    out.set_outcome(static_cast<pb::UpdateOutcome>(in.outcome));
    out.set_not_available(static_cast<pb::NotAvailableReason>(in.not_available));
    *out.mutable_version() = ToProto(in.version);
    out.set_lineage(in.lineage.value);
    out.set_must_offload(in.must_offload);
    out.set_site_copy(in.site_copy);
    out.set_event(in.event.value);
  }
  void operator()(const PublicationRefused& in) const {
    pb::PublicationRefused& out = *frame.mutable_publication_refused();
    out.set_buffer(in.buffer.value);
    out.set_version(in.version.value);
    *out.mutable_status() = ToProto(in.status);
  }
  void operator()(const GroupChanged& in) const {
    frame.mutable_group_changed()->set_group_generation(in.group_generation.value);
    *frame.mutable_group_changed()->mutable_rank() = ToProto(in.rank);
  }
  void operator()(const CommandFinished& in) const {
    *frame.mutable_command_finished() = ToProto(in);
  }
  void operator()(const OffloadReleased& in) const {
    frame.mutable_offload_released()->set_buffer(in.buffer.value);
  }
  void operator()(const Alive&) const { frame.mutable_alive(); }
};

// ---------------------------------------------------------------------------------------------
// The frame's alternatives: from protobuf

absl::StatusOr<ServerMessage> Decode(const pb::Joined& in) {
  FieldReader reader;
  Joined out{.epoch = Epoch(in.epoch()),
             .worker = WorkerId(in.worker()),
             .group_generation = GroupGeneration(in.group_generation()),
             .lineage = Lineage(in.lineage()),
             .cluster = ClusterId(in.cluster()),
             .epoch_id = EpochId(in.epoch_id())};
  reader.Message("hello", in.has_hello(), FromProto(in.hello()), out.hello);
  reader.Bytes("capability_key", in.capability_key(), out.key.bytes);
  reader.Duration("lease", in.has_lease(), in.lease(), out.lease);
  reader.Duration("progress_interval", in.has_progress_interval(), in.progress_interval(),
                  out.progress_interval);
  if (!in.secret().empty()) reader.Bytes("secret", in.secret(), out.secret.bytes);
  return reader.Finish(ServerMessage(std::move(out)));
}

absl::StatusOr<ServerMessage> Decode(const pb::Refused& in) {
  FieldReader reader;
  Refused out{.status = StatusFromProto(in.status()), .epoch = Epoch(in.epoch())};
  reader.Check(in.status().code() != 0, "status", "is OK, which is no refusal");
  reader.DurationOrInfinite("retry_after", in.has_retry_after(), in.retry_after(), out.retry_after);
  reader.Text("redirect", in.redirect(), kMaxServerAddressOnWire, out.redirect);
  return reader.Finish(ServerMessage(std::move(out)));
}

absl::StatusOr<ServerMessage> Decode(const pb::LayoutWanted& in) {
  FieldReader reader;
  LayoutWanted out;
  reader.Digest("layout", in.layout(), out.layout);
  return reader.Finish(ServerMessage(out));
}

absl::StatusOr<ServerMessage> Decode(const pb::OperationResolved& in) {
  FieldReader reader;
  OperationResolved out{.key = OperationKeyFromProto(in.key()), .event = EventId(in.event())};
  reader.Check(in.has_key(), "key", "is missing");
  reader.Message("version", in.has_version(), FromProto(in.version()), out.version);
  if (in.has_root()) reader.Digest("root", in.root(), out.root.emplace());
  if (in.has_receipt()) reader.Nested("receipt", FromProto(in.receipt()), out.receipt.emplace());
  return reader.Finish(ServerMessage(std::move(out)));
}

absl::StatusOr<ServerMessage> Decode(const pb::AssignSources& in) {
  FieldReader reader;
  AssignSources out{.key = OperationKeyFromProto(in.key()),
                    .assignment = AssignmentId(in.assignment()),
                    .version = VersionSequence(in.version()),
                    .event = EventId(in.event())};
  reader.Check(in.has_key(), "key", "is missing");
  reader.Each("sources", in.sources(), kMaxSourcesOnWire, out.sources, SourceFromProto);
  reader.Prose(in.why_empty(), out.why_empty);
  return reader.Finish(ServerMessage(std::move(out)));
}

absl::StatusOr<ServerMessage> Decode(const pb::RootKnown& in) {
  FieldReader reader;
  RootKnown out{.version = VersionSequence(in.version())};
  reader.Message("shard", in.has_shard(), FromProto(in.shard()), out.shard);
  if (in.has_receipt()) reader.Nested("receipt", FromProto(in.receipt()), out.receipt.emplace());
  return reader.Finish(ServerMessage(std::move(out)));
}

absl::StatusOr<ServerMessage> Decode(const pb::OperationFinished& in) {
  FieldReader reader;
  OperationFinished out{.key = OperationKeyFromProto(in.key()),
                        .status = StatusFromProto(in.status()),
                        .lineage = Lineage(in.lineage()),
                        .must_offload = in.must_offload(),
                        .site_copy = in.site_copy(),
                        .event = EventId(in.event())};
  reader.Check(in.has_key(), "key", "is missing");
  reader.Enum("kind", in.kind(), OperationKind::kUpdate, true, out.kind);
  reader.Enum("outcome", in.outcome(), UpdateOutcome::kNotAvailable, false, out.outcome);
  reader.Enum("not_available", in.not_available(), NotAvailableReason::kBehindFloor, false,
              out.not_available);
  reader.Nested("version", FromProto(in.version()), out.version);
  return reader.Finish(ServerMessage(std::move(out)));
}

absl::StatusOr<ServerMessage> Decode(const pb::PublicationRefused& in) {
  return ServerMessage(PublicationRefused{.buffer = BufferId(in.buffer()),
                                          .version = VersionSequence(in.version()),
                                          .status = StatusFromProto(in.status())});
}

absl::StatusOr<ServerMessage> Decode(const pb::GroupChanged& in) {
  FieldReader reader;
  GroupChanged out{.group_generation = GroupGeneration(in.group_generation())};
  reader.Message("rank", in.has_rank(), FromProto(in.rank()), out.rank);
  return reader.Finish(ServerMessage(std::move(out)));
}

absl::StatusOr<ServerMessage> Decode(const pb::CommandFinished& in) {
  FieldReader reader;
  CommandFinished out;
  reader.Inline(FromProto(in), out);
  return reader.Finish(ServerMessage(std::move(out)));
}

// Errors are named by the member that is set.
void DecodeMember(const pb::ServerToWorker& in, FieldReader& reader, ServerMessage& out) {
  switch (in.message_case()) {
    case pb::ServerToWorker::kJoined:
      return reader.Nested("joined", Decode(in.joined()), out);
    case pb::ServerToWorker::kRefused:
      return reader.Nested("refused", Decode(in.refused()), out);
    case pb::ServerToWorker::kLayoutWanted:
      return reader.Nested("layout_wanted", Decode(in.layout_wanted()), out);
    case pb::ServerToWorker::kBufferRegistered:
      out = BufferRegistered{.buffer = BufferId(in.buffer_registered().buffer()),
                             .status = StatusFromProto(in.buffer_registered().status())};
      return;
    case pb::ServerToWorker::kOperationResolved:
      return reader.Nested("operation_resolved", Decode(in.operation_resolved()), out);
    case pb::ServerToWorker::kAssignSources:
      return reader.Nested("assign_sources", Decode(in.assign_sources()), out);
    case pb::ServerToWorker::kRootKnown:
      return reader.Nested("root_known", Decode(in.root_known()), out);
    case pb::ServerToWorker::kOperationFinished:
      return reader.Nested("operation_finished", Decode(in.operation_finished()), out);
    case pb::ServerToWorker::kPublicationRefused:
      return reader.Nested("publication_refused", Decode(in.publication_refused()), out);
    case pb::ServerToWorker::kGroupChanged:
      return reader.Nested("group_changed", Decode(in.group_changed()), out);
    case pb::ServerToWorker::kOffloadReleased:
      out = OffloadReleased{BufferId(in.offload_released().buffer())};
      return;
    case pb::ServerToWorker::kAlive:
      out = Alive{};
      return;
    case pb::ServerToWorker::kCommandFinished:
    case pb::ServerToWorker::MESSAGE_NOT_SET:
      break;
  }
  return reader.Nested("command_finished", Decode(in.command_finished()), out);
}

}  // namespace

pb::ServerToWorker ToProto(const ServerMessage& message) {
  pb::ServerToWorker frame;
  std::visit(Encode{frame}, message);
  return frame;
}

absl::StatusOr<std::optional<ServerMessage>> FromProto(const pb::ServerToWorker& in) {
  if (in.message_case() == pb::ServerToWorker::MESSAGE_NOT_SET) return std::nullopt;
  FieldReader reader;
  ServerMessage message;
  DecodeMember(in, reader, message);
  return reader.Finish(std::optional<ServerMessage>(std::move(message)));
}

}  // namespace th
