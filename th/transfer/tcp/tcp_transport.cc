#include "th/transfer/tcp/tcp_transport.h"

#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "th/pipeline_replicator/serving_session.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/tcp/event_loop.h"
#include "th/transfer/tcp/serving_table.h"
#include "th/transfer/tcp/socket.h"
#include "th/transfer/tcp/source_connection.h"
#include "th/transfer/tcp/tcp_pull.h"
#include "th/weights/status_macros.h"

namespace th {
namespace tcp {
namespace {

constexpr uint32_t kMaxDataThreads = 64;
// Connections taken in one turn of the loop.
constexpr int kAcceptsPerTurn = 64;
// When the process has no descriptor left, the listener rests so long instead of spinning.
constexpr absl::Duration kAcceptRest = absl::Milliseconds(100);

using Loops = std::vector<std::shared_ptr<EventLoop>>;

// Accepts connections and hands them to the loops in turn.
class Listener : public EventLoop::Handler, public std::enable_shared_from_this<Listener> {
 public:
  Listener(Socket socket, Loops loops, std::shared_ptr<ServingTable> table, TransportLimits limits)
      : socket_(std::move(socket)),
        loops_(std::move(loops)),
        table_(std::move(table)),
        limits_(std::move(limits)) {}

  void Start() { loops_[0]->Watch(socket_.fd(), EPOLLIN, shared_from_this()); }
  void OnReady(uint32_t events) override;
  void OnLoopStops() override {
    loops_[0]->Unwatch(socket_.fd());
    socket_.Close();
  }

 private:
  void Take(Socket socket);
  void Rest();

  Socket socket_;
  const Loops loops_;
  const std::shared_ptr<ServingTable> table_;
  const TransportLimits limits_;
  size_t next_loop_ = 0;
  // Shared with the connections, which may end after the listener.
  const std::shared_ptr<std::atomic<uint32_t>> open_ = std::make_shared<std::atomic<uint32_t>>(0);
};

void Listener::OnReady(uint32_t events) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    const int fd = accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      Take(Socket(fd));
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    if (errno == EINTR || errno == ECONNABORTED) continue;
    // EMFILE, ENFILE, ENOMEM, ENOBUFS, and what the network reports of a connection that is gone.
    return Rest();
  }
}

void Listener::Take(Socket socket) {
  if (open_->load() >= limits_.max_inbound_connections) return;  // closes it
  open_->fetch_add(1);
  const auto& loop = loops_[next_loop_++ % loops_.size()];
  auto connection = std::make_shared<SourceConnection>(std::move(socket), loop, table_, limits_,
                                                       [open = open_] { open->fetch_sub(1); });
  loop->Post([connection] { connection->Start(); });
}

void Listener::Rest() {
  loops_[0]->Unwatch(socket_.fd());
  loops_[0]->RunAt(MonotonicNow() + kAcceptRest, [self = shared_from_this()] {
    if (self->socket_.open()) self->Start();
  });
}

class Impl : public TcpTransport {
 public:
  Impl(TransportLimits limits, Loops loops, std::vector<Endpoint> endpoints, uint16_t port)
      : limits_(std::move(limits)),
        loops_(std::move(loops)),
        endpoints_(std::move(endpoints)),
        port_(port),
        table_(std::make_shared<ServingTable>(limits_.uplink_bytes_per_second, MonotonicNow())) {}

  ~Impl() override {
    for (const auto& loop : loops_) loop->Stop();
  }

  void Listen(Socket socket) {
    auto listener = std::make_shared<Listener>(std::move(socket), loops_, table_, limits_);
    loops_[0]->Post([listener] { listener->Start(); });
  }

  absl::string_view name() const override { return "tcp"; }
  std::vector<Endpoint> endpoints() const override { return endpoints_; }
  uint16_t port() const override { return port_; }
  bool AddHolder(WorkerId worker, HolderDelegate* delegate) override {
    return table_->AddHolder(worker, delegate);
  }
  void RemoveHolder(WorkerId worker) override { table_->RemoveHolder(worker); }
  void FinishTransfer(TransferId transfer) override {
    table_->EndTransfer(transfer, ServingEnd::kAfterSegment);
  }
  void CutTransfer(TransferId transfer) override {
    table_->EndTransfer(transfer, ServingEnd::kNow);
  }
  std::unique_ptr<Pull> Open(PullTarget target, PullSink* sink) override;
  Counters counters() const override {
    return {.bytes_sent = table_->bytes_sent(),
            .bytes_received = bytes_received_->load(),
            .transfers_served = table_->transfers_served(),
            .transfers_refused = table_->transfers_refused()};
  }

 private:
  const TransportLimits limits_;
  const Loops loops_;
  const std::vector<Endpoint> endpoints_;
  const uint16_t port_;
  const std::shared_ptr<ServingTable> table_;
  const std::shared_ptr<std::atomic<uint64_t>> bytes_received_ =
      std::make_shared<std::atomic<uint64_t>>(0);
  std::atomic<size_t> next_loop_{0};
};

std::unique_ptr<Pull> Impl::Open(PullTarget target, PullSink* sink) {
  PullNonce nonce;
  // Cannot fail for so few bytes once the system has booted.
  if (getrandom(nonce.data(), nonce.size(), 0) < 0) nonce.fill(0);
  auto state = std::make_shared<PullState>(std::move(target), sink, limits_, nonce, loops_,
                                           next_loop_.fetch_add(1), bytes_received_);
  state->Start();
  return std::make_unique<TcpPull>(std::move(state));
}

absl::StatusOr<std::vector<Endpoint>> EndpointsOf(const TcpOptions& options,
                                                  const SocketAddress& bound) {
  std::vector<Endpoint> endpoints;
  for (const std::string& host : options.advertised_hosts) {
    const std::string shown = absl::StrContains(host, ":") ? absl::StrCat("[", host, "]") : host;
    endpoints.push_back({.address = absl::StrCat(shown, ":", bound.port())});
    TH_RETURN_IF_ERROR(SocketAddress::Parse(endpoints.back().address).status());
  }
  if (!endpoints.empty()) return endpoints;
  if (bound.IsWildcard()) {
    return absl::InvalidArgumentError(
        absl::StrCat("listening on every address (", bound.ToString(),
                     ") needs to be told under which others reach this machine"));
  }
  endpoints.push_back({.address = bound.ToString()});
  return endpoints;
}

}  // namespace
}  // namespace tcp

absl::StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Create(TcpOptions options) {
  TH_ASSIGN_OR_RETURN(const tcp::SocketAddress wanted,
                      tcp::SocketAddress::Parse(options.listen_address));
  if (options.limits.data_threads < 1 || options.limits.data_threads > tcp::kMaxDataThreads) {
    return absl::InvalidArgumentError(absl::StrCat("data_threads is ", options.limits.data_threads,
                                                   "; 1 to ", tcp::kMaxDataThreads,
                                                   " are possible"));
  }
  TH_ASSIGN_OR_RETURN(tcp::Socket listener, tcp::ListenOn(wanted));
  const tcp::SocketAddress bound = tcp::SocketAddress::OfSelf(listener.fd());
  TH_ASSIGN_OR_RETURN(std::vector<Endpoint> endpoints, tcp::EndpointsOf(options, bound));
  tcp::Loops loops;
  for (uint32_t i = 0; i < options.limits.data_threads; ++i) {
    TH_ASSIGN_OR_RETURN(auto loop, tcp::EventLoop::Start(absl::StrCat("th-data-", i)));
    loops.push_back(std::move(loop));
  }
  auto transport = std::make_unique<tcp::Impl>(options.limits, std::move(loops),
                                               std::move(endpoints), bound.port());
  transport->Listen(std::move(listener));
  return transport;
}

}  // namespace th
