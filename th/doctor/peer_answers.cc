#include "th/doctor/peer_answers.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "th/transfer/monotonic_clock.h"

namespace th::doctor {
namespace {

// After a connection that could not be accepted, as where no file descriptor is left.
constexpr absl::Duration kAcceptRetry = absl::Milliseconds(200);

}  // namespace

absl::StatusOr<std::unique_ptr<PeerAnswers>> PeerAnswers::Start(const HostAndPort& at,
                                                                PeerAnswersOptions options) {
  uint32_t port = 0;
  const bool number = absl::SimpleAtoi(at.port, &port) && port <= UINT16_MAX;
  const std::optional<SocketAddress> address =
      number ? NumericSocketAddress(at.host, static_cast<uint16_t>(port)) : std::nullopt;
  if (!address.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot listen on ", at.host, ":", at.port,
        ": name a numeric address of this host, as in 10.0.0.2:7099, or :7099 for all (ip address "
        "lists them)"));
  }
  absl::StatusOr<stream::Socket> listener = ListenOn(*address, kPeerBacklog);
  if (!listener.ok()) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address->ToString(), ": ", listener.status().message(),
                     "; name an address of this host (ip address) and a free port (ss -ltn)"));
  }
  return std::unique_ptr<PeerAnswers>(new PeerAnswers(*std::move(listener), std::move(options)));
}

PeerAnswers::PeerAnswers(stream::Socket listener, PeerAnswersOptions options)
    : listener_(std::move(listener)),
      options_(std::move(options)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { Answer(); }) {}

PeerAnswers::~PeerAnswers() {
  eventfd_write(stop_.fd(), 1);
  thread_.join();
}

void PeerAnswers::Answer() {
  pthread_setname_np(pthread_self(), "th-answers");
  const WaitLimit until_stopped = {.deadline = absl::InfiniteFuture(), .stop_fd = stop_.fd()};
  while (AwaitReady(listener_.fd(), POLLIN, until_stopped) == 0) {
    stream::Socket connection = Accept(listener_.fd());
    if (connection.fd() < 0) {
      const WaitLimit retry = {.deadline = MonotonicNow() + kAcceptRetry, .stop_fd = stop_.fd()};
      AwaitReady(/*fd=*/-1, POLLIN, retry);
      continue;
    }
    const AnsweredPeer peer = AnswerPeer(std::move(connection), listener_.fd(), options_.sources,
                                         options_.limits, stop_.fd());
    if (peer.spoke && options_.on_peer) options_.on_peer(peer);
  }
}

}  // namespace th::doctor
