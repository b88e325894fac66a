// th doctor: what of this host, and of a pair of hosts, helps or hinders TensorHub.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/cli/commands.h"
#include "th/client/controller.h"
#include "th/client/server_list.h"
#include "th/client_flags/connection_flags.h"
#include "th/client_flags/flag_checks.h"
#include "th/command_line/reporter.h"
#include "th/command_line/stop_signals.h"
#include "th/doctor/doctor.h"
#include "th/status/status_macros.h"
#include "th/version/version.h"

namespace th {
namespace {

struct DoctorFlags {
  std::string to;
  std::string server;
  std::string peer;
  std::string listen;
  uint16_t back_port = 0;
  absl::Duration connect_timeout = absl::Seconds(3);
  Reporter reporter;
};

void PrintPeer(const DoctorFlags& flags, const doctor::AnsweredPeer& peer) {
  const std::string who =
      peer.host.empty() ? peer.address : absl::StrCat(peer.host, " (", peer.address, ")");
  const std::string text = peer.error.empty()
                               ? absl::StrCat("answered ", who, ", TensorHub ", peer.version)
                               : absl::StrCat("not answered to its end: ", who, ": ", peer.error);
  flags.reporter.Report({{"address", peer.address},
                         {"host", peer.host},
                         {"version", peer.version},
                         {"error", peer.error}},
                        text);
}

// Answers until a signal comes, which is its ordinary end.
ExitStatus RunListener(const DoctorFlags& flags) {
  StopSignals stop = flags.reporter.TakeSignals();
  doctor::ListenOptions options = {
      .version = BuildVersion(),
      .on_peer = [&flags](const doctor::AnsweredPeer& peer) { PrintPeer(flags, peer); }};
  const absl::StatusOr<doctor::HostAndPort> at = doctor::ParseListenAddress(flags.listen);
  if (!at.ok()) return flags.reporter.Fail(at.status(), ExitStatus::kUsage);
  options.at = *at;
  stop.HoldOff();
  const auto answers = doctor::ListenForPeers(options);
  if (!answers.ok()) return flags.reporter.Fail(answers.status(), ExitStatus::kFailed);
  const std::string address = (*answers)->address();
  flags.reporter.Report({{"listening", address}}, absl::StrCat("listening on ", address));
  stop.Wait();
  return ExitStatus::kOk;
}

// No number of an event: the answer has none.
constexpr uint64_t kAfterAllEvents = UINT64_MAX;

doctor::ServerFacts AskServer(const DoctorFlags& flags) {
  const auto epoch = [&]() -> absl::StatusOr<Epoch> {
    TH_ASSIGN_OR_RETURN(
        const auto server,
        Controller::Connect({.server = flags.server, .connect_timeout = flags.connect_timeout}));
    TH_ASSIGN_OR_RETURN(const RecentEvents answer,
                        server->Events(kAfterAllEvents, /*id=*/{}, flags.connect_timeout));
    return answer.epoch;
  }();
  if (!epoch.ok()) return {.server = flags.server, .error = std::string(epoch.status().message())};
  return {.server = flags.server, .epoch = epoch->value};
}

// The address whose route is examined: the first of the server's where it has several; "": none is
// named, or it cannot be found out, which AskServer says.
std::string TargetOf(const DoctorFlags& flags) {
  if (flags.server.empty()) return flags.peer.empty() ? flags.to : flags.peer;
  const absl::StatusOr<ServerList> servers = ServerList::Parse(flags.server);
  return servers.ok() ? servers->first() : "";
}

// The server that other commands would call: TH_SERVER's, or the configuration file's, from which
// it is set. "": neither names one, and the host is examined by itself.
std::string ConfiguredServer() {
  const char* const server = std::getenv("TH_SERVER");
  return server == nullptr ? "" : server;
}

ExitStatus RunDoctor(const DoctorFlags& flags) {
  const StopSignals stop = flags.reporter.TakeSignals();
  doctor::ExamineOptions options = {.connect_timeout = flags.connect_timeout};
  if (const std::string target = TargetOf(flags); !target.empty()) {
    const absl::StatusOr<doctor::HostAndPort> to = doctor::ParseHostAndPort(target);
    if (!to.ok()) return flags.reporter.Fail(to.status(), ExitStatus::kUsage);
    options.to = *to;
  }
  if (!flags.server.empty()) options.server = AskServer(flags);
  if (!flags.peer.empty()) {
    options.peer = {.version = BuildVersion(),
                    .connect_timeout = flags.connect_timeout,
                    .back_port = flags.back_port};
  }
  const std::vector<doctor::Finding> findings = doctor::Examine(options);
  flags.reporter.Report(doctor::FindingsAsJson(findings), doctor::FindingsAsText(findings));
  const bool well = doctor::CountOf(findings, doctor::Verdict::kProblem) == 0;
  return well ? ExitStatus::kOk : ExitStatus::kFailed;
}

}  // namespace

void AddDoctorCommand(CLI::App* app, ExitStatus* exit) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* doctor = app->add_subcommand(
      "doctor",
      "what of this host helps or hinders TensorHub: RDMA, GPUs, limits, TCP, clock; and what to "
      "do. Exit status 1 if it finds a problem");
  CLI::Option* to = doctor->add_option(
      "--to", flags->to,
      "HOST:PORT that this host should reach, whatever listens there: the way to it is examined "
      "too");
  CLI::Option* server =
      doctor
          ->add_option("--server", flags->server,
                       "the reference server, as for other commands (HOST:PORT, several with "
                       "commas, file:PATH): the way to it is examined too, and whether it answers "
                       "this release (default: as `th config` shows it, if it is set there)")
          ->check(IsServerList())
          ->excludes(to);
  CLI::Option* peer =
      doctor
          ->add_option("--peer", flags->peer,
                       "HOST:PORT of a th doctor --listen on another host: the pair is examined "
                       "too, both directions, clocks, versions, and what that host finds of itself")
          ->excludes(to)
          ->excludes(server);
  doctor
      ->add_option("--back-port", flags->back_port,
                   "the port of this host to which the peer is asked to connect (default: one that "
                   "the system chooses)")
      ->check(CLI::Range(1, UINT16_MAX))
      ->needs(peer);
  doctor
      ->add_option("--listen", flags->listen,
                   "[HOST]:PORT on which to answer th doctor --peer of other hosts, one at a time, "
                   "until a signal comes; port 0 is the system's choice")
      ->excludes(to)
      ->excludes(server)
      ->excludes(peer);
  AddDurationFlag(doctor, "--connect-timeout", &flags->connect_timeout, kTimeouts,
                  "the time, like 3s, for a connection to each of its addresses");
  flags->reporter.AddFlag(doctor);
  doctor->callback([flags, exit] {
    if (!flags->listen.empty()) {
      *exit = RunListener(*flags);
      return;
    }
    if (flags->to.empty() && flags->server.empty() && flags->peer.empty()) {
      flags->server = ConfiguredServer();
    }
    *exit = RunDoctor(*flags);
  });
}

}  // namespace th
