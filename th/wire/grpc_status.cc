#include "th/wire/grpc_status.h"

#include "th/wire/field_reader.h"
#include "th/wire/limits.h"

namespace th {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      CleanText(status.message(), kMaxGrpcStatusMessageBytes));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace th
