// The structs of tensorhub.h as the C++ API has them: as much of a caller's struct is read as it
// has, over the defaults, for its library may be older or newer; what is read is copied.
#ifndef TH_C_INTERFACE_C_OPTIONS_H_
#define TH_C_INTERFACE_C_OPTIONS_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/c_interface/c_call.h"
#include "th/c_interface/tensorhub.h"
#include "th/client/client.h"

namespace th::c {

// ---- any struct

template <typename Options>
absl::Status ReadOptions(const Options* given, Options& options) {
  options = Options{sizeof(Options)};
  if (given == nullptr) return absl::OkStatus();
  if (given->struct_size < sizeof(size_t)) {
    return absl::InvalidArgumentError("struct_size of the options is not set; use the _INIT macro");
  }
  std::memcpy(&options, given, std::min(given->struct_size, sizeof(Options)));
  return absl::OkStatus();
}

// Into as much of the caller's struct as it has, but for its size.
template <typename Struct>
absl::Status FillStruct(Struct made, Struct* given) {
  if (given->struct_size < sizeof(size_t)) {
    return absl::InvalidArgumentError("struct_size is not set; use the _INIT macro");
  }
  made.struct_size = given->struct_size;
  std::memcpy(given, &made, std::min(given->struct_size, sizeof(Struct)));
  return absl::OkStatus();
}

// ---- values

std::string OrEmpty(const char* text);
// `duration` stays what it is where `seconds` is 0. INVALID_ARGUMENT for what is no time.
absl::Status ReadSeconds(double seconds, absl::string_view what, absl::Duration& duration);
absl::StatusOr<std::vector<std::string>> ReadNames(const char* const* given, size_t count,
                                                   absl::string_view what);
absl::StatusOr<VersionSelector> ReadVersion(const char* given, absl::string_view what);
absl::StatusOr<std::vector<Tensor>> ReadTensors(const th_tensor* given, size_t count);
// "" for opaque bytes.
const char* DTypeText(DType dtype);

// ---- options; INVALID_ARGUMENT for what cannot be

absl::StatusOr<ClientOptions> ReadJoin(const th_join_options* from);
bool KeepsReaderReports(const th_join_options* given);
absl::StatusOr<RegisterOptions> ReadRegister(const th_register_options* given);
absl::StatusOr<PublishOptions> ReadPublish(const th_publish_options* given);
absl::StatusOr<UnpublishOptions> ReadUnpublish(const th_unpublish_options* given);
absl::StatusOr<UpdateOptions> ReadUpdate(const th_update_options* given);
absl::StatusOr<StageOptions> ReadStage(const th_stage_options* given);
absl::StatusOr<ApplyOptions> ReadApply(const th_apply_options* given);
absl::StatusOr<AttachOptions> ReadAttach(const th_attach_options* given);
absl::StatusOr<ReceiveOptions> ReadReceive(const th_receive_options* given);

}  // namespace th::c

#endif  // TH_C_INTERFACE_C_OPTIONS_H_
