#include "th/doctor/peer_session.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "th/doctor/bulk_bytes.h"
#include "th/doctor/line_channel.h"
#include "th/doctor/peer_facts.h"
#include "th/monitoring/host_name.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th::doctor {
namespace {

// A connection that comes in the middle of a session says within this time which one it belongs to.
constexpr absl::Duration kTokenTime = absl::Seconds(1);
constexpr int64_t kMostMilliseconds = 1'000'000;

// Tells connections of this session from others that the same host opens.
std::string RandomToken() {
  std::random_device random;
  return absl::StrCat(absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
}

nlohmann::json LastWords(absl::string_view error) {
  nlohmann::json words = Greeting();
  words["error"] = std::string(error);
  return words;
}

// Used once, by one thread.
class PeerSession {
 public:
  PeerSession(stream::Socket connection, int listener, const AnswerSources& sources,
              const AnswerLimits& limits, int stop_fd)
      : peer_(RemoteEnd(connection.fd())),
        here_(LocalEnd(connection.fd()).Host()),
        channel_(std::move(connection), stop_fd),
        listener_(listener),
        sources_(sources),
        limits_(limits),
        stop_fd_(stop_fd),
        ends_at_(MonotonicNow() + limits.session),
        token_(RandomToken()) {
    answered_.address = peer_.Host();
  }

  AnsweredPeer Run() {
    const absl::Status status = Converse();
    if (!status.ok()) answered_.error = std::string(status.message());
    answered_.spoke = channel_.heard();
    // A connection that says nothing at all is a probe of the port, as th doctor --to makes one.
    if (!status.ok() && answered_.spoke) channel_.SendLast(LastWords(status.message()));
    return std::move(answered_);
  }

 private:
  absl::Status Converse() {
    TH_RETURN_IF_ERROR(Greet());
    for (;;) {
      const absl::StatusOr<nlohmann::json> question =
          channel_.Receive(std::min(limits_.idle, ends_at_ - MonotonicNow()));
      if (absl::IsUnavailable(question.status())) return absl::OkStatus();  // it has asked it all
      TH_RETURN_IF_ERROR(question.status());
      TH_ASSIGN_OR_RETURN(const nlohmann::json answer, AnswerTo(*question));
      TH_RETURN_IF_ERROR(channel_.Send(answer, limits_.idle));
    }
  }

  absl::Status Greet();
  absl::StatusOr<nlohmann::json> AnswerTo(const nlohmann::json& question);
  static nlohmann::json Time();
  nlohmann::json ConnectBack(const nlohmann::json& question);
  nlohmann::json MoveBulk(const nlohmann::json& question, bool sends);
  absl::StatusOr<LineChannel> AwaitSecondConnection();
  nlohmann::json Checks();

  const SocketAddress peer_;
  const std::string here_;  // the address at which the peer has reached this host
  LineChannel channel_;
  const int listener_;
  const AnswerSources& sources_;
  const AnswerLimits& limits_;
  const int stop_fd_;
  const absl::Time ends_at_;
  const std::string token_;
  int questions_ = 0;
  std::map<std::string, int> asked_;  // how often each was asked
  AnsweredPeer answered_;
};

absl::Status PeerSession::Greet() {
  const absl::StatusOr<nlohmann::json> greeting = channel_.Receive(limits_.greeting);
  absl::Status understood = greeting.status();
  if (understood.ok()) understood = CheckGreeting(*greeting);
  if (absl::IsInvalidArgument(understood)) {
    return absl::InvalidArgumentError(
        absl::StrCat("here listens th doctor --listen, and it answers th doctor --peer alone: ",
                     understood.message()));
  }
  TH_RETURN_IF_ERROR(understood);
  answered_.host = PeerText(*greeting, "host");
  answered_.version = PeerText(*greeting, "version");
  const HostFacts facts = sources_.read_facts();
  nlohmann::json answer = Greeting();
  answer["host"] = HostName();
  answer["version"] = sources_.version;
  answer["congestion_control"] = facts.tcp.congestion_control;
  answer["net_device"] = NetDeviceOf(here_);
  const auto mtu = facts.net_device_mtu.find(NetDeviceOf(here_));
  if (mtu != facts.net_device_mtu.end()) answer["mtu"] = mtu->second;
  answer["seen_as"] = peer_.Host();
  answer["token"] = token_;
  return channel_.Send(answer, limits_.idle);
}

absl::StatusOr<nlohmann::json> PeerSession::AnswerTo(const nlohmann::json& question) {
  const std::string ask = PeerText(question, "ask");
  const int most = ask == kAskTime ? kMostClockRounds : 1;
  if (++questions_ > kMostQuestions || ++asked_[ask] > most) {
    return absl::InvalidArgumentError(absl::StrCat("'", ask, "' was asked too often"));
  }
  if (ask == kAskTime) return Time();
  if (ask == kAskConnect) return ConnectBack(question);
  if (ask == kAskReceive) return MoveBulk(question, /*sends=*/false);
  if (ask == kAskSend) return MoveBulk(question, /*sends=*/true);
  if (ask == kAskChecks) return Checks();
  // A later release may ask for more: it does without.
  return nlohmann::json{{"error", absl::StrCat("'", ask, "' is unknown to this build")}};
}

nlohmann::json PeerSession::Time() {
  const int64_t now = absl::ToUnixMicros(absl::Now());
  return {{"received_us", now}, {"sent_us", absl::ToUnixMicros(absl::Now())}};
}

// The peer names the port alone: the address is that from which it has connected.
nlohmann::json PeerSession::ConnectBack(const nlohmann::json& question) {
  const std::optional<int64_t> port = PeerNumber(question, "port", UINT16_MAX);
  if (!port.has_value() || *port == 0) {
    return {{"connected", false}, {"error", "no port was named"}};
  }
  const SocketAddress address = peer_.WithPort(static_cast<uint16_t>(*port));
  const stream::Socket socket = MakeTcpSocket(address);
  const int error =
      socket.fd() < 0
          ? errno
          : Connect(socket.fd(), address,
                    {.deadline = MonotonicNow() + limits_.connect, .stop_fd = stop_fd_});
  if (error == 0) return {{"connected", true}};
  return {{"connected", false}, {"error", strerror(error)}};
}

nlohmann::json PeerSession::MoveBulk(const nlohmann::json& question, bool sends) {
  const auto bounded = [&question](const char* key, absl::Duration most) {
    const auto asked = PeerNumber(question, key, kMostMilliseconds);
    return asked.has_value() ? std::min(absl::Milliseconds(*asked), most) : most;
  };
  const BulkLimits bulk = {.duration = bounded("duration_ms", limits_.bulk_duration),
                           .stall = bounded("stall_ms", limits_.bulk_stall)};
  absl::StatusOr<LineChannel> second = AwaitSecondConnection();
  absl::Status ready = second.status();
  if (ready.ok()) ready = second->Send({{"ready", true}}, limits_.idle);
  RateFacts rate;
  if (!ready.ok()) {
    rate.error = absl::StrCat("at the peer: ", ready.message());
  } else if (sends) {
    SendBulk(second->fd(), bulk, stop_fd_);
  } else {
    rate = ReceiveBulk(second->fd(), bulk, stop_fd_);
  }
  return RateAsJson(rate);
}

// Takes connections off the listener until one is of this session.
absl::StatusOr<LineChannel> PeerSession::AwaitSecondConnection() {
  const WaitLimit limit = {.deadline = MonotonicNow() + limits_.second, .stop_fd = stop_fd_};
  for (;;) {
    const int waited = AwaitReady(listener_, POLLIN, limit);
    if (waited != 0) {
      return absl::UnavailableError(absl::StrCat("no second connection came: ", strerror(waited)));
    }
    stream::Socket accepted = Accept(listener_);
    if (accepted.fd() < 0 && (errno == EAGAIN || errno == ECONNABORTED)) continue;
    if (accepted.fd() < 0) return absl::UnavailableError(strerror(errno));
    const bool same_host = RemoteEnd(accepted.fd()).Host() == peer_.Host();
    LineChannel channel(std::move(accepted), stop_fd_);
    const absl::StatusOr<nlohmann::json> first = channel.Receive(kTokenTime);
    if (!first.ok()) continue;
    if (same_host && PeerText(*first, "token") == token_) return channel;
    channel.SendLast(LastWords("another host is being examined: try again in a minute"));
  }
}

nlohmann::json PeerSession::Checks() {
  nlohmann::json checks = nlohmann::json::array();
  for (const Finding& finding : sources_.examine()) checks.push_back(FindingAsJson(finding));
  return {{"checks", std::move(checks)}};
}

}  // namespace

AnsweredPeer AnswerPeer(stream::Socket connection, int listener, const AnswerSources& sources,
                        const AnswerLimits& limits, int stop_fd) {
  return PeerSession(std::move(connection), listener, sources, limits, stop_fd).Run();
}

}  // namespace th::doctor
