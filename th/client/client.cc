#include "th/client/client.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "th/client/cancel_hook.h"
#include "th/client/client_state.h"
#include "th/client/data_address.h"
#include "th/client/grpc_control_stream.h"
#include "th/client/memberships.h"
#include "th/client/process_guard.h"
#include "th/client/runtime.h"
#include "th/client/server_list.h"
#include "th/client/server_probe.h"
#include "th/client/tensor_binding.h"
#include "th/memory/cuda/cuda_memory_devices.h"
#include "th/monitoring/host_name.h"
#include "th/topology/slurm.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/tcp/tcp_transport.h"
#include "th/worker_session/error_text.h"

namespace th {
namespace {

// A command is retried by the session; past this its caller is told.
constexpr absl::Duration kCommandTimeout = absl::Seconds(60);
// To reach the server for a wait, however short, and to ask why a version did not come.
constexpr absl::Duration kReasonTimeout = absl::Seconds(2);
constexpr absl::Duration kShortestWait = absl::Milliseconds(1);

absl::Status Validate(const ClientOptions& options) {
  TH_RETURN_IF_ERROR(CheckServers(options.server));
  TH_RETURN_IF_ERROR(ValidateName("run", options.run));
  TH_RETURN_IF_ERROR(ValidateName("model", options.model));
  TH_RETURN_IF_ERROR(ValidateName("group", options.group));
  if (options.ranks == 0) return absl::InvalidArgumentError("a group has at least one rank");
  if (options.rank >= options.ranks) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank,
                                                   " is outside of its group of ", options.ranks,
                                                   " (ranks count from 0)"));
  }
  if (options.join_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("join_timeout has to be positive");
  }
  return absl::OkStatus();
}

absl::string_view Environment(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

SessionOptions SessionOptionsOf(ClientOptions& options, const DataPlane& data_plane) {
  SessionOptions session;
  session.key = {std::move(options.run), std::move(options.model)};
  session.name = {std::move(options.group), Rank(options.rank)};
  session.ranks = options.ranks;
  session.location = std::move(options.location);
  if (session.location.host.empty()) {
    session.location.host = MachineIdentity();
    if (session.location.host_name.empty()) session.location.host_name = HostName();
  }
  if (session.location.rack.empty()) {
    session.location.rack =
        SlurmRack(Environment("SLURM_TOPOLOGY_ADDR"), Environment("SLURM_TOPOLOGY_ADDR_PATTERN"));
  }
  session.endpoints = data_plane.endpoints();
  session.spot = options.spot;
  session.offload_limit_bytes = options.offload_limit_bytes;
  session.credentials = std::move(options.credentials);
  session.software = "libtensorhub";
  return session;
}

// The error of a join, with what is found at the server's address where nobody answered there.
absl::Status NotJoined(const ClientOptions& options, const std::string& server,
                       const absl::Status& joined) {
  const absl::string_view text = joined.message();
  if (!absl::StartsWith(text, ErrorCodeName(ErrorCode::kServerUnreachable))) {
    return Reworded(joined, absl::StrCat(text, "; reference server ", options.server));
  }
  const std::string why = WhyNoServer(server, kProbeTimeout);
  if (why == kServerAnswers) {  // what the attempts came to says more
    return Reworded(joined, absl::StrCat(text, "; reference server ", options.server, ": ", why));
  }
  const absl::string_view who = text.substr(0, text.find(": "));
  return Reworded(joined, absl::StrCat(who, ": no reference server at ", options.server, " within ",
                                       absl::FormatDuration(options.join_timeout), ": ", why));
}

}  // namespace

std::string RandomIdempotencyKey() {
  std::array<char, 16> bytes{};
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = getrandom(bytes.data() + filled, bytes.size() - filled, 0);
    if (got > 0) filled += static_cast<size_t>(got);
  }
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

Client::Client(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<Client>> Client::Join(ClientOptions options) {
  TH_RETURN_IF_ERROR(Validate(options));
  const absl::Time began = MonotonicNow();
  TH_RETURN_IF_ERROR(ClaimProcess());
  SessionDriver::Parts parts;
  parts.runtime = Runtime::Acquire();
  if (parts.runtime->callbacks().OnLoop()) {
    return absl::FailedPreconditionError("Join waits: not from a TensorHub callback");
  }
  TH_ASSIGN_OR_RETURN(ServerList servers, AwaitServers(options.server, options.join_timeout));
  TH_ASSIGN_OR_RETURN(
      parts.data_plane,
      DataPlane::Acquire(
          {options.data_address, options.data_threads, options.connections_per_source,
           options.uplink_bytes_per_second, options.transports, options.strict_transport,
           options.attach_limit_bytes, options.rdma_devices, options.rdma_registered_limit_bytes},
          servers.first(), options.join_timeout));
  auto impl = std::make_shared<Impl>();
  impl->server = options.server;
  parts.connector = MakeGrpcConnector(servers, impl->control_bytes, parts.runtime);
  // The look-up of the server's name counts, in steps that look well in an error's text.
  const absl::Duration looked_up = absl::Trunc(MonotonicNow() - began, absl::Milliseconds(10));
  parts.limits.join_timeout = std::max(options.join_timeout - looked_up, kShortestWait);
  parts.staging_limit_bytes = options.staging_limit_bytes;
  parts.snapshot_limit_bytes = options.snapshot_limit_bytes;
  if (options.on_reader) {
    parts.readers = std::make_shared<ReaderReporter>(parts.runtime, std::move(options.on_reader));
  }
  parts.options = SessionOptionsOf(options, *parts.data_plane);
  impl->membership = std::make_shared<SessionDriver>(std::move(parts));
  const absl::Status joined = impl->membership->Join();
  if (joined.ok()) {
    RegisterMembership(impl->membership);
    return std::unique_ptr<Client>(new Client(std::move(impl)));
  }
  (void)impl->membership->Leave(absl::ZeroDuration());
  return NotJoined(options, servers.first(), joined);
}

Client::~Client() {
  if (impl_->guard.forked()) {
    LeaveBehind(std::move(impl_));
    return;
  }
  (void)Leave();  // a server that does not hear it sees the stream end
  // The references of th-control to this membership are gone then: the last client ends the threads
  // here.
  const std::shared_ptr<Runtime> runtime = impl_->membership->shared_runtime();
  runtime->RunOnControl([] {});
  impl_.reset();
}

absl::StatusOr<WeightBuffer> Client::Register(std::vector<Tensor> tensors,
                                              RegisterOptions options) {
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  TH_RETURN_IF_ERROR(ValidateName("buffer name", options.name));
  TH_RETURN_IF_ERROR(ValidateName("form", options.form));
  const BindingOptions binding_options{options.segment_bytes, options.checksums};
  TH_ASSIGN_OR_RETURN(TensorBinding binding, BindTensors(std::move(tensors), binding_options));
  TH_RETURN_IF_ERROR(FindDeviceMemory(ProcessMemoryDevices().get(), &binding));
  TH_RETURN_IF_ERROR(CheckReadable(binding));
  auto buffer = std::make_shared<WeightBuffer::Impl>();
  buffer->membership = impl_->membership;
  TH_ASSIGN_OR_RETURN(buffer->buffer,
                      impl_->membership->Register(std::move(options.name), std::move(options.form),
                                                  binding_options, std::move(binding)));
  return WeightBuffer(std::move(buffer));
}

absl::StatusOr<std::shared_ptr<Controller>> Client::Impl::ConnectedController(
    absl::Duration timeout) {
  {
    absl::MutexLock lock(&mu);
    if (controller != nullptr) return controller;
  }
  // Without the lock: each call waits for its own time only.
  TH_ASSIGN_OR_RETURN(std::shared_ptr<Controller> connected,
                      Controller::Connect({.server = server,
                                           .run = membership->key().run,
                                           .model = membership->key().model,
                                           .connect_timeout = timeout}));
  absl::MutexLock lock(&mu);
  if (controller == nullptr) controller = std::move(connected);
  return controller;
}

namespace {

// Why the version is not there, for the error of a wait.
absl::Status WaitedInVain(Controller& controller, const VersionSelector& version,
                          const absl::Status& waited) {
  if (!absl::IsDeadlineExceeded(waited)) return waited;
  const absl::Status why = controller.Resolve(version, kReasonTimeout).status();
  if (why.ok()) return waited;  // it came just now; the time is up all the same
  return absl::DeadlineExceededError(absl::StrCat(waited.message(), ": ", why.message()));
}

}  // namespace

absl::StatusOr<VersionInfo> Client::WaitFor(VersionSelector version, absl::Duration timeout) {
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  TH_RETURN_IF_ERROR(impl_->membership->CanWait());
  const absl::Time deadline = MonotonicNow() + timeout;
  TH_ASSIGN_OR_RETURN(const std::shared_ptr<Controller> controller,
                      impl_->ConnectedController(std::max(timeout, kReasonTimeout)));
  const absl::Duration left = std::max(deadline - MonotonicNow(), kShortestWait);
  absl::StatusOr<VersionInfo> found = controller->WaitFor(version, left);
  if (found.ok()) return found;
  return WaitedInVain(*controller, version, found.status());
}

absl::StatusOr<AwaitedForm> Client::AwaitForm(VersionSelector version, std::string form,
                                              absl::Duration timeout) {
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  TH_RETURN_IF_ERROR(impl_->membership->CanWait());
  TH_RETURN_IF_ERROR(ValidateName("form", form));
  const absl::Time deadline = MonotonicNow() + timeout;
  TH_ASSIGN_OR_RETURN(const std::shared_ptr<Controller> controller,
                      impl_->ConnectedController(std::max(timeout, kReasonTimeout)));
  absl::StatusOr<AwaitedForm> awaited =
      controller->AwaitForm(version, form, impl_->membership->group(), LeftUntil(deadline));
  if (awaited.ok()) return awaited;
  return WaitedInVain(*controller, version, awaited.status());
}

absl::StatusOr<VersionInfo> Client::RollBack(VersionSelector to, std::string idempotency_key) {
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  TH_RETURN_IF_ERROR(impl_->membership->CanWait());
  if (idempotency_key.empty()) idempotency_key = RandomIdempotencyKey();
  RunCommand command{std::move(idempotency_key), th::RollBack{std::move(to)}};
  const auto call = std::make_shared<Call>();
  TH_RETURN_IF_ERROR(impl_->membership->Start(call, [&](CallId id) {
    return event::Command{id, std::move(command)};
  }));
  if (!call->WaitUnlessCancelled(kCommandTimeout)) {
    TH_RETURN_IF_ERROR(CheckNotCancelled("the roll-back goes on; ask again with the same key"));
    return absl::DeadlineExceededError("the server did not answer the roll-back");
  }
  TH_RETURN_IF_ERROR(call->command.status);
  return call->command.version;
}

absl::Status Client::Leave(absl::Duration timeout) {
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  return impl_->membership->Leave(timeout);
}

absl::Status Client::Preempt(absl::Time deadline) {
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  return impl_->membership->Preempt(deadline - absl::Now());
}

bool Client::AwaitEnded(absl::Duration timeout) const {
  return !impl_->guard.forked() && impl_->membership->AwaitEnded(timeout);
}

absl::Status Client::membership() const {
  TH_RETURN_IF_ERROR(impl_->guard.Check());
  return impl_->membership->status();
}

bool Client::connected() const {
  return impl_->guard.Check().ok() && impl_->membership->connected();
}

uint64_t Client::control_bytes() const { return impl_->control_bytes->load(); }

std::string Client::data_endpoint() const {
  const std::vector<Endpoint>& endpoints = impl_->membership->data_plane().endpoints();
  const auto tcp = std::find_if(endpoints.begin(), endpoints.end(), [](const Endpoint& endpoint) {
    return endpoint.transport == kTcpTransport;
  });
  return tcp == endpoints.end() ? "" : tcp->address;
}

std::vector<std::string> Client::left_out() const {
  return impl_->membership->data_plane().LeftOut();
}

const std::vector<std::string>& TransportNames() { return KnownTransports(); }

int RuntimeThreadCount() { return TaskLoopThreadCount(); }

}  // namespace th
