// Messages of the server to a worker, to and from protobuf. See wire.h for the rules.
#ifndef TH_WIRE_SERVER_MESSAGE_H_
#define TH_WIRE_SERVER_MESSAGE_H_

#include <optional>

#include "absl/status/statusor.h"
#include "th/proto/tensorhub.pb.h"
#include "th/protocol/messages.h"
#include "th/wire/values.h"

namespace th {

pb::ServerToWorker ToProto(const ServerMessage& message);

// nullopt: a frame that this build does not know, from a newer peer; ignore it and count it.
absl::StatusOr<std::optional<ServerMessage>> FromProto(const pb::ServerToWorker& in);

}  // namespace th

#endif  // TH_WIRE_SERVER_MESSAGE_H_
