// th doctor: what of this host helps or hinders TensorHub.
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/cli/commands.h"
#include "th/client_flags/connection_flags.h"
#include "th/command_line/reporter.h"
#include "th/doctor/doctor.h"

namespace th {
namespace {

struct DoctorFlags {
  std::string to;
  absl::Duration connect_timeout = absl::Seconds(3);
  Reporter reporter;
};

ExitStatus RunDoctor(const DoctorFlags& flags) {
  const StopSignals stop = flags.reporter.TakeSignals();
  doctor::ExamineOptions options = {.connect_timeout = flags.connect_timeout};
  if (!flags.to.empty()) {
    const absl::StatusOr<doctor::HostAndPort> to = doctor::ParseHostAndPort(flags.to);
    if (!to.ok()) return flags.reporter.Fail(to.status(), ExitStatus::kUsage);
    options.to = *to;
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
  doctor->add_option("--to", flags->to,
                     "HOST:PORT of a server or source that this host should reach: the way to it "
                     "is examined too");
  AddDurationFlag(doctor, "--connect-timeout", &flags->connect_timeout, kTimeouts,
                  "the time, like 3s, for a connection to each of its addresses");
  flags->reporter.AddFlag(doctor);
  doctor->callback([flags, exit] { *exit = RunDoctor(*flags); });
}

}  // namespace th
