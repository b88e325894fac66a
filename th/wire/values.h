// The values that many messages share, to and from protobuf. See wire.h for the rules.
//
// `FromProto` returns INVALID_ARGUMENT with the path of the field at fault ("key.run: …") and
// UNIMPLEMENTED for a reserved one. Thread-safe: plain functions.
#ifndef TH_WIRE_VALUES_H_
#define TH_WIRE_VALUES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "google/protobuf/repeated_field.h"
#include "th/proto/tensorhub.pb.h"
#include "th/protocol/messages.h"

namespace th {

namespace pb = ::tensorhub::v1;

// Clamped to [0, kMaxDurationOnWire].
pb::Duration ToProto(absl::Duration duration);

// Codes that this build does not know become UNKNOWN. An OK status has no message.
pb::Status ToProto(const absl::Status& status);
absl::Status StatusFromProto(const pb::Status& in);

pb::Hello ToProto(const ProtocolHello& hello);
absl::StatusOr<ProtocolHello> FromProto(const pb::Hello& in);

pb::ModelKey ToProto(const ModelKey& key);
absl::StatusOr<ModelKey> FromProto(const pb::ModelKey& in);

pb::RankName ToProto(const RankName& name);
absl::StatusOr<RankName> FromProto(const pb::RankName& in);

pb::Location ToProto(const Location& location);
absl::StatusOr<Location> FromProto(const pb::Location& in);

pb::Endpoint ToProto(const Endpoint& endpoint);
absl::StatusOr<Endpoint> FromProto(const pb::Endpoint& in);

using AttributesOnWire = google::protobuf::RepeatedPtrField<pb::Attribute>;
AttributesOnWire ToProto(const Attributes& attributes);
absl::StatusOr<Attributes> FromProto(const AttributesOnWire& in);

pb::Version ToProto(const VersionInfo& version);
absl::StatusOr<VersionInfo> FromProto(const pb::Version& in);

pb::VersionSelector ToProto(const VersionSelector& selector);
absl::StatusOr<VersionSelector> FromProto(const pb::VersionSelector& in);

pb::BufferAddress ToProto(const BufferAddress& address);
BufferAddress BufferAddressFromProto(const pb::BufferAddress& in);

pb::OperationKey ToProto(const OperationKey& key);
OperationKey OperationKeyFromProto(const pb::OperationKey& in);

// A set of more than kMaxRangesOnWire ranges loses its shortest ones.
pb::SegmentSet ToProto(const SegmentSet& segments);
absl::StatusOr<SegmentSet> FromProto(const pb::SegmentSet& in);

pb::RootReceipt ToProto(const RootReceipt& receipt);
absl::StatusOr<RootReceipt> FromProto(const pb::RootReceipt& in);
pb::SealedShard ToProto(const SealedShard& shard);
absl::StatusOr<SealedShard> FromProto(const pb::SealedShard& in);

pb::RunCommand ToProto(const RunCommand& command);
absl::StatusOr<RunCommand> FromProto(const pb::RunCommand& in);

pb::CommandFinished ToProto(const CommandFinished& finished);
absl::StatusOr<CommandFinished> FromProto(const pb::CommandFinished& in);

std::string DigestToProto(const Digest& digest);

}  // namespace th

#endif  // TH_WIRE_VALUES_H_
