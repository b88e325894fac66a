// The C ABI over client.h: copies what comes in, catches what must not go out.
#include "th/client/tensorhub.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "th/client/attach.h"
#include "th/client/client.h"
#include "th/client/json_text.h"
#include "th/topology/location.h"

struct th_client {
  std::unique_ptr<th::Client> client;
};
struct th_buffer {
  th::WeightBuffer buffer;
};
struct th_attached {
  th::AttachedVersion version;
};

namespace {

std::string& LastError() {
  thread_local std::string text;
  return text;
}

th_status Told(const absl::Status& status) {
  LastError() = std::string(status.message());
  return static_cast<th_status>(status.code());
}

// Nothing may be thrown into C: memory can run out in any function.
template <typename Body>
th_status Guarded(Body body) {
  try {
    return Told(body());
  } catch (const std::exception& thrown) {
    return Told(absl::InternalError(thrown.what()));
  } catch (...) {
    return Told(absl::InternalError("unknown exception"));
  }
}

absl::Status Needed(const void* pointer, absl::string_view what) {
  if (pointer != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is NULL"));
}

std::string OrEmpty(const char* text) { return text == nullptr ? "" : text; }

// As much of the caller's struct as it has, over the defaults: its library may be older or newer.
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

// INVALID_ARGUMENT for what is no time.
absl::Status ReadSeconds(double seconds, absl::string_view what, absl::Duration& duration) {
  if (seconds == 0) return absl::OkStatus();
  if (std::isnan(seconds) || seconds < 0) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is ", seconds, " s"));
  }
  duration = absl::Seconds(seconds);
  return absl::OkStatus();
}

absl::Status Give(const std::string& text, char** out) {
  if (out == nullptr) return absl::OkStatus();
  *out = strdup(text.c_str());
  return *out == nullptr ? absl::ResourceExhaustedError("out of memory") : absl::OkStatus();
}

std::vector<int64_t> ReadDimensions(const int64_t* values, size_t count) {
  return values == nullptr ? std::vector<int64_t>() : std::vector<int64_t>(values, values + count);
}

absl::StatusOr<th::Tensor> ReadTensor(const th_tensor& given) {
  th::Tensor tensor;
  TH_RETURN_IF_ERROR(Needed(given.name, "name of a tensor"));
  tensor.name = given.name;
  if (given.dtype != nullptr) {
    TH_ASSIGN_OR_RETURN(tensor.dtype, th::ParseDType(given.dtype));
  }
  if (given.dimensions > th::kMaxTensorDimensions ||
      (given.dimensions > 0 && given.shape == nullptr)) {
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

absl::StatusOr<std::vector<th::Tensor>> ReadTensors(const th_tensor* given, size_t count) {
  std::vector<th::Tensor> tensors;
  if (count == 0) return tensors;
  TH_RETURN_IF_ERROR(Needed(given, "tensors"));
  if (count > th::kMaxTensors) {
    return absl::InvalidArgumentError(absl::StrCat(count, " tensors, more than ", th::kMaxTensors));
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

absl::StatusOr<th::ClientOptions> ReadJoin(const th_join_options& given) {
  th::ClientOptions options;
  options.server = OrEmpty(given.server);
  options.run = OrEmpty(given.run);
  options.model = OrEmpty(given.model);
  options.group = OrEmpty(given.group);
  options.rank = given.rank;
  options.ranks = std::max<uint32_t>(given.ranks, 1);
  if (given.location != nullptr) {
    TH_ASSIGN_OR_RETURN(options.location, th::ParseLocation(given.location));
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
  return options;
}

absl::StatusOr<th::VersionSequence> ReadSequence(const char* text, absl::string_view option) {
  TH_ASSIGN_OR_RETURN(const th::VersionSelector selector, th::ParseVersionSelector(text));
  if (!std::holds_alternative<th::VersionSequence>(selector)) {
    return absl::InvalidArgumentError(absl::StrCat(option, " is not a sequence (#epoch.number)"));
  }
  return std::get<th::VersionSequence>(selector);
}

// Of an unpublish or update.
template <typename Given, typename Options>
absl::Status ReadRetention(const Given& given, Options& options) {
  if (given.drop_retained != 0) options.on_retention = th::OnRetention::kDrop;
  return ReadSeconds(given.offload_timeout, "offload_timeout", options.offload_timeout);
}

absl::StatusOr<th::WhenSeeding> ReadWhenSeeding(int32_t given) {
  switch (given) {
    case TH_SEEDING_WAIT:
      return th::WhenSeeding::kWait;
    case TH_SEEDING_SKIP:
      return th::WhenSeeding::kSkip;
    case TH_SEEDING_COPY:
      return th::WhenSeeding::kCopy;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("when_seeding is ", given, ", none of TH_SEEDING_WAIT, _SKIP, _COPY"));
  }
}

absl::StatusOr<th::UnpublishOptions> ReadUnpublish(const th_unpublish_options* given) {
  th_unpublish_options read;
  TH_RETURN_IF_ERROR(ReadOptions(given, read));
  th::UnpublishOptions options;
  TH_RETURN_IF_ERROR(ReadSeconds(read.timeout, "timeout", options.timeout));
  TH_RETURN_IF_ERROR(ReadSeconds(read.drain_timeout, "drain_timeout", options.drain_timeout));
  TH_RETURN_IF_ERROR(ReadRetention(read, options));
  return options;
}

absl::StatusOr<th::UpdateOptions> ReadUpdate(const th_update_options* given) {
  th_update_options read;
  TH_RETURN_IF_ERROR(ReadOptions(given, read));
  th::UpdateOptions options;
  TH_RETURN_IF_ERROR(ReadSeconds(read.timeout, "timeout", options.timeout));
  TH_RETURN_IF_ERROR(ReadSeconds(read.drain_timeout, "drain_timeout", options.drain_timeout));
  TH_RETURN_IF_ERROR(ReadRetention(read, options));
  TH_ASSIGN_OR_RETURN(options.when_seeding, ReadWhenSeeding(read.when_seeding));
  if (read.floor == nullptr) return options;
  TH_ASSIGN_OR_RETURN(options.floor, ReadSequence(read.floor, "floor"));
  return options;
}

absl::StatusOr<th::PublishOptions> ReadPublish(const th_publish_options* given) {
  th_publish_options read;
  TH_RETURN_IF_ERROR(ReadOptions(given, read));
  th::PublishOptions options;
  TH_RETURN_IF_ERROR(ReadSeconds(read.timeout, "timeout", options.timeout));
  TH_ASSIGN_OR_RETURN(options.attributes, th::AttributesFromJson(OrEmpty(read.attributes)));
  if (read.snapshot != 0) options.snapshot = th::Snapshot::kHost;
  if (read.derived_from == nullptr) return options;
  TH_ASSIGN_OR_RETURN(options.derived_from, ReadSequence(read.derived_from, "derived_from"));
  return options;
}

absl::StatusOr<th::AttachOptions> ReadAttach(const th_attach_options* given) {
  th_attach_options read;
  TH_RETURN_IF_ERROR(ReadOptions(given, read));
  th::AttachOptions options;
  if (read.form != nullptr) options.form = read.form;
  options.group = OrEmpty(read.group);
  options.rank = read.rank;
  if (read.layout != nullptr) {
    TH_ASSIGN_OR_RETURN(options.layout, th::Digest::FromHex(read.layout));
  }
  options.verify_bytes = read.verify != 0;
  TH_RETURN_IF_ERROR(ReadSeconds(read.timeout, "timeout", options.timeout));
  return options;
}

// Into as much of the caller's struct as it has: its library may be older or newer.
absl::Status Fill(const th::AttachedTensor& found, th_attached_tensor* tensor) {
  TH_RETURN_IF_ERROR(Needed(tensor, "tensor"));
  if (tensor->struct_size < sizeof(size_t)) {
    return absl::InvalidArgumentError("struct_size of the tensor is not set; use the _INIT macro");
  }
  const th::TensorSpec& spec = *found.spec;
  // Names of types are literals, and so end with NUL.
  const char* const dtype =
      spec.dtype == th::DType::kOpaque ? "" : th::DTypeName(spec.dtype).data();
  th_attached_tensor made{.struct_size = tensor->struct_size,
                          .name = spec.name.c_str(),
                          .dtype = dtype,
                          .shape = spec.shape.data(),
                          .dimensions = spec.shape.size(),
                          .bytes = spec.bytes,
                          .data = found.data,
                          .global_shape = spec.global_shape.data(),
                          .slice_begin = spec.slice_begin.data()};
  std::memcpy(tensor, &made, std::min(tensor->struct_size, sizeof(made)));
  return absl::OkStatus();
}

}  // namespace

uint32_t th_abi_version(void) { return TH_ABI_VERSION; }

const char* th_last_error(void) { return LastError().c_str(); }

const char* th_status_name(th_status status) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(status);
  return index < sizeof(kNames) / sizeof(kNames[0]) ? kNames[index] : "UNKNOWN";
}

void th_string_free(char* text) { std::free(text); }

// ---- the client

th_status th_join(const th_join_options* options, th_client** client) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(client, "client"));
    *client = nullptr;
    TH_RETURN_IF_ERROR(Needed(options, "options"));
    th_join_options read;
    TH_RETURN_IF_ERROR(ReadOptions(options, read));
    TH_ASSIGN_OR_RETURN(th::ClientOptions join, ReadJoin(read));
    TH_ASSIGN_OR_RETURN(std::unique_ptr<th::Client> joined, th::Client::Join(std::move(join)));
    *client = new th_client{std::move(joined)};
    return absl::OkStatus();
  });
}

th_status th_leave(th_client* client, double timeout) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(client, "client"));
    absl::Duration duration = absl::Seconds(2);
    TH_RETURN_IF_ERROR(ReadSeconds(timeout, "timeout", duration));
    return client->client->Leave(duration);
  });
}

void th_client_free(th_client* client) { delete client; }

th_status th_membership(th_client* client) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(client, "client"));
    return client->client->membership();
  });
}

th_status th_roll_back(th_client* client, const char* to, const char* idempotency_key,
                       char** version) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(client, "client"));
    TH_RETURN_IF_ERROR(Needed(to, "to"));
    TH_ASSIGN_OR_RETURN(th::VersionSelector selector, th::ParseVersionSelector(to));
    TH_ASSIGN_OR_RETURN(const th::VersionInfo info,
                        client->client->RollBack(std::move(selector), OrEmpty(idempotency_key)));
    return Give(th::VersionToJson(info), version);
  });
}

// ---- buffers

th_status th_register(th_client* client, const th_tensor* tensors, size_t count,
                      const th_register_options* options, th_buffer** buffer) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
    *buffer = nullptr;
    TH_RETURN_IF_ERROR(Needed(client, "client"));
    th_register_options read;
    TH_RETURN_IF_ERROR(ReadOptions(options, read));
    th::RegisterOptions wanted;
    if (read.name != nullptr) wanted.name = read.name;
    if (read.form != nullptr) wanted.form = read.form;
    wanted.segment_bytes = read.segment_bytes;
    wanted.checksums = read.no_checksums == 0;
    TH_ASSIGN_OR_RETURN(std::vector<th::Tensor> list, ReadTensors(tensors, count));
    TH_ASSIGN_OR_RETURN(th::WeightBuffer made,
                        client->client->Register(std::move(list), std::move(wanted)));
    *buffer = new th_buffer{std::move(made)};
    return absl::OkStatus();
  });
}

void th_buffer_free(th_buffer* buffer) { delete buffer; }

th_status th_publish(th_buffer* buffer, const char* label, const th_publish_options* options) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
    TH_RETURN_IF_ERROR(Needed(label, "label"));
    TH_ASSIGN_OR_RETURN(th::PublishOptions publish, ReadPublish(options));
    return buffer->buffer.Publish(absl::string_view(label), std::move(publish));
  });
}

th_status th_await_published(th_buffer* buffer, char** version) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
    TH_ASSIGN_OR_RETURN(const th::PublishResult result, buffer->buffer.AwaitPublished());
    return Give(th::VersionToJson(result.version), version);
  });
}

th_status th_await_sealed(th_buffer* buffer, double timeout) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
    absl::Duration duration = absl::ZeroDuration();
    TH_RETURN_IF_ERROR(ReadSeconds(timeout, "timeout", duration));
    return buffer->buffer.AwaitSealed(duration);
  });
}

th_status th_unpublish(th_buffer* buffer, const th_unpublish_options* options) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
    TH_ASSIGN_OR_RETURN(const th::UnpublishOptions unpublish, ReadUnpublish(options));
    return buffer->buffer.Unpublish(unpublish);
  });
}

th_status th_buffer_sleep(th_buffer* buffer, const th_unpublish_options* options) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
    TH_ASSIGN_OR_RETURN(const th::UnpublishOptions unpublish, ReadUnpublish(options));
    return buffer->buffer.Sleep(unpublish);
  });
}

th_status th_buffer_wake(th_buffer* buffer) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
    return buffer->buffer.Wake();
  });
}

th_status th_update(th_buffer* buffer, const char* version, const th_update_options* options,
                    th_outcome* outcome, char** result) {
  return Guarded([&]() -> absl::Status {
    if (outcome != nullptr) *outcome = TH_NONE;
    if (result != nullptr) *result = nullptr;
    TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
    TH_RETURN_IF_ERROR(Needed(version, "version"));
    TH_ASSIGN_OR_RETURN(th::VersionSelector selector, th::ParseVersionSelector(version));
    TH_ASSIGN_OR_RETURN(th::UpdateOptions update, ReadUpdate(options));
    TH_ASSIGN_OR_RETURN(const th::UpdateResult updated,
                        buffer->buffer.Update(std::move(selector), std::move(update)));
    if (outcome != nullptr) *outcome = static_cast<th_outcome>(updated.outcome);
    return Give(th::UpdateResultToJson(updated), result);
  });
}

th_status th_rebind(th_buffer* buffer, const th_tensor* tensors, size_t count) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
    TH_ASSIGN_OR_RETURN(const std::vector<th::Tensor> list, ReadTensors(tensors, count));
    return buffer->buffer.Rebind(list);
  });
}

int32_t th_buffer_undefined(th_buffer* buffer) {
  return buffer != nullptr && buffer->buffer.undefined() ? 1 : 0;
}

th_status th_buffer_reset(th_buffer* buffer) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
    return buffer->buffer.Reset();
  });
}

th_status th_buffer_version(th_buffer* buffer, char** version) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
    TH_RETURN_IF_ERROR(Needed(version, "version"));
    return Give(th::VersionToJson(buffer->buffer.version()), version);
  });
}

uint64_t th_buffer_bytes(th_buffer* buffer) {
  return buffer == nullptr ? 0 : buffer->buffer.bytes();
}

// ---- attached versions

th_status th_attach(th_client* client, const char* version, const th_attach_options* options,
                    th_attached** attached, char** result) {
  return Guarded([&]() -> absl::Status {
    if (result != nullptr) *result = nullptr;
    TH_RETURN_IF_ERROR(Needed(attached, "attached"));
    *attached = nullptr;
    TH_RETURN_IF_ERROR(Needed(client, "client"));
    TH_RETURN_IF_ERROR(Needed(version, "version"));
    TH_ASSIGN_OR_RETURN(th::VersionSelector selector, th::ParseVersionSelector(version));
    TH_ASSIGN_OR_RETURN(th::AttachOptions wanted, ReadAttach(options));
    TH_ASSIGN_OR_RETURN(th::AttachResult made,
                        client->client->Attach(std::move(selector), std::move(wanted)));
    TH_RETURN_IF_ERROR(Give(th::AttachResultToJson(made), result));
    if (made.attached()) *attached = new th_attached{*std::move(made.version)};
    return absl::OkStatus();
  });
}

void th_attached_free(th_attached* attached) { delete attached; }

size_t th_attached_size(const th_attached* attached) {
  return attached == nullptr ? 0 : attached->version.size();
}

th_status th_attached_at(const th_attached* attached, size_t index, th_attached_tensor* tensor) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(attached, "attached"));
    if (index >= attached->version.size()) {
      return absl::OutOfRangeError(
          absl::StrCat("tensor ", index, " of ", attached->version.size()));
    }
    return Fill(attached->version.tensor(index), tensor);
  });
}

th_status th_attached_find(const th_attached* attached, const char* name,
                           th_attached_tensor* tensor) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(attached, "attached"));
    TH_RETURN_IF_ERROR(Needed(name, "name"));
    const th::AttachedTensor found = attached->version.Find(name);
    if (found.spec == nullptr) return absl::NotFoundError(absl::StrCat("no tensor ", name));
    return Fill(found, tensor);
  });
}

th_status th_attached_verify(const th_attached* attached) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(attached, "attached"));
    return attached->version.Verify();
  });
}

// ---- the catalog

th_status th_list(const char* server, const char* run, const char* model, double timeout,
                  char** catalog) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(server, "server"));
    TH_RETURN_IF_ERROR(Needed(catalog, "catalog"));
    *catalog = nullptr;
    absl::Duration duration = absl::Seconds(10);
    TH_RETURN_IF_ERROR(ReadSeconds(timeout, "timeout", duration));
    TH_ASSIGN_OR_RETURN(auto controller,
                        th::Controller::Connect({server, OrEmpty(run), OrEmpty(model), duration}));
    TH_ASSIGN_OR_RETURN(const th::Catalog listed, controller->List(duration));
    return Give(th::CatalogToJson(listed), catalog);
  });
}
