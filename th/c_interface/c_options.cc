#include "th/c_interface/c_options.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "th/c_interface/json_text.h"
#include "th/status/status_macros.h"
#include "th/topology/location.h"

namespace th::c {

std::string OrEmpty(const char* text) { return text == nullptr ? "" : text; }

absl::Status ReadSeconds(double seconds, absl::string_view what, absl::Duration& duration) {
  if (seconds == 0) return absl::OkStatus();
  if (std::isnan(seconds) || seconds < 0) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is ", seconds, " s"));
  }
  duration = absl::Seconds(seconds);
  return absl::OkStatus();
}

namespace {

std::vector<int64_t> ReadDimensions(const int64_t* values, size_t count) {
  return values == nullptr ? std::vector<int64_t>() : std::vector<int64_t>(values, values + count);
}

absl::StatusOr<Tensor> ReadTensor(const th_tensor& given) {
  Tensor tensor;
  TH_RETURN_IF_ERROR(Needed(given.name, "name of a tensor"));
  tensor.name = given.name;
  if (given.dtype != nullptr) {
    TH_ASSIGN_OR_RETURN(tensor.dtype, ParseDType(given.dtype));
  }
  if (given.dimensions > kMaxTensorDimensions || (given.dimensions > 0 && given.shape == nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", given.name, " has ", given.dimensions,
                                                   " dimensions and no usable shape"));
  }
  tensor.shape = ReadDimensions(given.shape, given.dimensions);
  tensor.global_shape = ReadDimensions(given.global_shape, given.dimensions);
  tensor.slice_begin = ReadDimensions(given.slice_begin, given.dimensions);
  tensor.strides = ReadDimensions(given.strides, given.dimensions);
  tensor.bytes = given.bytes;
  tensor.data = given.data;
  tensor.alias_of = OrEmpty(given.alias_of);
  return tensor;
}

}  // namespace

absl::StatusOr<std::vector<Tensor>> ReadTensors(const th_tensor* given, size_t count) {
  std::vector<Tensor> tensors;
  if (count == 0) return tensors;
  TH_RETURN_IF_ERROR(Needed(given, "tensors"));
  if (count > kMaxTensors) {
    return absl::InvalidArgumentError(absl::StrCat(count, " tensors, more than ", kMaxTensors));
  }
  const size_t stride = given->struct_size;
  tensors.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    th_tensor each;
    const auto* at =
        reinterpret_cast<const th_tensor*>(reinterpret_cast<const char*>(given) + i * stride);
    if (at->struct_size != stride) {
      return absl::InvalidArgumentError(
          absl::StrCat("struct_size of tensor ", i, " is not that of the first one"));
    }
    TH_RETURN_IF_ERROR(ReadOptions(at, each));
    TH_ASSIGN_OR_RETURN(tensors.emplace_back(), ReadTensor(each));
  }
  return tensors;
}

absl::StatusOr<ClientOptions> ReadJoin(const th_join_options* from) {
  TH_RETURN_IF_ERROR(Needed(from, "options"));
  th_join_options given;
  TH_RETURN_IF_ERROR(ReadOptions(from, given));
  ClientOptions options;
  options.server = OrEmpty(given.server);
  options.run = OrEmpty(given.run);
  options.model = OrEmpty(given.model);
  options.group = OrEmpty(given.group);
  options.rank = given.rank;
  options.ranks = std::max<uint32_t>(given.ranks, 1);
  if (given.location != nullptr) {
    TH_ASSIGN_OR_RETURN(options.location, ParseLocation(given.location));
  }
  options.spot = given.spot != 0;
  TH_RETURN_IF_ERROR(ReadSeconds(given.join_timeout, "join_timeout", options.join_timeout));
  options.data_address = OrEmpty(given.data_address);
  if (given.data_threads != 0) options.data_threads = given.data_threads;
  if (given.connections_per_source != 0) {
    options.connections_per_source = given.connections_per_source;
  }
  options.uplink_bytes_per_second = given.uplink_bytes_per_second;
  options.offload_limit_bytes = given.offload_limit_bytes;
  options.transports = absl::StrSplit(OrEmpty(given.transports), ',', absl::SkipEmpty());
  options.strict_transport = given.strict_transport != 0;
  options.snapshot_limit_bytes = given.snapshot_limit_bytes;
  options.rdma_devices = absl::StrSplit(OrEmpty(given.rdma_devices), ',', absl::SkipEmpty());
  if (given.rdma_registered_limit_bytes != 0) {
    options.rdma_registered_limit_bytes = given.rdma_registered_limit_bytes;
  }
  options.staging_limit_bytes = given.staging_limit_bytes;
  if (given.attach_limit_bytes != 0) options.attach_limit_bytes = given.attach_limit_bytes;
  if (given.refuse_attach != 0) options.attach_limit_bytes = 0;
  options.credentials = OrEmpty(given.credentials);
  return options;
}

bool KeepsReaderReports(const th_join_options* given) {
  th_join_options read;
  return ReadOptions(given, read).ok() && read.keep_reader_reports != 0;
}

absl::StatusOr<RegisterOptions> ReadRegister(const th_register_options* given) {
  th_register_options read;
  TH_RETURN_IF_ERROR(ReadOptions(given, read));
  RegisterOptions options;
  if (read.name != nullptr) options.name = read.name;
  if (read.form != nullptr) options.form = read.form;
  options.segment_bytes = read.segment_bytes;
  options.checksums = read.no_checksums == 0;
  return options;
}

namespace {

absl::StatusOr<VersionSequence> ReadSequence(const char* text, absl::string_view option) {
  TH_ASSIGN_OR_RETURN(const VersionSelector selector, ParseVersionSelector(text));
  if (!std::holds_alternative<VersionSequence>(selector)) {
    return absl::InvalidArgumentError(absl::StrCat(option, " is not a sequence (#epoch.number)"));
  }
  return std::get<VersionSequence>(selector);
}

// Reads the retention options of an unpublish or update.
template <typename Given, typename Options>
absl::Status ReadRetention(const Given& given, Options& options) {
  if (given.drop_retained != 0) options.on_retention = OnRetention::kDrop;
  return ReadSeconds(given.offload_timeout, "offload_timeout", options.offload_timeout);
}

absl::StatusOr<WhenSeeding> ReadWhenSeeding(int32_t given) {
  switch (given) {
    case TH_SEEDING_WAIT:
      return WhenSeeding::kWait;
    case TH_SEEDING_SKIP:
      return WhenSeeding::kSkip;
    case TH_SEEDING_COPY:
      return WhenSeeding::kCopy;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("when_seeding is ", given, ", none of TH_SEEDING_WAIT, _SKIP, _COPY"));
  }
}

}  // namespace

absl::StatusOr<UnpublishOptions> ReadUnpublish(const th_unpublish_options* given) {
  th_unpublish_options read;
  TH_RETURN_IF_ERROR(ReadOptions(given, read));
  UnpublishOptions options;
  TH_RETURN_IF_ERROR(ReadSeconds(read.timeout, "timeout", options.timeout));
  TH_RETURN_IF_ERROR(ReadSeconds(read.drain_timeout, "drain_timeout", options.drain_timeout));
  TH_RETURN_IF_ERROR(ReadRetention(read, options));
  return options;
}

absl::StatusOr<UpdateOptions> ReadUpdate(const th_update_options* given) {
  th_update_options read;
  TH_RETURN_IF_ERROR(ReadOptions(given, read));
  UpdateOptions options;
  TH_RETURN_IF_ERROR(ReadSeconds(read.timeout, "timeout", options.timeout));
  TH_RETURN_IF_ERROR(ReadSeconds(read.drain_timeout, "drain_timeout", options.drain_timeout));
  TH_RETURN_IF_ERROR(ReadRetention(read, options));
  TH_ASSIGN_OR_RETURN(options.when_seeding, ReadWhenSeeding(read.when_seeding));
  options.in_place = read.in_place != 0;
  options.form = OrEmpty(read.form);
  if (read.floor == nullptr) return options;
  TH_ASSIGN_OR_RETURN(options.floor, ReadSequence(read.floor, "floor"));
  return options;
}

absl::StatusOr<StageOptions> ReadStage(const th_stage_options* given) {
  th_stage_options read;
  TH_RETURN_IF_ERROR(ReadOptions(given, read));
  StageOptions options;
  TH_RETURN_IF_ERROR(ReadSeconds(read.timeout, "timeout", options.timeout));
  TH_ASSIGN_OR_RETURN(options.when_seeding, ReadWhenSeeding(read.when_seeding));
  if (read.floor == nullptr) return options;
  TH_ASSIGN_OR_RETURN(options.floor, ReadSequence(read.floor, "floor"));
  return options;
}

absl::StatusOr<ApplyOptions> ReadApply(const th_apply_options* given) {
  th_apply_options read;
  TH_RETURN_IF_ERROR(ReadOptions(given, read));
  ApplyOptions options;
  TH_RETURN_IF_ERROR(ReadSeconds(read.timeout, "timeout", options.timeout));
  TH_RETURN_IF_ERROR(ReadSeconds(read.drain_timeout, "drain_timeout", options.drain_timeout));
  TH_RETURN_IF_ERROR(ReadRetention(read, options));
  return options;
}

absl::StatusOr<PublishOptions> ReadPublish(const th_publish_options* given) {
  th_publish_options read;
  TH_RETURN_IF_ERROR(ReadOptions(given, read));
  PublishOptions options;
  TH_RETURN_IF_ERROR(ReadSeconds(read.timeout, "timeout", options.timeout));
  TH_ASSIGN_OR_RETURN(options.attributes, AttributesFromJson(OrEmpty(read.attributes)));
  if (read.snapshot != 0) options.snapshot = Snapshot::kHost;
  options.snapshot_or_in_place = read.snapshot_or_in_place != 0;
  if (read.after_cuda_event != nullptr) {
    options.after_cuda_event = reinterpret_cast<uintptr_t>(read.after_cuda_event);
  }
  if (read.derived_from == nullptr) return options;
  TH_ASSIGN_OR_RETURN(options.derived_from, ReadSequence(read.derived_from, "derived_from"));
  return options;
}

absl::StatusOr<AttachOptions> ReadAttach(const th_attach_options* given) {
  th_attach_options read;
  TH_RETURN_IF_ERROR(ReadOptions(given, read));
  AttachOptions options;
  if (read.form != nullptr) options.form = read.form;
  options.group = OrEmpty(read.group);
  options.rank = read.rank;
  if (read.layout != nullptr) {
    TH_ASSIGN_OR_RETURN(options.layout, Digest::FromHex(read.layout));
  }
  options.verify_bytes = read.verify != 0;
  TH_RETURN_IF_ERROR(ReadSeconds(read.timeout, "timeout", options.timeout));
  return options;
}

absl::StatusOr<ReceiveOptions> ReadReceive(const th_receive_options* given) {
  th_receive_options read;
  TH_RETURN_IF_ERROR(ReadOptions(given, read));
  ReceiveOptions options;
  if (read.form != nullptr) options.form = read.form;
  if (read.layout != nullptr) {
    TH_ASSIGN_OR_RETURN(options.layout, Digest::FromHex(read.layout));
  }
  options.group = OrEmpty(read.group);
  options.rank = read.rank;
  TH_ASSIGN_OR_RETURN(options.tensors, ReadNames(read.tensors, read.tensors_count, "tensors"));
  if (read.limit_bytes != 0) options.limit_bytes = read.limit_bytes;
  TH_RETURN_IF_ERROR(ReadSeconds(read.timeout, "timeout", options.timeout));
  return options;
}

absl::StatusOr<std::vector<std::string>> ReadNames(const char* const* given, size_t count,
                                                   absl::string_view what) {
  std::vector<std::string> names;
  if (count == 0) return names;
  TH_RETURN_IF_ERROR(Needed(given, what));
  if (count > kMaxTensors) {
    return absl::InvalidArgumentError(absl::StrCat(count, " ", what, ", more than ", kMaxTensors));
  }
  for (size_t i = 0; i < count; ++i) {
    TH_RETURN_IF_ERROR(Needed(given[i], absl::StrCat("one of ", what)));
    names.emplace_back(given[i]);
  }
  return names;
}

absl::StatusOr<VersionSelector> ReadVersion(const char* given, absl::string_view what) {
  TH_RETURN_IF_ERROR(Needed(given, what));
  return ParseVersionSelector(given);
}

const char* DTypeText(DType dtype) {
  // Names of types are literals, and so end with NUL.
  return dtype == DType::kOpaque ? "" : DTypeName(dtype).data();
}

}  // namespace th::c
