#include "th/transfer/stream/stream_transport.h"

#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/stream/inbound_connections.h"
#include "th/transfer/stream/source_connection.h"
#include "th/transfer/stream/stream_pull.h"

namespace th::stream {
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
  Listener(Socket socket, Loops loops, std::shared_ptr<const Medium> medium,
           std::shared_ptr<ServingTable> table, TransportLimits limits)
      : socket_(std::move(socket)),
        loops_(std::move(loops)),
        medium_(std::move(medium)),
        table_(std::move(table)),
        limits_(std::move(limits)),
        inbound_(std::make_shared<InboundConnections>(InboundConnections::Limits{
            limits_.max_inbound_connections, limits_.max_connections_per_peer})) {}

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
  const std::shared_ptr<const Medium> medium_;
  const std::shared_ptr<ServingTable> table_;
  const TransportLimits limits_;
  size_t next_loop_ = 0;
  const std::shared_ptr<InboundConnections> inbound_;  // with the connections, which may end later
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
  const std::string peer = PeerName(socket.fd());
  const InboundConnections::Verdict verdict = inbound_->Take(peer);
  if (verdict == InboundConnections::Verdict::kClose) return;  // closes it
  const auto& loop = loops_[next_loop_++ % loops_.size()];
  auto connection =
      std::make_shared<SourceConnection>(std::move(socket), loop, medium_, table_, limits_,
                                         [inbound = inbound_, peer] { inbound->Release(peer); });
  if (verdict == InboundConnections::Verdict::kRefuse) {
    connection->Refuse(absl::ResourceExhaustedError(absl::StrCat(
        peer, " has ", limits_.max_connections_per_peer,
        " connections to the source, which takes no more of one peer (max_connections_per_peer)")));
  }
  loop->Post([connection] { connection->Start(); });
}

void Listener::Rest() {
  loops_[0]->Unwatch(socket_.fd());
  loops_[0]->RunAt(MonotonicNow() + kAcceptRest, [self = shared_from_this()] {
    if (self->socket_.open()) self->Start();
  });
}

}  // namespace

StreamTransport::StreamTransport(std::shared_ptr<const Medium> medium,
                                 std::vector<Endpoint> endpoints, TransportLimits limits,
                                 Loops loops)
    : medium_(std::move(medium)),
      endpoints_(std::move(endpoints)),
      limits_(std::move(limits)),
      loops_(std::move(loops)),
      table_(std::make_shared<ServingTable>(limits_.uplink_bytes_per_second, MonotonicNow())) {}

StreamTransport::~StreamTransport() {
  for (const auto& loop : loops_) loop->Stop();
}

absl::StatusOr<std::unique_ptr<StreamTransport>> StreamTransport::Start(
    std::shared_ptr<const Medium> medium, Socket listener, std::vector<Endpoint> endpoints,
    const TransportLimits& limits) {
  if (limits.data_threads < 1 || limits.data_threads > kMaxDataThreads) {
    return absl::InvalidArgumentError(absl::StrCat("data_threads is ", limits.data_threads,
                                                   "; 1 to ", kMaxDataThreads, " are possible"));
  }
  Loops loops;
  for (uint32_t i = 0; i < limits.data_threads; ++i) {
    TH_ASSIGN_OR_RETURN(auto loop, EventLoop::Start(absl::StrCat(medium->thread_name(), "-", i)));
    loops.push_back(std::move(loop));
  }
  std::unique_ptr<StreamTransport> transport(
      new StreamTransport(std::move(medium), std::move(endpoints), limits, std::move(loops)));
  auto accepting = std::make_shared<Listener>(std::move(listener), transport->loops_,
                                              transport->medium_, transport->table_, limits);
  transport->loops_[0]->Post([accepting] { accepting->Start(); });
  return transport;
}

std::unique_ptr<Pull> StreamTransport::Open(PullTarget target, PullSink* sink) {
  PullNonce nonce;
  // Cannot fail for so few bytes once the system has booted.
  if (getrandom(nonce.data(), nonce.size(), 0) < 0) nonce.fill(0);
  auto state = std::make_shared<PullState>(std::move(target), sink, limits_, nonce, medium_, loops_,
                                           next_loop_.fetch_add(1), bytes_received_);
  state->Start();
  return std::make_unique<StreamPull>(std::move(state));
}

Transport::Counters StreamTransport::counters() const {
  return {.bytes_sent = table_->bytes_sent(),
          .bytes_received = bytes_received_->load(),
          .transfers_served = table_->transfers_served(),
          .transfers_refused = table_->transfers_refused()};
}

}  // namespace th::stream
