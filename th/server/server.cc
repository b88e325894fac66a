#include "th/server/server.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "glog/logging.h"
#include "grpcpp/ext/health_check_service_server_builder_option.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "th/monitoring/descriptors.h"
#include "th/monitoring/http_listener.h"
#include "th/monitoring/listen_address.h"
#include "th/monitoring/process_figures.h"
#include "th/monitoring/prometheus_text.h"
#include "th/server/connection_acceptor.h"
#include "th/server/controller_service.h"
#include "th/server/metrics_text.h"
#include "th/server/page/page.h"
#include "th/server/reference_service.h"
#include "th/server/registry_loop.h"
#include "th/server/server_metrics.h"
#include "th/server/state_json.h"
#include "th/server/status_snapshot.h"
#include "th/server/steady_clock.h"
#include "th/status/status_macros.h"
#include "th/wire/grpc_callback_queue.h"
#include "th/wire/limits.h"

namespace th {
namespace {

// A peer that answers no ping within both together is gone. Below the lease, so that a broken
// connection frees its rank for a replacement before the lease does.
constexpr absl::Duration kKeepaliveInterval = absl::Seconds(2);
constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(2);
// Workers may ping this often.
constexpr absl::Duration kMinPingInterval = absl::Milliseconds(100);
// When workers may come back after a clean shutdown; they go on trying.
constexpr absl::Duration kRetryAfterShutdown = absl::Milliseconds(100);
// The bytes that one read of a connection asks for. gRPC allocates them ahead, for every connection
// that waits for its next message; its own default is 8 KiB, and most messages have less than 200
// bytes.
constexpr int kReadBytes = 1024;
// Calls and streams of one connection at once; the peer's gRPC holds others back. A worker has one.
constexpr int kMaxStreamsOfConnection = 256;
// How long the status page waits for the loop.
constexpr absl::Duration kStatusTimeout = absl::Seconds(1);
// The newest ones that the page for people shows.
constexpr size_t kEventsOnPage = 300;
// However many look at the page, the loop is asked for its whole state once in this time, and takes
// at most one part in kStateLastsTimesItsCost of its time for that.
constexpr absl::Duration kStateLasts = absl::Seconds(1);
constexpr int kStateLastsTimesItsCost = 20;

HttpResponse NotServing() {
  return {.status = 503,
          .body =
              "not serving: the loop has not answered in time; it is overloaded, or a write of "
              "the state hangs\n"};
}

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

void Configure(grpc::ServerBuilder& builder, size_t stream_memory_bytes) {
  KeepGrpcCallbackQueue();
  builder.SetMaxReceiveMessageSize(kMaxMessageBytesOnWire);
  builder.SetMaxSendMessageSize(kMaxMessageBytesOnWire);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(kKeepaliveInterval));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(kKeepaliveTimeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Milliseconds(kMinPingInterval));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  // A server has thousands of connections that carry a heartbeat now and then: what each of them
  // costs at rest counts more than what it could carry at most.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kHttp2WindowBytes);
  builder.AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, kReadBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsOfConnection);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 0);  // its service is not offered
  // A connection has one stream, whose headers come once: a table to abbreviate them saves nothing.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_HPACK_TABLE_SIZE_DECODER, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_HPACK_TABLE_SIZE_ENCODER, 0);
  // Filters that every call would carry state of. Without the decompression no small message grows.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.SetResourceQuota(grpc::ResourceQuota("tensorhub").Resize(stream_memory_bytes));
}

}  // namespace

struct Server::Impl {
  explicit Impl(ServerOptions options)
      : software(options.software),
        stream_memory_bytes(options.stream_memory_bytes),
        shutdown_grace(options.shutdown_grace),
        event_log(std::move(options.event_log)),
        loop({.limits = options.limits,
              .store = std::move(options.store),
              .on_failure = [this](absl::Status why) { OnFailure(std::move(why)); },
              .on_event =
                  [this](Epoch epoch, const RecentEvent& event) {
                    if (event_log != nullptr) event_log->Append({epoch, event});
                  }},
             &metrics),
        service(&loop, &metrics, options.outbound),
        controllers(&loop, &metrics,
                    {.min_version = kMinProtocolVersion,
                     .max_version = kProtocolVersion,
                     .software = options.software},
                    options.calls) {}

  absl::Status Listen(ListenAddress listen);
  absl::Status ListenForHttp(const ListenAddress& listen);
  void TakeOver(int listener, int fd);
  void OnShortage(const std::string& why);
  // Remembers what the server itself does.
  void NoteOwn(EventKind kind, std::string text);
  void OnFailure(absl::Status why);
  // nullopt: the loop does not answer in time, or has failed.
  enum class Wanted { kCounters, kFigures, kCatalog };  // each beside the counters
  std::optional<StatusSnapshot> TakeSnapshot(Wanted wanted);
  // The answers of the HTTP listener, on its thread.
  HttpResponse Page(const std::string& path);
  HttpResponse State();
  HttpResponse Metrics();
  // Live: the loop answers. Healthy: new connections are accepted, too, which a restart would not
  // bring about.
  HttpResponse Live();
  HttpResponse Health();

  const std::string software;
  const size_t stream_memory_bytes;
  const absl::Duration shutdown_grace;
  const SteadyClock clock;
  const absl::Time started = clock.Now();
  const std::unique_ptr<EventLog> event_log;  // outlives the loop
  ServerMetrics metrics;
  absl::Mutex failure_mutex;
  absl::Status failure ABSL_GUARDED_BY(failure_mutex);
  RegistryLoop loop;
  ReferenceService service;
  ControllerService controllers;
  ListenAddress address;
  std::string address_text;
  std::string http_address_text;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections;
  std::unique_ptr<grpc::Server> grpc_server;
  std::unique_ptr<ConnectionAcceptor> acceptor;  // feeds `connections`
  // The last answer to /state.json, and until when it is given again; the HTTP listener's own.
  HttpResponse state;
  absl::Time state_until = absl::InfinitePast();
  std::unique_ptr<HttpListener> http;
  bool started_whole = false;  // Start has returned it
  std::atomic<bool> shutting_down{false};
};

absl::Status Server::Impl::Listen(ListenAddress listen) {
  TH_ASSIGN_OR_RETURN(std::vector<BoundSocket> sockets, BindAndListenEverywhere(listen));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  Configure(builder, stream_memory_bytes);
  builder.RegisterService(&service);
  builder.RegisterCallbackGenericService(&controllers);
  using Experimental = grpc::ServerBuilder::experimental_type;
  connections = builder.experimental().AddExternalConnectionAcceptor(
      Experimental::ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
  grpc_server = builder.BuildAndStart();
  if (grpc_server == nullptr) {
    for (const BoundSocket& socket : sockets) close(socket.fd);
    return absl::UnavailableError(absl::StrCat("gRPC does not start for ", listen.ToString()));
  }
  grpc_server->GetHealthCheckService()->SetServingStatus(true);
  listen.port = sockets.front().port;
  address = std::move(listen);
  address_text = address.ToString();
  acceptor = std::make_unique<ConnectionAcceptor>(
      std::move(sockets),
      ConnectionAcceptor::Handlers{
          .accepted = [this](int listener, int fd) { TakeOver(listener, fd); },
          .short_of = [this](const std::string& why) { OnShortage(why); }},
      &metrics);
  return absl::OkStatus();
}

void Server::Impl::TakeOver(int listener, int fd) {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = listener;
  connection.fd = fd;
  connections->HandleNewConnection(&connection);
}

void Server::Impl::NoteOwn(EventKind kind, std::string text) {
  loop.Note({.text = std::move(text), .kind = kind, .who = "server"});
}

void Server::Impl::OnShortage(const std::string& why) {
  LOG(ERROR) << "connections of workers are refused: " << why;
  NoteOwn(EventKind::kConnectionsRefused, why);
}

absl::Status Server::Impl::ListenForHttp(const ListenAddress& listen) {
  // No more of them than fit into what is reserved, beside the server's own files.
  const uint64_t reserved = ReservedDescriptors(DescriptorLimit());
  const size_t most = std::min<uint64_t>(kMaxHttpConnections, reserved / 4 * 3);
  TH_ASSIGN_OR_RETURN(
      http, HttpListener::Start(listen, [this](const std::string& path) { return Page(path); },
                                {.max_connections = most}));
  http_address_text = http->address().ToString();
  return absl::OkStatus();
}

void Server::Impl::OnFailure(absl::Status why) {
  absl::MutexLock lock(&failure_mutex);
  failure = std::move(why);
}

std::optional<StatusSnapshot> Server::Impl::TakeSnapshot(Wanted wanted) {
  struct Exchange {  // outlives a caller that has given up
    absl::Notification done;
    std::optional<StatusSnapshot> snapshot;
  };
  const auto exchange = std::make_shared<Exchange>();
  const auto look = [this, exchange, wanted](RegistryTurn& turn) -> Answer {
    StatusSnapshot snapshot{.epoch = loop.epoch(),
                            .counters = turn.registry.counters(),
                            .workers = turn.registry.worker_count(),
                            .now = turn.now};
    if (wanted == Wanted::kFigures) snapshot.figures = turn.registry.Figures();
    if (wanted == Wanted::kCatalog) {
      snapshot.catalog = turn.registry.List("", "", turn.now);
      snapshot.events = turn.events.Find({.limit = kEventsOnPage}, turn.now);
    }
    return [exchange, snapshot = std::move(snapshot)](const absl::Status& durable) mutable {
      if (durable.ok()) exchange->snapshot = std::move(snapshot);
      exchange->done.Notify();
    };
  };
  const absl::Status accepted = loop.Ask(look, Asker::kServer);
  if (!accepted.ok() || !exchange->done.WaitForNotificationWithTimeout(kStatusTimeout)) {
    return std::nullopt;
  }
  std::optional<StatusSnapshot>& snapshot = exchange->snapshot;
  if (snapshot.has_value()) {
    snapshot->wall = absl::Now();
    snapshot->uptime = clock.Now() - started;
    snapshot->address = address_text;
    snapshot->version = software;
  }
  return std::move(snapshot);
}

HttpResponse Server::Impl::Page(const std::string& path) {
  if (path == "/") {
    return {.content_type = "text/html; charset=utf-8", .body = std::string(PageForPeople())};
  }
  if (path == "/state.json") return State();
  if (path == "/metrics") return Metrics();
  if (path == "/healthz") return Health();
  if (path == "/livez") return Live();
  return {.status = 404, .body = "there are /, /state.json, /metrics, /healthz and /livez\n"};
}

HttpResponse Server::Impl::State() {
  const absl::Time began = clock.Now();
  if (began < state_until) return state;
  const std::optional<StatusSnapshot> snapshot = TakeSnapshot(Wanted::kCatalog);
  if (!snapshot.has_value()) return NotServing();
  state = {.content_type = "application/json", .body = RenderStateJson(*snapshot)};
  const absl::Time ended = clock.Now();
  state_until = ended + std::max(kStateLasts, kStateLastsTimesItsCost * (ended - began));
  return state;
}

HttpResponse Server::Impl::Metrics() {
  std::optional<StatusSnapshot> snapshot = TakeSnapshot(Wanted::kFigures);
  if (!snapshot.has_value()) return NotServing();
  snapshot->process = ReadProcessFigures();
  if (event_log != nullptr) metrics.events_lost = event_log->lost();
  return {.content_type = kPrometheusContentType, .body = RenderMetrics(*snapshot, metrics)};
}

HttpResponse Server::Impl::Live() {
  if (!TakeSnapshot(Wanted::kCounters).has_value()) return NotServing();
  return {.body = absl::StrCat("ok epoch ", loop.epoch().value, "\n")};
}

HttpResponse Server::Impl::Health() {
  if (DescriptorsExhausted()) {
    return {.status = 503, .body = absl::StrCat("cannot accept: ", ShortageText(), "\n")};
  }
  return Live();
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options) {
  if (options.store == nullptr) return absl::InvalidArgumentError("a server needs an open store");
  TH_ASSIGN_OR_RETURN(const ListenAddress listen, ParseListenAddress(options.listen));
  std::optional<ListenAddress> http_listen;
  if (!options.http_listen.empty()) {
    TH_ASSIGN_OR_RETURN(http_listen, ParseListenAddress(options.http_listen));
  }
  std::unique_ptr<Server> server(new Server(std::make_unique<Impl>(std::move(options))));
  TH_RETURN_IF_ERROR(server->impl_->Listen(listen));
  if (http_listen.has_value()) TH_RETURN_IF_ERROR(server->impl_->ListenForHttp(*http_listen));
  server->impl_->NoteOwn(EventKind::kServerStarted,
                         absl::StrCat(server->impl_->software, ", epoch ", server->epoch().value));
  server->impl_->started_whole = true;
  return server;
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { Shutdown(); }

const std::string& Server::address() const { return impl_->address_text; }

int Server::port() const { return impl_->address.port; }

const std::string& Server::http_address() const { return impl_->http_address_text; }

Epoch Server::epoch() const { return impl_->loop.epoch(); }

absl::Status Server::WaitForFailure(absl::Duration timeout) const {
  absl::MutexLock lock(&impl_->failure_mutex);
  const auto failed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_->failure_mutex) {
    return !impl_->failure.ok();
  };
  impl_->failure_mutex.AwaitWithTimeout(absl::Condition(&failed), timeout);
  return impl_->failure;
}

void Server::Shutdown() {
  if (impl_->shutting_down.exchange(true)) return;
  if (impl_->started_whole) {
    const absl::Status failure = WaitForFailure(absl::ZeroDuration());
    impl_->NoteOwn(EventKind::kServerStops, std::string(failure.message()));
  }
  impl_->http.reset();
  impl_->acceptor.reset();
  impl_->loop.RefuseEverybody(absl::UnavailableError("the server is shutting down"),
                              kRetryAfterShutdown);
  if (impl_->grpc_server != nullptr) {
    impl_->grpc_server->GetHealthCheckService()->SetServingStatus(false);
    impl_->grpc_server->Shutdown(std::chrono::system_clock::now() +
                                 absl::ToChronoNanoseconds(impl_->shutdown_grace));
    impl_->grpc_server->Wait();
  }
  impl_->loop.Stop();
}

}  // namespace th
