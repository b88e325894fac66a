#include "th/doctor/peer_probe.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "th/doctor/line_channel.h"
#include "th/doctor/peer_facts.h"
#include "th/doctor/sockets.h"
#include "th/monitoring/host_name.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th::doctor {
namespace {

using Outcome = PeerFacts::Outcome;

// The largest segment of the connection for questions, in both directions: it goes on where larger
// packets are dropped, which a host has to carry in any network (RFC 9293).
constexpr int kSmallSegmentBytes = 536;
// The peer has connected before it says so, and the connection is there but for its last packet.
constexpr absl::Duration kArrivalTime = absl::Seconds(1);

Outcome OutcomeOf(const absl::Status& status, bool greeted) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return Outcome::kComplete;
    case absl::StatusCode::kDeadlineExceeded:
      return Outcome::kSilent;
    case absl::StatusCode::kFailedPrecondition:
      return Outcome::kOtherProtocol;
    case absl::StatusCode::kAborted:
      return Outcome::kRefused;
    case absl::StatusCode::kInvalidArgument:
      return greeted ? Outcome::kBrokeOff : Outcome::kNoDoctor;
    case absl::StatusCode::kNotFound:
      return Outcome::kNotReached;
    default:
      // A program that closes at the first words of a doctor does not know them.
      return greeted ? Outcome::kBrokeOff : Outcome::kNoDoctor;
  }
}

int64_t WallClockUs() { return absl::ToUnixMicros(absl::Now()); }

// One examination. Used once, by one thread.
class PeerProbe {
 public:
  PeerProbe(const PeerTarget& target, const PeerProbeOptions& options) : options_(options) {
    facts_.target = target.name;
    facts_.own_version = options.version;
    const auto address = NumericSocketAddress(target.address, target.port);
    if (address.has_value()) address_ = *address;
  }

  PeerFacts Run() {
    const absl::Status status = RunSteps();
    facts_.outcome = OutcomeOf(status, facts_.greeted);
    facts_.error = std::string(status.message());
    return std::move(facts_);
  }

 private:
  absl::Status RunSteps() {
    TH_RETURN_IF_ERROR(ConnectForLines());
    TH_RETURN_IF_ERROR(Greet());
    TH_RETURN_IF_ERROR(CompareClocks());
    TH_RETURN_IF_ERROR(TryWayBack());
    TH_RETURN_IF_ERROR(MeasureRate(kAskReceive, &facts_.rate_there));
    TH_RETURN_IF_ERROR(MeasureRate(kAskSend, &facts_.rate_back));
    return AskForChecks();
  }

  // The answer. ABORTED with the words of a peer that does not want to.
  absl::StatusOr<nlohmann::json> Ask(const nlohmann::json& question, absl::Duration timeout) {
    TH_RETURN_IF_ERROR(channel_->Send(question, timeout));
    return Answer(timeout);
  }
  absl::StatusOr<nlohmann::json> Answer(absl::Duration timeout) {
    TH_ASSIGN_OR_RETURN(nlohmann::json answer, channel_->Receive(timeout));
    // Only the last words of a peer have both.
    const std::string error = PeerText(answer, "error");
    if (answer.contains("magic") && !error.empty()) {
      TH_RETURN_IF_ERROR(CheckGreeting(answer));
      return absl::AbortedError(absl::StrCat("it says: ", error));
    }
    return answer;
  }

  absl::Status ConnectForLines();
  absl::Status Greet();
  absl::Status CompareClocks();
  absl::Status TryWayBack();
  absl::Status MeasureRate(const char* ask, std::optional<RateFacts>* rate);
  RateFacts MoveBulk(bool sends);
  absl::Status AskForChecks();

  const PeerProbeOptions options_;
  SocketAddress address_;  // of the peer
  std::optional<LineChannel> channel_;
  std::string token_;    // by which the peer knows a connection for bytes
  std::string seen_as_;  // this host's address, as the peer sees it
  PeerFacts facts_;
};

absl::Status PeerProbe::ConnectForLines() {
  if (address_.size == 0) return absl::NotFoundError("no numeric address");
  stream::Socket socket = MakeTcpSocket(address_);
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_MAXSEG, &kSmallSegmentBytes, sizeof kSmallSegmentBytes);
  const int error =
      Connect(socket.fd(), address_, {.deadline = MonotonicNow() + options_.connect_timeout});
  if (error != 0) return absl::NotFoundError(strerror(error));
  channel_.emplace(std::move(socket));
  return absl::OkStatus();
}

absl::Status PeerProbe::Greet() {
  nlohmann::json greeting = Greeting();
  greeting["host"] = HostName();
  greeting["version"] = options_.version;
  TH_ASSIGN_OR_RETURN(const nlohmann::json answer, Ask(greeting, options_.answer_timeout));
  TH_RETURN_IF_ERROR(CheckGreeting(answer));
  ReadGreeting(answer, &facts_);
  token_ = PeerText(answer, "token");
  seen_as_ = PeerText(answer, "seen_as");
  return absl::OkStatus();
}

absl::Status PeerProbe::CompareClocks() {
  std::vector<ClockSample> samples;
  for (int round = 0; round < kClockRounds; ++round) {
    ClockSample sample = {.asked_us = WallClockUs()};
    TH_ASSIGN_OR_RETURN(const nlohmann::json answer,
                        Ask({{"ask", kAskTime}}, options_.answer_timeout));
    sample.heard_us = WallClockUs();
    sample.received_us = PeerNumber(answer, "received_us", INT64_MAX).value_or(-1);
    sample.answered_us = PeerNumber(answer, "sent_us", INT64_MAX).value_or(-1);
    samples.push_back(sample);
  }
  EstimateClock(samples, &facts_);
  return absl::OkStatus();
}

absl::Status PeerProbe::TryWayBack() {
  const SocketAddress here = LocalEnd(channel_->fd());
  WayBackFacts way = {.address = here.Host(), .seen_as = seen_as_};
  const absl::StatusOr<stream::Socket> listener = ListenOn(here.WithPort(options_.back_port), 1);
  if (!listener.ok()) {
    way.error = absl::StrCat("this host cannot listen there: ", listener.status().message());
    facts_.way_back = std::move(way);
    return absl::OkStatus();
  }
  way.port = LocalEnd(listener->fd()).Port();
  TH_ASSIGN_OR_RETURN(const nlohmann::json answer,
                      Ask({{"ask", kAskConnect}, {"port", way.port}}, options_.answer_timeout));
  way.connected = answer.value("connected", nlohmann::json()) == true;
  way.error = PeerText(answer, "error");
  const WaitLimit arrival = {.deadline = MonotonicNow() + kArrivalTime};
  if (way.connected && AwaitReady(listener->fd(), POLLIN, arrival) != 0) {
    way.connected = false;
    way.error = "something else answers there in this host's place";
  }
  facts_.way_back = std::move(way);
  return absl::OkStatus();
}

absl::Status PeerProbe::MeasureRate(const char* ask, std::optional<RateFacts>* rate) {
  const nlohmann::json question = {
      {"ask", ask},
      {"duration_ms", absl::ToInt64Milliseconds(options_.bulk.duration)},
      {"stall_ms", absl::ToInt64Milliseconds(options_.bulk.stall)}};
  TH_RETURN_IF_ERROR(channel_->Send(question, options_.answer_timeout));
  const bool sends = ask == std::string(kAskReceive);
  const RateFacts seen_here = MoveBulk(sends);
  // The answer shows that small packets pass, whatever becomes of large ones.
  const absl::Duration time = options_.bulk.duration + 2 * options_.bulk.stall;
  TH_ASSIGN_OR_RETURN(const nlohmann::json answer, Answer(options_.answer_timeout + time));
  const RateFacts seen_there = ReadRate(answer);
  *rate = sends && seen_here.error.empty() ? seen_there : seen_here;
  return absl::OkStatus();
}

// The connection is closed before the peer is asked for its result.
RateFacts PeerProbe::MoveBulk(bool sends) {
  stream::Socket socket = MakeTcpSocket(address_);
  const int error =
      Connect(socket.fd(), address_, {.deadline = MonotonicNow() + options_.connect_timeout});
  if (error != 0) return {.error = absl::StrCat("no second connection: ", strerror(error))};
  LineChannel channel(std::move(socket));
  nlohmann::json first = Greeting();
  first["token"] = token_;
  absl::Status sent = channel.Send(first, options_.answer_timeout);
  const absl::StatusOr<nlohmann::json> ready = channel.Receive(options_.answer_timeout);
  if (sent.ok()) sent = ready.status();
  if (!sent.ok()) return {.error = absl::StrCat("over a second connection: ", sent.message())};
  if (!ready->contains("ready")) return {.error = "the peer did not take the second connection"};
  if (!sends) return ReceiveBulk(channel.fd(), options_.bulk, /*stop_fd=*/-1);
  SendBulk(channel.fd(), options_.bulk, /*stop_fd=*/-1);
  return {};
}

absl::Status PeerProbe::AskForChecks() {
  TH_ASSIGN_OR_RETURN(const nlohmann::json answer,
                      Ask({{"ask", kAskChecks}}, options_.checks_timeout));
  facts_.findings = ReadFindings(answer);
  return absl::OkStatus();
}

}  // namespace

PeerFacts ProbePeer(const PeerTarget& target, const PeerProbeOptions& options) {
  return PeerProbe(target, options).Run();
}

}  // namespace th::doctor
