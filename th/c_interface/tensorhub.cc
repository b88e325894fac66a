// The C ABI over client.h: what has a client, a buffer or an attached version. Arguments are read
// and copied by c_options, calls run by c_call; c_receive and c_controller have the rest.
#include "th/c_interface/tensorhub.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "th/c_interface/c_call.h"
#include "th/c_interface/c_handles.h"
#include "th/c_interface/c_options.h"
#include "th/c_interface/json_text.h"
#include "th/client/cancel_hook.h"
#include "th/client/client.h"

namespace {

using th::c::Answer;
using th::c::Call;
using th::c::Give;
using th::c::Guarded;
using th::c::Needed;
using th::c::ReadSeconds;
using th::c::RunNow;
using th::c::Start;
using CallOr = absl::StatusOr<Call>;

// The answer of a call that gives nothing but its status.
Answer Nothing() { return {}; }

absl::StatusOr<Answer> Only(const absl::Status& status) {
  TH_RETURN_IF_ERROR(status);
  return Nothing();
}

absl::StatusOr<Answer> Version(const absl::StatusOr<th::VersionInfo>& version) {
  TH_RETURN_IF_ERROR(version.status());
  Answer answer;
  answer.json = th::VersionToJson(*version);
  return answer;
}

absl::StatusOr<Answer> Updated(const absl::StatusOr<th::UpdateResult>& result) {
  TH_RETURN_IF_ERROR(result.status());
  Answer answer;
  answer.outcome = static_cast<th_outcome>(result->outcome);
  answer.json = th::UpdateResultToJson(*result);
  return answer;
}

// ---- the client

CallOr Join(const th_join_options* given) {
  TH_ASSIGN_OR_RETURN(th::ClientOptions options, th::c::ReadJoin(given));
  std::shared_ptr<th::c::ReaderReports> reports;
  if (th::c::KeepsReaderReports(given)) {
    reports = std::make_shared<th::c::ReaderReports>();
    options.on_reader = [reports](const th::ReaderReport& report) { reports->Add(report); };
  }
  return Call{[options = std::move(options), reports]() -> absl::StatusOr<Answer> {
    TH_ASSIGN_OR_RETURN(std::unique_ptr<th::Client> joined, th::Client::Join(options));
    Answer answer;
    answer.client = std::make_unique<th_client>();
    answer.client->reports = reports;
    answer.client->client = std::move(joined);
    return answer;
  }};
}

CallOr Leave(th_client* client, double timeout) {
  TH_RETURN_IF_ERROR(Needed(client, "client"));
  absl::Duration duration = absl::Seconds(2);
  TH_RETURN_IF_ERROR(ReadSeconds(timeout, "timeout", duration));
  return Call{[client, duration] { return Only(client->client->Leave(duration)); },
              &client->running};
}

CallOr AwaitEnded(th_client* client, double timeout) {
  TH_RETURN_IF_ERROR(Needed(client, "client"));
  absl::Duration duration = absl::ZeroDuration();
  TH_RETURN_IF_ERROR(ReadSeconds(timeout, "timeout", duration));
  return Call{[client, duration]() -> absl::StatusOr<Answer> {
                if (client->client->AwaitEnded(duration)) return Nothing();
                TH_RETURN_IF_ERROR(th::CheckNotCancelled("the membership lives"));
                return absl::DeadlineExceededError("the membership lives");
              },
              &client->running};
}

CallOr WaitFor(th_client* client, const char* version, double timeout) {
  TH_RETURN_IF_ERROR(Needed(client, "client"));
  TH_ASSIGN_OR_RETURN(th::VersionSelector selector, th::c::ReadVersion(version, "version"));
  absl::Duration duration = absl::ZeroDuration();
  TH_RETURN_IF_ERROR(ReadSeconds(timeout, "timeout", duration));
  return Call{[=] { return Version(client->client->WaitFor(selector, duration)); },
              &client->running};
}

CallOr AwaitForm(th_client* client, const char* version, const char* form, double timeout) {
  TH_RETURN_IF_ERROR(Needed(client, "client"));
  TH_ASSIGN_OR_RETURN(th::VersionSelector selector, th::c::ReadVersion(version, "version"));
  TH_RETURN_IF_ERROR(Needed(form, "form"));
  absl::Duration duration = absl::ZeroDuration();
  TH_RETURN_IF_ERROR(ReadSeconds(timeout, "timeout", duration));
  return Call{[=, name = std::string(form)]() -> absl::StatusOr<Answer> {
                TH_ASSIGN_OR_RETURN(const th::AwaitedForm awaited,
                                    client->client->AwaitForm(selector, name, duration));
                Answer answer;
                answer.json = th::AwaitedFormToJson(awaited);
                answer.yes = awaited.make;
                return answer;
              },
              &client->running};
}

CallOr RollBack(th_client* client, const char* to, const char* idempotency_key) {
  TH_RETURN_IF_ERROR(Needed(client, "client"));
  TH_ASSIGN_OR_RETURN(th::VersionSelector selector, th::c::ReadVersion(to, "to"));
  return Call{[=, key = th::c::OrEmpty(idempotency_key)] {
                return Version(client->client->RollBack(selector, key));
              },
              &client->running};
}

CallOr Register(th_client* client, const th_tensor* tensors, size_t count,
                const th_register_options* given) {
  TH_RETURN_IF_ERROR(Needed(client, "client"));
  TH_ASSIGN_OR_RETURN(th::RegisterOptions options, th::c::ReadRegister(given));
  TH_ASSIGN_OR_RETURN(std::vector<th::Tensor> list, th::c::ReadTensors(tensors, count));
  return Call{[client, options, list = std::move(list)]() -> absl::StatusOr<Answer> {
                TH_ASSIGN_OR_RETURN(th::WeightBuffer made, client->client->Register(list, options));
                Answer answer;
                answer.buffer = std::make_unique<th_buffer>();
                answer.buffer->buffer = std::move(made);
                return answer;
              },
              &client->running};
}

CallOr Attach(th_client* client, const char* version, const th_attach_options* given) {
  TH_RETURN_IF_ERROR(Needed(client, "client"));
  TH_ASSIGN_OR_RETURN(th::VersionSelector selector, th::c::ReadVersion(version, "version"));
  TH_ASSIGN_OR_RETURN(th::AttachOptions options, th::c::ReadAttach(given));
  return Call{[=]() -> absl::StatusOr<Answer> {
                TH_ASSIGN_OR_RETURN(th::AttachResult made,
                                    client->client->Attach(selector, options));
                Answer answer;
                answer.outcome = static_cast<th_outcome>(made.outcome);
                answer.json = th::AttachResultToJson(made);
                if (made.attached()) {
                  answer.attached.reset(new th_attached{*std::move(made.version), {}});
                }
                return answer;
              },
              &client->running};
}

// ---- buffers

CallOr Publish(th_buffer* buffer, const char* label, const th_publish_options* given) {
  TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
  TH_RETURN_IF_ERROR(Needed(label, "label"));
  TH_ASSIGN_OR_RETURN(th::PublishOptions options, th::c::ReadPublish(given));
  return Call{[buffer, options, label = std::string(label)] {
                return Only(buffer->buffer.Publish(label, options));
              },
              &buffer->running};
}

CallOr AwaitPublished(th_buffer* buffer) {
  TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
  return Call{[buffer]() -> absl::StatusOr<Answer> {
                TH_ASSIGN_OR_RETURN(const th::PublishResult result,
                                    buffer->buffer.AwaitPublished());
                Answer answer;
                answer.json = th::PublishResultToJson(result);
                return answer;
              },
              &buffer->running};
}

CallOr AwaitSealed(th_buffer* buffer, double timeout) {
  TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
  absl::Duration duration = absl::ZeroDuration();
  TH_RETURN_IF_ERROR(ReadSeconds(timeout, "timeout", duration));
  return Call{[=] { return Only(buffer->buffer.AwaitSealed(duration)); }, &buffer->running};
}

CallOr Unpublish(th_buffer* buffer, const th_unpublish_options* given) {
  TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
  TH_ASSIGN_OR_RETURN(th::UnpublishOptions options, th::c::ReadUnpublish(given));
  return Call{[=] { return Only(buffer->buffer.Unpublish(options)); }, &buffer->running};
}

CallOr Sleep(th_buffer* buffer, const th_unpublish_options* given) {
  TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
  TH_ASSIGN_OR_RETURN(th::UnpublishOptions options, th::c::ReadUnpublish(given));
  return Call{[=] { return Only(buffer->buffer.Sleep(options)); }, &buffer->running};
}

CallOr Wake(th_buffer* buffer) {
  TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
  return Call{[=] { return Only(buffer->buffer.Wake()); }, &buffer->running};
}

CallOr Reset(th_buffer* buffer) {
  TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
  return Call{[=] { return Only(buffer->buffer.Reset()); }, &buffer->running};
}

CallOr Rebind(th_buffer* buffer, const th_tensor* tensors, size_t count) {
  TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
  TH_ASSIGN_OR_RETURN(std::vector<th::Tensor> list, th::c::ReadTensors(tensors, count));
  return Call{[buffer, list = std::move(list)] { return Only(buffer->buffer.Rebind(list)); },
              &buffer->running};
}

// Follows an update or stage, for th_operation_progress.
template <typename Options>
std::shared_ptr<th::c::Progress> Follow(Options& options) {
  auto progress = std::make_shared<th::c::Progress>();
  options.on_progress = [progress](const th::UpdateProgress& now) {
    progress->bytes_received = now.bytes_received;
    progress->bytes_total = now.bytes_total;
  };
  return progress;
}

CallOr Update(th_buffer* buffer, const char* version, const th_update_options* given) {
  TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
  TH_ASSIGN_OR_RETURN(th::VersionSelector selector, th::c::ReadVersion(version, "version"));
  TH_ASSIGN_OR_RETURN(th::UpdateOptions options, th::c::ReadUpdate(given));
  auto progress = Follow(options);
  return Call{[=] { return Updated(buffer->buffer.Update(selector, options)); }, &buffer->running,
              std::move(progress)};
}

CallOr Stage(th_buffer* buffer, const char* version, const th_stage_options* given) {
  TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
  TH_ASSIGN_OR_RETURN(th::VersionSelector selector, th::c::ReadVersion(version, "version"));
  TH_ASSIGN_OR_RETURN(th::StageOptions options, th::c::ReadStage(given));
  auto progress = Follow(options);
  return Call{[=] { return Updated(buffer->buffer.Stage(selector, options)); }, &buffer->running,
              std::move(progress)};
}

CallOr Apply(th_buffer* buffer, const th_apply_options* given) {
  TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
  TH_ASSIGN_OR_RETURN(th::ApplyOptions options, th::c::ReadApply(given));
  return Call{[=] { return Updated(buffer->buffer.Apply(options)); }, &buffer->running};
}

// ---- attached versions

CallOr Verify(const th_attached* attached) {
  TH_RETURN_IF_ERROR(Needed(attached, "attached"));
  return Call{[=] { return Only(attached->version.Verify()); }, &attached->running};
}

absl::Status Fill(const th::AttachedTensor& found, th_attached_tensor* tensor) {
  TH_RETURN_IF_ERROR(Needed(tensor, "tensor"));
  const th::TensorSpec& spec = *found.spec;
  return th::c::FillStruct(th_attached_tensor{.struct_size = 0,
                                              .name = spec.name.c_str(),
                                              .dtype = th::c::DTypeText(spec.dtype),
                                              .shape = spec.shape.data(),
                                              .dimensions = spec.shape.size(),
                                              .bytes = spec.bytes,
                                              .data = found.data,
                                              .global_shape = spec.global_shape.data(),
                                              .slice_begin = spec.slice_begin.data()},
                           tensor);
}

}  // namespace

uint32_t th_abi_version(void) { return TH_ABI_VERSION; }

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
  return RunNow(
      [&]() -> CallOr {
        TH_RETURN_IF_ERROR(Needed(client, "client"));
        return Join(options);
      },
      {.client = client});
}

th_status th_join_start(const th_join_options* options, th_operation** operation) {
  return Start([&] { return Join(options); }, operation);
}

th_status th_leave(th_client* client, double timeout) {
  return RunNow([&] { return Leave(client, timeout); }, {});
}

th_status th_leave_start(th_client* client, double timeout, th_operation** operation) {
  return Start([&] { return Leave(client, timeout); }, operation);
}

void th_client_free(th_client* client) { delete client; }

th_status th_membership(th_client* client) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(client, "client"));
    return client->client->membership();
  });
}

th_status th_preempt(th_client* client, double seconds) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(client, "client"));
    absl::Duration notice = absl::ZeroDuration();
    TH_RETURN_IF_ERROR(ReadSeconds(seconds, "notice", notice));
    return client->client->Preempt(absl::Now() + notice);
  });
}

th_status th_await_ended(th_client* client, double timeout) {
  return RunNow([&] { return AwaitEnded(client, timeout); }, {});
}

th_status th_await_ended_start(th_client* client, double timeout, th_operation** operation) {
  return Start([&] { return AwaitEnded(client, timeout); }, operation);
}

th_status th_metrics(char** text) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(text, "text"));
    *text = nullptr;
    return Give(th::MetricsText(), text);
  });
}

th_status th_client_info(th_client* client, char** info) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(client, "client"));
    TH_RETURN_IF_ERROR(Needed(info, "info"));
    *info = nullptr;
    return Give(th::ClientInfoToJson(*client->client), info);
  });
}

th_status th_reader_reports(th_client* client, char** reports) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(client, "client"));
    TH_RETURN_IF_ERROR(Needed(reports, "reports"));
    *reports = nullptr;
    if (client->reports == nullptr) {
      return absl::FailedPreconditionError("join with keep_reader_reports to have them kept");
    }
    const auto [taken, dropped] = client->reports->Take();
    return Give(th::ReaderReportsToJson(taken, dropped), reports);
  });
}

th_status th_wait_for(th_client* client, const char* version, double timeout, char** found) {
  return RunNow([&] { return WaitFor(client, version, timeout); }, {.json = found});
}

th_status th_wait_for_start(th_client* client, const char* version, double timeout,
                            th_operation** operation) {
  return Start([&] { return WaitFor(client, version, timeout); }, operation);
}

th_status th_await_form(th_client* client, const char* version, const char* form, double timeout,
                        int32_t* make, char** result) {
  return RunNow([&] { return AwaitForm(client, version, form, timeout); },
                {.json = result, .yes = make});
}

th_status th_await_form_start(th_client* client, const char* version, const char* form,
                              double timeout, th_operation** operation) {
  return Start([&] { return AwaitForm(client, version, form, timeout); }, operation);
}

th_status th_roll_back(th_client* client, const char* to, const char* idempotency_key,
                       char** version) {
  return RunNow([&] { return RollBack(client, to, idempotency_key); }, {.json = version});
}

th_status th_roll_back_start(th_client* client, const char* to, const char* idempotency_key,
                             th_operation** operation) {
  return Start([&] { return RollBack(client, to, idempotency_key); }, operation);
}

// ---- buffers

th_status th_register(th_client* client, const th_tensor* tensors, size_t count,
                      const th_register_options* options, th_buffer** buffer) {
  return RunNow(
      [&]() -> CallOr {
        TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
        return Register(client, tensors, count, options);
      },
      {.buffer = buffer});
}

th_status th_register_start(th_client* client, const th_tensor* tensors, size_t count,
                            const th_register_options* options, th_operation** operation) {
  return Start([&] { return Register(client, tensors, count, options); }, operation);
}

void th_buffer_free(th_buffer* buffer) { delete buffer; }

th_status th_publish(th_buffer* buffer, const char* label, const th_publish_options* options) {
  return RunNow([&] { return Publish(buffer, label, options); }, {});
}

th_status th_publish_start(th_buffer* buffer, const char* label, const th_publish_options* options,
                           th_operation** operation) {
  return Start([&] { return Publish(buffer, label, options); }, operation);
}

th_status th_await_published(th_buffer* buffer, char** version) {
  return RunNow([&] { return AwaitPublished(buffer); }, {.json = version});
}

th_status th_await_published_start(th_buffer* buffer, th_operation** operation) {
  return Start([&] { return AwaitPublished(buffer); }, operation);
}

th_status th_await_sealed(th_buffer* buffer, double timeout) {
  return RunNow([&] { return AwaitSealed(buffer, timeout); }, {});
}

th_status th_await_sealed_start(th_buffer* buffer, double timeout, th_operation** operation) {
  return Start([&] { return AwaitSealed(buffer, timeout); }, operation);
}

th_status th_unpublish(th_buffer* buffer, const th_unpublish_options* options) {
  return RunNow([&] { return Unpublish(buffer, options); }, {});
}

th_status th_unpublish_start(th_buffer* buffer, const th_unpublish_options* options,
                             th_operation** operation) {
  return Start([&] { return Unpublish(buffer, options); }, operation);
}

th_status th_update(th_buffer* buffer, const char* version, const th_update_options* options,
                    th_outcome* outcome, char** result) {
  return RunNow([&] { return Update(buffer, version, options); },
                {.outcome = outcome, .json = result});
}

th_status th_update_start(th_buffer* buffer, const char* version, const th_update_options* options,
                          th_operation** operation) {
  return Start([&] { return Update(buffer, version, options); }, operation);
}

th_status th_stage(th_buffer* buffer, const char* version, const th_stage_options* options,
                   th_outcome* outcome, char** result) {
  return RunNow([&] { return Stage(buffer, version, options); },
                {.outcome = outcome, .json = result});
}

th_status th_stage_start(th_buffer* buffer, const char* version, const th_stage_options* options,
                         th_operation** operation) {
  return Start([&] { return Stage(buffer, version, options); }, operation);
}

th_status th_apply(th_buffer* buffer, const th_apply_options* options, char** result) {
  return RunNow([&] { return Apply(buffer, options); }, {.json = result});
}

th_status th_apply_start(th_buffer* buffer, const th_apply_options* options,
                         th_operation** operation) {
  return Start([&] { return Apply(buffer, options); }, operation);
}

th_status th_discard_staged(th_buffer* buffer) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
    buffer->buffer.DiscardStaged();
    return absl::OkStatus();
  });
}

th_status th_staged(th_buffer* buffer, char** version) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
    TH_RETURN_IF_ERROR(Needed(version, "version"));
    *version = nullptr;
    return Give(th::VersionToJson(buffer->buffer.staged()), version);
  });
}

th_status th_rebind(th_buffer* buffer, const th_tensor* tensors, size_t count) {
  return RunNow([&] { return Rebind(buffer, tensors, count); }, {});
}

th_status th_rebind_start(th_buffer* buffer, const th_tensor* tensors, size_t count,
                          th_operation** operation) {
  return Start([&] { return Rebind(buffer, tensors, count); }, operation);
}

th_status th_buffer_sleep(th_buffer* buffer, const th_unpublish_options* options) {
  return RunNow([&] { return Sleep(buffer, options); }, {});
}

th_status th_buffer_sleep_start(th_buffer* buffer, const th_unpublish_options* options,
                                th_operation** operation) {
  return Start([&] { return Sleep(buffer, options); }, operation);
}

th_status th_buffer_wake(th_buffer* buffer) {
  return RunNow([&] { return Wake(buffer); }, {});
}

th_status th_buffer_wake_start(th_buffer* buffer, th_operation** operation) {
  return Start([&] { return Wake(buffer); }, operation);
}

int32_t th_buffer_asleep(th_buffer* buffer) {
  return buffer != nullptr && buffer->buffer.asleep() ? 1 : 0;
}

int32_t th_buffer_undefined(th_buffer* buffer) {
  return buffer != nullptr && buffer->buffer.undefined() ? 1 : 0;
}

th_status th_buffer_reset(th_buffer* buffer) {
  return RunNow([&] { return Reset(buffer); }, {});
}

th_status th_buffer_reset_start(th_buffer* buffer, th_operation** operation) {
  return Start([&] { return Reset(buffer); }, operation);
}

th_status th_buffer_version(th_buffer* buffer, char** version) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
    TH_RETURN_IF_ERROR(Needed(version, "version"));
    *version = nullptr;
    return Give(th::VersionToJson(buffer->buffer.version()), version);
  });
}

uint64_t th_buffer_bytes(th_buffer* buffer) {
  return buffer == nullptr ? 0 : buffer->buffer.bytes();
}

th_status th_buffer_info(th_buffer* buffer, char** info) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(buffer, "buffer"));
    TH_RETURN_IF_ERROR(Needed(info, "info"));
    *info = nullptr;
    return Give(th::BufferInfoToJson(buffer->buffer), info);
  });
}

// ---- attached versions

th_status th_attach(th_client* client, const char* version, const th_attach_options* options,
                    th_attached** attached, char** result) {
  return RunNow(
      [&]() -> CallOr {
        TH_RETURN_IF_ERROR(Needed(attached, "attached"));
        return Attach(client, version, options);
      },
      {.json = result, .attached = attached});
}

th_status th_attach_start(th_client* client, const char* version, const th_attach_options* options,
                          th_operation** operation) {
  return Start([&] { return Attach(client, version, options); }, operation);
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
  return RunNow([&] { return Verify(attached); }, {});
}

th_status th_attached_verify_start(const th_attached* attached, th_operation** operation) {
  return Start([&] { return Verify(attached); }, operation);
}
