// The calls of controllers, which have no rank, to and from protobuf. See wire.h for the rules.
#ifndef TH_WIRE_CONTROLLER_REQUEST_H_
#define TH_WIRE_CONTROLLER_REQUEST_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/proto/tensorhub.pb.h"
#include "th/protocol/catalog.h"
#include "th/protocol/messages.h"
#include "th/wire/values.h"

namespace th {

struct ListQuery {
  ProtocolHello hello;
  std::string run;    // "": all
  std::string model;  // "": all
  bool omit_attributes = false;
};
struct ResolveQuery {
  ProtocolHello hello;
  ModelKey key;
  VersionSelector selector = LatestVersion{};
};
// The version that `selector` names once that is one after `after` (zero: any).
struct WaitQuery {
  ProtocolHello hello;
  ModelKey key;
  VersionSelector selector = LatestVersion{};
  VersionSequence after;
  absl::Duration timeout;
};
struct ControllerCommand {
  ProtocolHello hello;
  ModelKey key;
  RunCommand command;
  std::string credentials;  // opaque; unused until authentication exists
};
struct LayoutQuery {
  ProtocolHello hello;
  Digest digest;
};

struct FindShardQuery {
  ProtocolHello hello;
  ShardQuery shard;
};

struct ClaimFormQuery {
  ProtocolHello hello;
  FormQuery form;
};

pb::ListRequest ToProto(const ListQuery& query);
pb::ResolveRequest ToProto(const ResolveQuery& query);
pb::WaitVersionRequest ToProto(const WaitQuery& query);
pb::CommandRequest ToProto(const ControllerCommand& command);
pb::GetLayoutRequest ToProto(const LayoutQuery& query);
pb::FindShardRequest ToProto(const FindShardQuery& query);
pb::FindShardResponse ToProto(const FoundShard& found);
pb::ClaimFormRequest ToProto(const ClaimFormQuery& query);
pb::ClaimFormResponse ToProto(const FormChoice& choice);

absl::StatusOr<ListQuery> FromProto(const pb::ListRequest& in);
absl::StatusOr<ResolveQuery> FromProto(const pb::ResolveRequest& in);
absl::StatusOr<WaitQuery> FromProto(const pb::WaitVersionRequest& in);
absl::StatusOr<ControllerCommand> FromProto(const pb::CommandRequest& in);
absl::StatusOr<LayoutQuery> FromProto(const pb::GetLayoutRequest& in);
absl::StatusOr<FindShardQuery> FromProto(const pb::FindShardRequest& in);
absl::StatusOr<FoundShard> FromProto(const pb::FindShardResponse& in);
absl::StatusOr<ClaimFormQuery> FromProto(const pb::ClaimFormRequest& in);
absl::StatusOr<FormChoice> FromProto(const pb::ClaimFormResponse& in);

}  // namespace th

#endif  // TH_WIRE_CONTROLLER_REQUEST_H_
