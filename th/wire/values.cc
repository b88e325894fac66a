#include "th/wire/values.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "th/wire/field_reader.h"
#include "th/wire/limits.h"

namespace th {
namespace {

// The longest ranges, in order: less than is held, never more.
std::vector<SegmentRange> Coarsen(std::vector<SegmentRange> ranges) {
  if (ranges.size() <= kMaxRangesOnWire) return ranges;
  const auto longer = [](const SegmentRange& a, const SegmentRange& b) {
    return a.count() != b.count() ? a.count() > b.count() : a.begin < b.begin;
  };
  std::nth_element(ranges.begin(), ranges.begin() + kMaxRangesOnWire, ranges.end(), longer);
  ranges.resize(kMaxRangesOnWire);
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

absl::StatusOr<RollBack> FromProto(const pb::RollBack& in) {
  FieldReader reader;
  RollBack out;
  reader.Message("to", in.has_to(), th::FromProto(in.to()), out.to);
  return reader.Finish(std::move(out));
}

absl::StatusOr<SetRetention> FromProto(const pb::SetRetention& in) {
  FieldReader reader;
  SetRetention out{.keep_latest = in.keep_latest()};
  reader.OptionalName("form", in.form(), out.form);
  return reader.Finish(std::move(out));
}

absl::StatusOr<PinVersion> FromProto(const pb::PinVersion& in) {
  FieldReader reader;
  PinVersion out;
  reader.Message("version", in.has_version(), th::FromProto(in.version()), out.version);
  reader.Text("owner", in.owner(), kMaxNameBytes, out.owner);
  reader.DurationOrInfinite("expires_after", in.has_expires_after(), in.expires_after(),
                            out.expires_after);
  reader.OptionalName("form", in.form(), out.form);
  return reader.Finish(std::move(out));
}

absl::StatusOr<ReleasePin> FromProto(const pb::ReleasePin& in) {
  FieldReader reader;
  ReleasePin out;
  reader.Message("version", in.has_version(), th::FromProto(in.version()), out.version);
  reader.Text("owner", in.owner(), kMaxNameBytes, out.owner);
  reader.OptionalName("form", in.form(), out.form);
  return reader.Finish(std::move(out));
}

struct CommandToProto {
  pb::RunCommand& out;
  void operator()(const RollBack& command) const {
    *out.mutable_roll_back()->mutable_to() = ToProto(command.to);
  }
  void operator()(const SetRetention& command) const {
    out.mutable_set_retention()->set_keep_latest(command.keep_latest);
    out.mutable_set_retention()->set_form(command.form);
  }
  void operator()(const PinVersion& command) const {
    pb::PinVersion& pin = *out.mutable_pin_version();
    *pin.mutable_version() = ToProto(command.version);
    pin.set_owner(CleanText(command.owner, kMaxNameBytes));
    pin.set_form(command.form);
    if (command.expires_after != absl::InfiniteDuration()) {
      *pin.mutable_expires_after() = ToProto(command.expires_after);
    }
  }
  void operator()(const ReleasePin& command) const {
    *out.mutable_release_pin()->mutable_version() = ToProto(command.version);
    out.mutable_release_pin()->set_owner(CleanText(command.owner, kMaxNameBytes));
    out.mutable_release_pin()->set_form(command.form);
  }
  void operator()(const Forget&) const { out.mutable_forget(); }
};

// Moves a decoded alternative into the variant.
template <typename T>
void TakeCommand(FieldReader& reader, absl::string_view field, absl::StatusOr<T> value,
                 Command& out) {
  T command;
  reader.Nested(field, std::move(value), command);
  out = std::move(command);
}

}  // namespace

pb::Duration ToProto(absl::Duration duration) {
  duration = std::clamp(duration, absl::ZeroDuration(), kMaxDurationOnWire);
  pb::Duration out;
  absl::Duration fraction;
  out.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &fraction));
  out.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(fraction)));
  return out;
}

pb::Status ToProto(const absl::Status& status) {
  pb::Status out;
  out.set_code(static_cast<int>(status.code()));
  if (!status.ok()) out.set_message(CleanText(status.message(), kMaxProseBytesOnWire));
  return out;
}

absl::Status StatusFromProto(const pb::Status& in) {
  // The constructor maps codes outside the canonical ones to UNKNOWN only when they are read back.
  const absl::Status raw(static_cast<absl::StatusCode>(in.code()), "");
  return absl::Status(raw.code(), CleanText(in.message(), kMaxProseBytesOnWire));
}

pb::Hello ToProto(const ProtocolHello& hello) {
  pb::Hello out;
  out.set_min_version(hello.min_version);
  out.set_max_version(hello.max_version);
  out.set_features(hello.features);
  out.set_software(CleanText(hello.software, kMaxNameBytes));
  return out;
}

absl::StatusOr<ProtocolHello> FromProto(const pb::Hello& in) {
  return ProtocolHello{.min_version = in.min_version(),
                       .max_version = in.max_version(),
                       .features = in.features(),
                       .software = CleanText(in.software(), kMaxNameBytes)};
}

pb::ModelKey ToProto(const ModelKey& key) {
  pb::ModelKey out;
  out.set_run(key.run);
  out.set_model(key.model);
  return out;
}

absl::StatusOr<ModelKey> FromProto(const pb::ModelKey& in) {
  FieldReader reader;
  ModelKey out;
  reader.Name("run", in.run(), out.run);
  reader.Name("model", in.model(), out.model);
  return reader.Finish(std::move(out));
}

pb::RankName ToProto(const RankName& name) {
  pb::RankName out;
  out.set_group(name.group);
  out.set_rank(name.rank.value);
  return out;
}

absl::StatusOr<RankName> FromProto(const pb::RankName& in) {
  FieldReader reader;
  RankName out{.rank = Rank(in.rank())};
  reader.Name("group", in.group(), out.group);
  return reader.Finish(std::move(out));
}

pb::Location ToProto(const Location& location) {
  pb::Location out;
  out.set_site(CleanText(location.site, kMaxNameBytes));
  out.set_rack(CleanText(location.rack, kMaxNameBytes));
  out.set_host(CleanText(location.host, kMaxNameBytes));
  out.set_device(CleanText(location.device, kMaxNameBytes));
  out.set_host_name(CleanText(location.host_name, kMaxNameBytes));
  if (location.numa_node >= 0) out.set_numa_node(location.numa_node);
  for (size_t i = 0; i < std::min(location.nics.size(), kMaxNicsOnWire); ++i) {
    out.add_nics(CleanText(location.nics[i], kMaxNameBytes));
  }
  return out;
}

absl::StatusOr<Location> FromProto(const pb::Location& in) {
  FieldReader reader;
  Location out;
  reader.Text("site", in.site(), kMaxNameBytes, out.site);
  reader.Text("rack", in.rack(), kMaxNameBytes, out.rack);
  reader.Text("host", in.host(), kMaxNameBytes, out.host);
  reader.Text("device", in.device(), kMaxNameBytes, out.device);
  reader.Text("host_name", in.host_name(), kMaxNameBytes, out.host_name);
  if (in.has_numa_node()) {
    reader.Check(in.numa_node() >= 0, "numa_node", "is negative");
    out.numa_node = in.numa_node();
  }
  reader.Each("nics", in.nics(), kMaxNicsOnWire, out.nics,
              [](const std::string& nic) -> absl::StatusOr<std::string> {
                if (nic.size() <= kMaxNameBytes) return nic;
                return absl::InvalidArgumentError("name: is too long");
              });
  return reader.Finish(std::move(out));
}

pb::Endpoint ToProto(const Endpoint& endpoint) {
  pb::Endpoint out;
  out.set_address(CleanText(endpoint.address, kMaxNameBytes));
  out.set_transport(CleanText(endpoint.transport, kMaxNameBytes));
  out.set_site(CleanText(endpoint.site, kMaxNameBytes));
  return out;
}

absl::StatusOr<Endpoint> FromProto(const pb::Endpoint& in) {
  FieldReader reader;
  Endpoint out;
  reader.Check(!in.address().empty(), "address", "is missing");
  reader.Text("address", in.address(), kMaxNameBytes, out.address);
  reader.Name("transport", in.transport(), out.transport);
  reader.Text("site", in.site(), kMaxNameBytes, out.site);
  return reader.Finish(std::move(out));
}

AttributesOnWire ToProto(const Attributes& attributes) {
  AttributesOnWire out;
  out.Reserve(static_cast<int>(attributes.size()));
  for (const auto& [key, value] : attributes) {
    pb::Attribute& attribute = *out.Add();
    attribute.set_key(key);
    attribute.set_value(value);
  }
  return out;
}

absl::StatusOr<Attributes> FromProto(const AttributesOnWire& in) {
  FieldReader reader;
  size_t bytes = 0;
  Attributes out;
  for (const pb::Attribute& attribute : in) {
    bytes += attribute.key().size() + attribute.value().size();
    reader.Check(bytes <= kMaxAttributesBytes, "attributes",
                 absl::StrCat("have more than ", kMaxAttributesBytes, " bytes"));
    const bool is_new =
        reader.status().ok() && out.emplace(attribute.key(), attribute.value()).second;
    reader.Check(is_new, "attributes", "name one key twice");
    if (!reader.status().ok()) break;
  }
  reader.Check("attributes", ValidateAttributes(out));
  return reader.Finish(std::move(out));
}

pb::Version ToProto(const VersionInfo& version) {
  pb::Version out;
  out.set_sequence(version.sequence.value);
  out.set_label(version.label.text());
  out.set_lineage(version.lineage.value);
  *out.mutable_attributes() = ToProto(version.attributes);
  return out;
}

absl::StatusOr<VersionInfo> FromProto(const pb::Version& in) {
  FieldReader reader;
  VersionInfo out{.sequence = VersionSequence(in.sequence()), .lineage = Lineage(in.lineage())};
  reader.Label("label", in.label(), out.label);
  reader.Inline(FromProto(in.attributes()), out.attributes);
  reader.Reserved("components", !in.components().empty());
  reader.Reserved("base_version", in.base_version() != 0);
  return reader.Finish(std::move(out));
}

pb::VersionSelector ToProto(const VersionSelector& selector) {
  pb::VersionSelector out;
  if (const auto* label = std::get_if<VersionLabel>(&selector)) {
    out.set_label(label->text());
  } else if (const auto* sequence = std::get_if<VersionSequence>(&selector)) {
    out.set_sequence(sequence->value);
  } else {
    out.mutable_latest()->set_back(std::get<LatestVersion>(selector).back);
  }
  return out;
}

absl::StatusOr<VersionSelector> FromProto(const pb::VersionSelector& in) {
  FieldReader reader;
  switch (in.selector_case()) {
    case pb::VersionSelector::kLatest:
      return LatestVersion{.back = in.latest().back()};
    case pb::VersionSelector::kSequence:
      reader.Check(in.sequence() != 0, "sequence", "is zero, which is no version");
      return reader.Finish(VersionSelector(VersionSequence(in.sequence())));
    case pb::VersionSelector::kLabel: {
      VersionLabel label;
      reader.Check(!in.label().empty(), "label", "is empty");
      reader.Label("label", in.label(), label);
      return reader.Finish(VersionSelector(std::move(label)));
    }
    case pb::VersionSelector::SELECTOR_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("selector: is missing or unknown");
}

pb::BufferAddress ToProto(const BufferAddress& address) {
  pb::BufferAddress out;
  out.set_worker(address.worker.value);
  out.set_buffer(address.buffer.value);
  return out;
}

BufferAddress BufferAddressFromProto(const pb::BufferAddress& in) {
  return {WorkerId(in.worker()), BufferId(in.buffer())};
}

pb::OperationKey ToProto(const OperationKey& key) {
  pb::OperationKey out;
  out.set_buffer(key.buffer.value);
  out.set_number(key.number.value);
  return out;
}

OperationKey OperationKeyFromProto(const pb::OperationKey& in) {
  return {BufferId(in.buffer()), OperationNumber(in.number())};
}

pb::SegmentSet ToProto(const SegmentSet& segments) {
  pb::SegmentSet out;
  uint64_t position = 0;
  for (const SegmentRange& range : Coarsen(segments.ranges())) {
    out.add_runs(range.begin.value - position);
    out.add_runs(range.count());
    position = range.end.value;
  }
  return out;
}

absl::StatusOr<SegmentSet> FromProto(const pb::SegmentSet& in) {
  const size_t runs = static_cast<size_t>(in.runs_size());
  FieldReader reader;
  reader.Check(runs % 2 == 0, "runs", "end with an absent one");
  reader.Check(runs / 2 <= kMaxRangesOnWire, "runs",
               absl::StrCat("are ", runs, ", at most ", 2 * kMaxRangesOnWire));
  std::vector<SegmentRange> ranges;
  uint64_t position = 0;
  for (size_t i = 0; i < runs && reader.status().ok(); ++i) {
    const uint64_t length = in.runs(static_cast<int>(i));
    reader.Check(length != 0 || i == 0, "runs", absl::StrCat("have an empty one at ", i));
    reader.Check(length <= kMaxSegmentsOnWire - position, "runs", "are too long together");
    if (!reader.status().ok()) break;
    const SegmentIndex begin(position);
    position += length;
    if (i % 2 == 1) ranges.push_back({begin, SegmentIndex(position)});
  }
  if (!reader.status().ok()) return reader.status();
  return SegmentSet::FromRanges(std::move(ranges));
}

pb::RootReceipt ToProto(const RootReceipt& receipt) {
  pb::RootReceipt out;
  out.set_root(DigestToProto(receipt.root));
  out.set_code(std::string(receipt.code.begin(), receipt.code.end()));
  return out;
}

absl::StatusOr<RootReceipt> FromProto(const pb::RootReceipt& in) {
  FieldReader reader;
  RootReceipt out;
  reader.Digest("root", in.root(), out.root);
  reader.Bytes("code", in.code(), out.code);
  return reader.Finish(out);
}

pb::SealedShard ToProto(const SealedShard& shard) {
  pb::SealedShard out;
  out.set_layout(DigestToProto(shard.layout));
  out.set_root(DigestToProto(shard.root));
  return out;
}

absl::StatusOr<SealedShard> FromProto(const pb::SealedShard& in) {
  FieldReader reader;
  SealedShard out;
  reader.Digest("layout", in.layout(), out.layout);
  reader.Digest("root", in.root(), out.root);
  return reader.Finish(std::move(out));
}

pb::RunCommand ToProto(const RunCommand& command) {
  pb::RunCommand out;
  out.set_idempotency_key(command.idempotency_key);
  std::visit(CommandToProto{out}, command.command);
  return out;
}

absl::StatusOr<RunCommand> FromProto(const pb::RunCommand& in) {
  FieldReader reader;
  RunCommand out;
  reader.Check(!in.idempotency_key().empty(), "idempotency_key", "is missing");
  reader.Text("idempotency_key", in.idempotency_key(), kMaxIdempotencyKeyOnWire,
              out.idempotency_key);
  switch (in.command_case()) {
    case pb::RunCommand::kRollBack:
      TakeCommand(reader, "roll_back", FromProto(in.roll_back()), out.command);
      break;
    case pb::RunCommand::kSetRetention:
      TakeCommand(reader, "set_retention", FromProto(in.set_retention()), out.command);
      break;
    case pb::RunCommand::kPinVersion:
      TakeCommand(reader, "pin_version", FromProto(in.pin_version()), out.command);
      break;
    case pb::RunCommand::kReleasePin:
      TakeCommand(reader, "release_pin", FromProto(in.release_pin()), out.command);
      break;
    case pb::RunCommand::kForget:
      out.command = Forget{};
      break;
    case pb::RunCommand::COMMAND_NOT_SET:
      reader.Check(false, "command", "is missing or unknown");
  }
  return reader.Finish(std::move(out));
}

pb::CommandFinished ToProto(const CommandFinished& finished) {
  pb::CommandFinished out;
  out.set_idempotency_key(finished.idempotency_key);
  *out.mutable_status() = ToProto(finished.status);
  *out.mutable_version() = ToProto(finished.version);
  out.set_lineage(finished.lineage.value);
  return out;
}

absl::StatusOr<CommandFinished> FromProto(const pb::CommandFinished& in) {
  FieldReader reader;
  CommandFinished out{.status = StatusFromProto(in.status()), .lineage = Lineage(in.lineage())};
  reader.Text("idempotency_key", in.idempotency_key(), kMaxIdempotencyKeyOnWire,
              out.idempotency_key);
  reader.Nested("version", FromProto(in.version()), out.version);
  return reader.Finish(std::move(out));
}

std::string DigestToProto(const Digest& digest) {
  return std::string(digest.bytes.begin(), digest.bytes.end());
}

}  // namespace th
