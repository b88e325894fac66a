#include "th/wire/worker_message.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "th/wire/cost.h"
#include "th/wire/field_reader.h"
#include "th/wire/limits.h"

namespace th {
namespace {

// ---------------------------------------------------------------------------------------------
// Announcements

pb::HeldVersion HeldToProto(const HeldVersion& held) {
  pb::HeldVersion out;
  *out.mutable_version() = ToProto(held.version);
  out.set_complete(held.complete);
  out.set_publisher(held.publisher);
  out.set_group_committed(held.group_committed);
  if (held.root.has_value()) out.set_root(DigestToProto(*held.root));
  *out.mutable_segments() = ToProto(held.segments);
  for (size_t i = 0; i < held.sources.size() && i < kMaxSourcesOnWire; ++i) {
    *out.add_sources() = ToProto(held.sources[i]);
  }
  if (held.receipt.has_value()) *out.mutable_receipt() = ToProto(*held.receipt);
  return out;
}

absl::StatusOr<HeldVersion> HeldFromProto(const pb::HeldVersion& in) {
  FieldReader reader;
  HeldVersion out{.complete = in.complete(),
                  .publisher = in.publisher(),
                  .group_committed = in.group_committed()};
  reader.Message("version", in.has_version(), FromProto(in.version()), out.version);
  if (in.has_root()) reader.Digest("root", in.root(), out.root.emplace());
  reader.Nested("segments", FromProto(in.segments()), out.segments);
  reader.Each("sources", in.sources(), kMaxSourcesOnWire, out.sources,
              [](const pb::BufferAddress& source) -> absl::StatusOr<BufferAddress> {
                return BufferAddressFromProto(source);
              });
  if (in.has_receipt()) reader.Nested("receipt", FromProto(in.receipt()), out.receipt.emplace());
  return reader.Finish(std::move(out));
}

pb::SourceThroughput ThroughputToProto(const SourceThroughput& throughput) {
  pb::SourceThroughput out;
  *out.mutable_source() = ToProto(throughput.source);
  out.set_bytes(throughput.bytes);
  const absl::Duration waited =
      std::clamp(throughput.waited, absl::ZeroDuration(), kMaxDurationOnWire);
  out.set_waited_us(static_cast<uint64_t>(absl::ToInt64Microseconds(waited)));
  return out;
}

absl::StatusOr<SourceThroughput> ThroughputFromProto(const pb::SourceThroughput& in) {
  FieldReader reader;
  SourceThroughput out{.source = BufferAddressFromProto(in.source()), .bytes = in.bytes()};
  const uint64_t longest = static_cast<uint64_t>(absl::ToInt64Microseconds(kMaxDurationOnWire));
  reader.Check(in.waited_us() <= longest, "waited_us", "is too long");
  if (in.waited_us() <= longest) out.waited = absl::Microseconds(in.waited_us());
  return reader.Finish(out);
}

pb::FinishedOperation FinishedToProto(const FinishedOperation& finished) {
  pb::FinishedOperation out;
  out.set_number(finished.number.value);
  out.set_kind(static_cast<pb::OperationKind>(finished.kind));
  *out.mutable_status() = ToProto(finished.status);
  out.set_outcome(static_cast<pb::UpdateOutcome>(finished.outcome));
  out.set_not_available(static_cast<pb::NotAvailableReason>(finished.not_available));
  *out.mutable_version() = ToProto(finished.version);
  out.set_must_offload(finished.must_offload);
  out.set_site_copy(finished.site_copy);
  return out;
}

absl::StatusOr<FinishedOperation> FinishedFromProto(const pb::FinishedOperation& in) {
  FieldReader reader;
  FinishedOperation out{.number = OperationNumber(in.number()),
                        .status = StatusFromProto(in.status()),
                        .must_offload = in.must_offload(),
                        .site_copy = in.site_copy()};
  reader.Enum("kind", in.kind(), OperationKind::kUpdate, true, out.kind);
  reader.Enum("outcome", in.outcome(), UpdateOutcome::kNotAvailable, false, out.outcome);
  reader.Enum("not_available", in.not_available(), NotAvailableReason::kBehindFloor, false,
              out.not_available);
  reader.Nested("version", FromProto(in.version()), out.version);
  return reader.Finish(std::move(out));
}

pb::AnnouncedBuffer AnnouncedToProto(const AnnouncedBuffer& buffer) {
  pb::AnnouncedBuffer out;
  out.set_buffer(buffer.buffer.value);
  out.set_buffer_name(buffer.buffer_name);
  out.set_form(buffer.form);
  out.set_layout(DigestToProto(buffer.layout));
  out.set_bytes(buffer.bytes);
  out.set_segment_count(buffer.segment_count);
  out.set_generation(buffer.generation.value);
  if (buffer.held.has_value()) *out.mutable_held() = HeldToProto(*buffer.held);
  if (buffer.last_finished.has_value()) {
    *out.mutable_last_finished() = FinishedToProto(*buffer.last_finished);
  }
  out.set_role(static_cast<pb::BufferRole>(buffer.role));
  out.set_staged_for(buffer.staged_for);
  out.set_counts_after(buffer.counts_after.value);
  return out;
}

absl::StatusOr<AnnouncedBuffer> AnnouncedFromProto(const pb::AnnouncedBuffer& in) {
  FieldReader reader;
  AnnouncedBuffer out{.buffer = BufferId(in.buffer()),
                      .bytes = in.bytes(),
                      .segment_count = in.segment_count(),
                      .generation = BufferGeneration(in.generation()),
                      .counts_after = GroupGeneration(in.counts_after())};
  reader.Name("buffer_name", in.buffer_name(), out.buffer_name);
  reader.Name("form", in.form(), out.form);
  reader.Enum("role", in.role(), BufferRole::kStreaming, true, out.role);
  reader.OptionalName("staged_for", in.staged_for(), out.staged_for);
  reader.Digest("layout", in.layout(), out.layout);
  reader.Check(in.segment_count() <= kMaxSegmentsOnWire, "segment_count", "is too large");
  reader.Message("held", in.has_held(), HeldFromProto(in.held()), out.held);
  reader.Message("last_finished", in.has_last_finished(), FinishedFromProto(in.last_finished()),
                 out.last_finished);
  if (reader.status().ok() && out.held.has_value() && !out.held->segments.empty()) {
    reader.Check(out.held->segments.ranges().back().end.value <= out.segment_count, "held.segments",
                 "go beyond segment_count");
  }
  return reader.Finish(std::move(out));
}

// ---------------------------------------------------------------------------------------------
// The frame's alternatives: to protobuf

struct Encode {
  pb::WorkerToServer& frame;

  void operator()(const JoinRequest& in) const {
    pb::JoinRequest& out = *frame.mutable_join();
    *out.mutable_hello() = ToProto(in.hello);
    *out.mutable_key() = ToProto(in.key);
    *out.mutable_name() = ToProto(in.name);
    out.set_ranks(in.ranks);
    *out.mutable_location() = ToProto(in.location);
    for (const Endpoint& endpoint : in.endpoints) *out.add_endpoints() = ToProto(endpoint);
    out.set_spot(in.spot);
    out.set_offload_limit_bytes(in.offload_limit_bytes);
    if (in.leaves_in != absl::InfiniteDuration()) *out.mutable_leaves_in() = ToProto(in.leaves_in);
    out.set_credentials(in.credentials);
    if (in.resume.has_value()) {
      out.mutable_resume()->set_worker(in.resume->worker.value);
      out.mutable_resume()->set_epoch(in.resume->epoch.value);
      out.mutable_resume()->set_group_generation(in.resume->group_generation.value);
      out.mutable_resume()->set_lineage(in.resume->lineage.value);
      out.mutable_resume()->set_cluster(in.resume->cluster.value);
      out.mutable_resume()->set_epoch_id(in.resume->epoch_id.value);
      const auto& secret = in.resume->secret.bytes;
      out.mutable_resume()->set_secret(std::string(secret.begin(), secret.end()));
    }
    for (const AnnouncedBuffer& buffer : in.buffers) {
      *out.add_buffers() = AnnouncedToProto(buffer);
    }
  }
  void operator()(const RegisterBuffer& in) const {
    *frame.mutable_register_buffer()->mutable_buffer() = AnnouncedToProto(in.buffer);
  }
  void operator()(const LayoutUpload& in) const {
    frame.mutable_layout_upload()->set_layout(in.layout.Encode());
  }
  void operator()(const StartOperation& in) const {
    pb::StartOperation& out = *frame.mutable_start_operation();
    *out.mutable_key() = ToProto(in.key);
    out.set_kind(static_cast<pb::OperationKind>(in.kind));
    *out.mutable_timeout() = ToProto(in.timeout);
    out.set_group_generation(in.group_generation.value);
    out.set_generation(in.generation.value);
    out.set_label(in.label.text());
    *out.mutable_attributes() = ToProto(in.attributes);
    if (in.derived_from.has_value()) out.set_derived_from(in.derived_from->value);
    out.set_snapshot_bytes(in.snapshot_bytes);
    out.set_keep_retained(in.keep_retained);
    *out.mutable_selector() = ToProto(in.selector);
    out.set_floor(in.floor.value);
    out.set_when_seeding(static_cast<pb::WhenSeeding>(in.when_seeding));
    if (in.resolved.has_value()) *out.mutable_resolved() = ToProto(*in.resolved);
  }
  void operator()(const ReadyToFill& in) const {
    *frame.mutable_ready_to_fill()->mutable_key() = ToProto(in.key);
    frame.mutable_ready_to_fill()->set_generation(in.generation.value);
  }
  void operator()(const ShardSealed& in) const {
    pb::ShardSealed& out = *frame.mutable_shard_sealed();
    out.set_buffer(in.buffer.value);
    out.set_version(in.version.value);
    out.set_root(DigestToProto(in.root));
  }
  void operator()(const FillProgress& in) const {
    pb::FillProgress& out = *frame.mutable_fill_progress();
    *out.mutable_key() = ToProto(in.key);
    out.set_version(in.version.value);
    *out.mutable_segments() = ToProto(in.segments);
    for (const SourceThroughput& throughput : in.throughputs) {
      if (static_cast<size_t>(out.throughputs_size()) == kMaxThroughputsReported) break;
      *out.add_throughputs() = ThroughputToProto(throughput);
    }
    if (in.transports.has_value()) *out.mutable_transports() = ToProto(*in.transports);
  }
  void operator()(const RankDone& in) const {
    *frame.mutable_rank_done()->mutable_key() = ToProto(in.key);
    frame.mutable_rank_done()->set_readers_cut(in.readers_cut);
    *frame.mutable_rank_done()->mutable_cost() = ToProto(in.cost);
  }
  void operator()(const RankFailed& in) const {
    pb::RankFailed& out = *frame.mutable_rank_failed();
    *out.mutable_key() = ToProto(in.key);
    *out.mutable_status() = ToProto(in.status);
    out.set_buffer_undefined(in.buffer_undefined);
  }
  void operator()(const SourceFailed& in) const {
    pb::SourceFailed& out = *frame.mutable_source_failed();
    *out.mutable_key() = ToProto(in.key);
    out.set_assignment(in.assignment.value);
    *out.mutable_source() = ToProto(in.source);
    out.set_failure(static_cast<pb::SourceFailure>(in.failure));
    out.set_detail(CleanText(in.detail, kMaxProseBytesOnWire));
  }
  void operator()(const SourceSuspected& in) const {
    pb::SourceSuspected& out = *frame.mutable_source_suspected();
    *out.mutable_key() = ToProto(in.key);
    out.set_assignment(in.assignment.value);
    *out.mutable_source() = ToProto(in.source);
    out.set_detail(CleanText(in.detail, kMaxProseBytesOnWire));
  }
  void operator()(const BufferReset& in) const {
    frame.mutable_buffer_reset()->set_buffer(in.buffer.value);
  }
  void operator()(const UnregisterBuffer& in) const {
    frame.mutable_unregister_buffer()->set_buffer(in.buffer.value);
  }
  void operator()(const RunCommand& in) const { *frame.mutable_run_command() = ToProto(in); }
  void operator()(const Heartbeat& in) const { frame.mutable_heartbeat()->set_ask(in.ask); }
  void operator()(const Leave&) const { frame.mutable_leave(); }
  void operator()(const Preempt& in) const {
    *frame.mutable_preempt()->mutable_deadline() = ToProto(in.deadline);
  }
};

// ---------------------------------------------------------------------------------------------
// The frame's alternatives: from protobuf

// A worker that was given no secret has none to show.
absl::StatusOr<ResumeClaim> ClaimFromProto(const pb::ResumeClaim& in) {
  FieldReader reader;
  ResumeClaim out{.worker = WorkerId(in.worker()),
                  .epoch = Epoch(in.epoch()),
                  .group_generation = GroupGeneration(in.group_generation()),
                  .lineage = Lineage(in.lineage()),
                  .cluster = ClusterId(in.cluster()),
                  .epoch_id = EpochId(in.epoch_id())};
  if (!in.secret().empty()) reader.Bytes("secret", in.secret(), out.secret.bytes);
  return reader.Finish(out);
}

absl::StatusOr<WorkerMessage> Decode(const pb::JoinRequest& in) {
  FieldReader reader;
  JoinRequest out{
      .ranks = in.ranks(), .spot = in.spot(), .offload_limit_bytes = in.offload_limit_bytes()};
  reader.Message("hello", in.has_hello(), FromProto(in.hello()), out.hello);
  reader.Message("key", in.has_key(), FromProto(in.key()), out.key);
  reader.Message("name", in.has_name(), FromProto(in.name()), out.name);
  reader.Nested("location", FromProto(in.location()), out.location);
  reader.Each("endpoints", in.endpoints(), kMaxEndpointsOnWire, out.endpoints,
              [](const pb::Endpoint& endpoint) { return FromProto(endpoint); });
  reader.Text("credentials", in.credentials(), kMaxCredentialsBytes, out.credentials);
  reader.DurationOrInfinite("leaves_in", in.has_leaves_in(), in.leaves_in(), out.leaves_in);
  reader.Message("resume", in.has_resume(), ClaimFromProto(in.resume()), out.resume);
  reader.Each("buffers", in.buffers(), kMaxBuffersOnWire, out.buffers, AnnouncedFromProto);
  return reader.Finish(WorkerMessage(std::move(out)));
}

absl::StatusOr<WorkerMessage> Decode(const pb::RegisterBuffer& in) {
  FieldReader reader;
  RegisterBuffer out;
  reader.Message("buffer", in.has_buffer(), AnnouncedFromProto(in.buffer()), out.buffer);
  return reader.Finish(WorkerMessage(std::move(out)));
}

absl::StatusOr<WorkerMessage> Decode(const pb::LayoutUpload& in) {
  FieldReader reader;
  LayoutUpload out;
  absl::StatusOr<ShardLayout> layout = ShardLayout::Decode(in.layout());
  reader.Check("layout", layout.status());
  if (layout.ok()) out.layout = *std::move(layout);
  return reader.Finish(WorkerMessage(std::move(out)));
}

absl::StatusOr<WorkerMessage> Decode(const pb::StartOperation& in) {
  FieldReader reader;
  StartOperation out{.key = OperationKeyFromProto(in.key()),
                     .group_generation = GroupGeneration(in.group_generation()),
                     .generation = BufferGeneration(in.generation()),
                     .snapshot_bytes = in.snapshot_bytes(),
                     .keep_retained = in.keep_retained(),
                     .floor = VersionSequence(in.floor())};
  reader.Check(in.has_key(), "key", "is missing");
  reader.Enum("kind", in.kind(), OperationKind::kUpdate, true, out.kind);
  reader.Duration("timeout", in.has_timeout(), in.timeout(), out.timeout);
  reader.Label("label", in.label(), out.label);
  reader.Inline(FromProto(in.attributes()), out.attributes);
  if (in.has_derived_from()) out.derived_from = VersionSequence(in.derived_from());
  if (in.has_selector() || out.kind == OperationKind::kUpdate) {
    reader.Message("selector", in.has_selector(), FromProto(in.selector()), out.selector);
  }
  reader.Message("resolved", in.has_resolved(), FromProto(in.resolved()), out.resolved);
  if (in.when_seeding() != pb::WHEN_SEEDING_UNSPECIFIED) {  // of a worker that knows of it
    reader.Enum("when_seeding", in.when_seeding(), WhenSeeding::kCopy, true, out.when_seeding);
  }
  reader.Reserved("components", !in.components().empty());
  reader.Reserved("base_version", in.base_version() != 0);
  return reader.Finish(WorkerMessage(std::move(out)));
}

absl::StatusOr<WorkerMessage> Decode(const pb::ReadyToFill& in) {
  FieldReader reader;
  reader.Check(in.has_key(), "key", "is missing");
  return reader.Finish(WorkerMessage(
      ReadyToFill{OperationKeyFromProto(in.key()), BufferGeneration(in.generation())}));
}

absl::StatusOr<WorkerMessage> Decode(const pb::ShardSealed& in) {
  FieldReader reader;
  ShardSealed out{.buffer = BufferId(in.buffer()), .version = VersionSequence(in.version())};
  reader.Digest("root", in.root(), out.root);
  return reader.Finish(WorkerMessage(std::move(out)));
}

absl::StatusOr<WorkerMessage> Decode(const pb::FillProgress& in) {
  FieldReader reader;
  FillProgress out{.key = OperationKeyFromProto(in.key()),
                   .version = VersionSequence(in.version())};
  reader.Check(in.has_key(), "key", "is missing");
  reader.Nested("segments", FromProto(in.segments()), out.segments);
  reader.Each("throughputs", in.throughputs(), kMaxThroughputsReported, out.throughputs,
              ThroughputFromProto);
  if (in.has_transports()) {
    reader.Nested("transports", FromProto(in.transports()), out.transports.emplace());
  }
  return reader.Finish(WorkerMessage(std::move(out)));
}

absl::StatusOr<WorkerMessage> Decode(const pb::RankDone& in) {
  FieldReader reader;
  RankDone out{OperationKeyFromProto(in.key()), in.readers_cut(), {}};
  reader.Check(in.has_key(), "key", "is missing");
  reader.Nested("cost", FromProto(in.cost()), out.cost);
  return reader.Finish(WorkerMessage(std::move(out)));
}

absl::StatusOr<WorkerMessage> Decode(const pb::RankFailed& in) {
  FieldReader reader;
  reader.Check(in.has_key(), "key", "is missing");
  reader.Check(in.status().code() != 0, "status", "is OK, which is no failure");
  return reader.Finish(WorkerMessage(RankFailed{
      OperationKeyFromProto(in.key()), StatusFromProto(in.status()), in.buffer_undefined()}));
}

absl::StatusOr<WorkerMessage> Decode(const pb::SourceFailed& in) {
  FieldReader reader;
  SourceFailed out{.key = OperationKeyFromProto(in.key()),
                   .assignment = AssignmentId(in.assignment()),
                   .source = BufferAddressFromProto(in.source())};
  reader.Check(in.has_key(), "key", "is missing");
  reader.Check(in.has_source(), "source", "is missing");
  reader.Enum("failure", in.failure(), SourceFailure::kGenerationChanged, true, out.failure);
  reader.Prose(in.detail(), out.detail);
  return reader.Finish(WorkerMessage(std::move(out)));
}

absl::StatusOr<WorkerMessage> Decode(const pb::SourceSuspected& in) {
  FieldReader reader;
  SourceSuspected out{.key = OperationKeyFromProto(in.key()),
                      .assignment = AssignmentId(in.assignment()),
                      .source = BufferAddressFromProto(in.source())};
  reader.Check(in.has_key(), "key", "is missing");
  reader.Check(in.has_source(), "source", "is missing");
  reader.Prose(in.detail(), out.detail);
  return reader.Finish(WorkerMessage(std::move(out)));
}

absl::StatusOr<WorkerMessage> Decode(const pb::Preempt& in) {
  FieldReader reader;
  Preempt out;
  reader.Duration("deadline", in.has_deadline(), in.deadline(), out.deadline);
  return reader.Finish(WorkerMessage(std::move(out)));
}

absl::StatusOr<WorkerMessage> Decode(const pb::RunCommand& in) {
  FieldReader reader;
  RunCommand out;
  reader.Inline(FromProto(in), out);
  return reader.Finish(WorkerMessage(std::move(out)));
}

// Errors are named by the member that is set.
void DecodeMember(const pb::WorkerToServer& in, FieldReader& reader, WorkerMessage& out) {
  switch (in.message_case()) {
    case pb::WorkerToServer::kJoin:
      return reader.Nested("join", Decode(in.join()), out);
    case pb::WorkerToServer::kRegisterBuffer:
      return reader.Nested("register_buffer", Decode(in.register_buffer()), out);
    case pb::WorkerToServer::kLayoutUpload:
      return reader.Nested("layout_upload", Decode(in.layout_upload()), out);
    case pb::WorkerToServer::kStartOperation:
      return reader.Nested("start_operation", Decode(in.start_operation()), out);
    case pb::WorkerToServer::kReadyToFill:
      return reader.Nested("ready_to_fill", Decode(in.ready_to_fill()), out);
    case pb::WorkerToServer::kShardSealed:
      return reader.Nested("shard_sealed", Decode(in.shard_sealed()), out);
    case pb::WorkerToServer::kFillProgress:
      return reader.Nested("fill_progress", Decode(in.fill_progress()), out);
    case pb::WorkerToServer::kRankDone:
      return reader.Nested("rank_done", Decode(in.rank_done()), out);
    case pb::WorkerToServer::kRankFailed:
      return reader.Nested("rank_failed", Decode(in.rank_failed()), out);
    case pb::WorkerToServer::kSourceFailed:
      return reader.Nested("source_failed", Decode(in.source_failed()), out);
    case pb::WorkerToServer::kBufferReset:
      out = BufferReset{BufferId(in.buffer_reset().buffer())};
      return;
    case pb::WorkerToServer::kUnregisterBuffer:
      out = UnregisterBuffer{BufferId(in.unregister_buffer().buffer())};
      return;
    case pb::WorkerToServer::kRunCommand:
      return reader.Nested("run_command", Decode(in.run_command()), out);
    case pb::WorkerToServer::kSourceSuspected:
      return reader.Nested("source_suspected", Decode(in.source_suspected()), out);
    case pb::WorkerToServer::kLeave:
      out = Leave{};
      return;
    case pb::WorkerToServer::kPreempt:
      return reader.Nested("preempt", Decode(in.preempt()), out);
    case pb::WorkerToServer::kHeartbeat:
    case pb::WorkerToServer::MESSAGE_NOT_SET:
      break;
  }
  out = Heartbeat{.ask = in.heartbeat().ask()};
}

}  // namespace

pb::WorkerToServer ToProto(const WorkerMessage& message) {
  pb::WorkerToServer frame;
  std::visit(Encode{frame}, message);
  return frame;
}

absl::StatusOr<std::optional<WorkerMessage>> FromProto(const pb::WorkerToServer& in) {
  if (in.message_case() == pb::WorkerToServer::MESSAGE_NOT_SET) return std::nullopt;
  FieldReader reader;
  WorkerMessage message;
  DecodeMember(in, reader, message);
  return reader.Finish(std::optional<WorkerMessage>(std::move(message)));
}

}  // namespace th
