// th bench registry: what each operation of the reference server's state costs, by itself.
#include <iostream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "th/bench/bench_commands.h"
#include "th/bench/registry_bench.h"
#include "th/command_line/reporter.h"
#include "th/processes/held_signals.h"

namespace th {
namespace {

struct RegistryBenchFlags {
  RegistryBenchOptions options;
  Reporter reporter;
};

ExitStatus RunRegistryBench(const RegistryBenchFlags& flags) {
  const HeldSignals held;
  RegistryBenchOptions options = flags.options;
  options.progress = [](const std::string& line) { std::cerr << line << "\n"; };
  options.cancelled = [&held] { return held.Pending(); };
  const absl::StatusOr<RegistryMeasurement> measured = MeasureRegistry(options);
  if (!measured.ok()) {
    return flags.reporter.Fail(measured.status(), absl::IsCancelled(measured.status())
                                                      ? ExitStatus::kInterrupted
                                                      : ExitStatus::kFailed);
  }
  flags.reporter.Report(ToJson(*measured), TextOf(*measured));
  return ExitStatus::kOk;
}

}  // namespace

void AddBenchRegistryCommand(CLI::App* bench, ExitStatus* exit) {
  auto flags = std::make_shared<RegistryBenchFlags>();
  CLI::App* registry = bench->add_subcommand(
      "registry", "every operation of the reference server's state by itself, without network");
  registry
      ->add_option("--workers", flags->options.workers,
                   "workers, rounded up to whole groups, of which there are two at least")
      ->check(CLI::Range(1u, kMaxRegistryBenchWorkers))
      ->capture_default_str();
  registry->add_option("--ranks", flags->options.ranks, "ranks of each group")
      ->check(CLI::Range(2u, kMaxRegistryBenchRanks))
      ->capture_default_str();
  registry
      ->add_option("--samples", flags->options.samples,
                   "calls of each operation at least; fewer of those that end a group's")
      ->check(CLI::Range(uint64_t{1}, kMaxRegistryBenchSamples))
      ->capture_default_str();
  flags->reporter.AddFlag(registry);
  registry->callback([flags, exit] { *exit = RunRegistryBench(*flags); });
}

}  // namespace th
