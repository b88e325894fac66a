// absl::Status to and from gRPC's; the pinned gRPC has no conversion.
#ifndef TH_WIRE_GRPC_STATUS_H_
#define TH_WIRE_GRPC_STATUS_H_

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace th {

// The codes are the same numbers. The message is cut at kMaxGrpcStatusMessageBytes.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace th

#endif  // TH_WIRE_GRPC_STATUS_H_
