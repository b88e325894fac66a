// Messages of a worker, to and from protobuf. See wire.h for the rules.
#ifndef TH_WIRE_WORKER_MESSAGE_H_
#define TH_WIRE_WORKER_MESSAGE_H_

#include <optional>

#include "absl/status/statusor.h"
#include "th/proto/tensorhub.pb.h"
#include "th/protocol/messages.h"
#include "th/wire/values.h"

namespace th {

pb::WorkerToServer ToProto(const WorkerMessage& message);

// nullopt: a frame that this build does not know, from a newer peer; ignore it and count it.
// INVALID_ARGUMENT names the field at fault ("join.buffers[3].form: …"), UNIMPLEMENTED a reserved
// one.
absl::StatusOr<std::optional<WorkerMessage>> FromProto(const pb::WorkerToServer& in);

}  // namespace th

#endif  // TH_WIRE_WORKER_MESSAGE_H_
