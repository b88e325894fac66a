// th bench server: what a real reference server bears, with many workers that move no weights.
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/bench/bench_commands.h"
#include "th/bench/server_bench.h"
#include "th/command_line/reporter.h"
#include "th/processes/held_signals.h"
#include "th/processes/runfiles.h"
#include "th/processes/scratch_folder.h"

namespace th {
namespace {

constexpr uint32_t kMaxRate = 1'000'000;
constexpr uint32_t kMaxSeconds = 24 * 3600;

struct ServerBenchFlags {
  ServerBenchOptions options;
  uint32_t seconds = 10;
  std::string keep;
  Reporter reporter;
};

ExitStatus RunServerBench(const ServerBenchFlags& flags) {
  const HeldSignals held;
  absl::StatusOr<ScratchFolder> folder = ScratchFolder::Make("th-bench", flags.keep);
  if (!folder.ok()) return flags.reporter.Fail(folder.status(), ExitStatus::kLocalFiles);
  ServerBenchOptions options = flags.options;
  if (options.server_program.empty()) {
    absl::StatusOr<std::string> program = FindProgram("th/server/tensorhub_server");
    if (!program.ok()) return flags.reporter.Fail(program.status(), ExitStatus::kLocalFiles);
    options.server_program = *std::move(program);
  }
  options.folder = folder->path();
  options.duration = absl::Seconds(flags.seconds);
  options.progress = [](const std::string& line) { std::cerr << line << "\n"; };
  options.cancelled = [&held] { return held.Pending(); };
  const absl::StatusOr<ServerMeasurement> measured = MeasureServer(options);
  if (measured.ok()) {
    flags.reporter.Report(ToJson(*measured), TextOf(*measured));
    return ExitStatus::kOk;
  }
  if (absl::IsCancelled(measured.status())) {
    return flags.reporter.Fail(measured.status(), ExitStatus::kInterrupted);
  }
  folder->Keep();
  fprintf(stderr, "the server's log is in %s\n", folder->path().c_str());
  return flags.reporter.Fail(measured.status(), ExitStatus::kFailed);
}

}  // namespace

void AddBenchServerCommand(CLI::App* bench, ExitStatus* exit) {
  auto flags = std::make_shared<ServerBenchFlags>();
  CLI::App* server = bench->add_subcommand(
      "server", "a reference server with many workers on this machine, which move no weights");
  server
      ->add_option("--workers", flags->options.workers,
                   "workers, each with its own connection; rounded up to whole groups, of which "
                   "there are three at least")
      ->check(CLI::Range(1u, kMaxServerBenchWorkers))
      ->capture_default_str();
  server->add_option("--ranks", flags->options.ranks, "ranks of each group")
      ->check(CLI::Range(1u, kMaxServerBenchRanks))
      ->capture_default_str();
  server->add_option("--rate", flags->options.rate, "updates a second, a rank's each counting")
      ->check(CLI::Range(1u, kMaxRate))
      ->capture_default_str();
  server->add_option("--seconds", flags->seconds, "for how long at that rate")
      ->check(CLI::Range(1u, kMaxSeconds))
      ->capture_default_str();
  server->add_flag("--receives", flags->options.receives,
                   "then have every rank look its shard up and receive it as a streaming reader");
  server
      ->add_option("--server-binary", flags->options.server_program,
                   "tensorhub_server, if it is not beside th")
      ->check(CLI::ExistingFile);
  server->add_option("--keep", flags->keep, "keep the server's state and log in this folder");
  flags->reporter.AddFlag(server);
  server->callback([flags, exit] { *exit = RunServerBench(*flags); });
}

}  // namespace th
