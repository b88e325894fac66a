// th bench: measurements with their yardstick beside them.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "th/cli/bench_flags.h"
#include "th/cli/command.h"
#include "th/cli/held_signals.h"
#include "th/cli/iperf.h"
#include "th/cli/rank_weights.h"
#include "th/cli/scratch_folder.h"
#include "th/cli/transfer_bench.h"
#include "th/weights/status_macros.h"
#include "th/worker/connection_flags.h"
#include "th/worker/quantity.h"

namespace th {
namespace {

constexpr char kSameHost[] = "same_host";
constexpr char kSameHostOnCommandLine[] = "same-host";  // its other spelling

struct BenchFlags : ProcessFlags {
  std::string transport = "tcp";
  bool checksums = true;
  std::string synthetic = "llm";
  uint64_t bytes = uint64_t{1} << 30;
  uint64_t tensors = 0;
  uint32_t readers = 1;
  uint32_t rounds = 5;
};

void AddFlags(CLI::App* app, BenchFlags* flags) {
  app->add_option_function<std::string>(
         "--transport",
         [flags](const std::string& text) {
           flags->transport = text == kSameHostOnCommandLine ? kSameHost : text;
         },
         "how the bytes move: tcp, beside raw TCP, or same_host (same-host; out of the holder's "
         "memory), beside memcpy from shared memory")
      ->check(CLI::IsMember({"tcp", kSameHost, kSameHostOnCommandLine}))
      ->default_str(flags->transport);
  app->add_option_function<std::string>(
         "--checksum", [flags](const std::string& text) { flags->checksums = text == "on"; },
         "on: bytes are summed and checked; off: they are not")
      ->check(CLI::IsMember({"on", "off"}))
      ->default_str("on");
  AddByteSizeFlag(app, "--bytes", &flags->bytes, "size of the version", "1GiB");
  app->add_option("--readers", flags->readers, "readers that update at once, each in its process")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--synthetic", flags->synthetic, "the shape of the model")
      ->check(CLI::IsMember({"llm", "moe"}))
      ->capture_default_str();
  app->add_option("--tensors", flags->tensors,
                  "so many equal tensors instead, each allocated by itself")
      ->check(CLI::Range(1, 1'000'000));
  app->add_option("--rounds", flags->rounds, "measured rounds, after one that warms up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  AddProcessFlags(app, flags);
  app->get_option("--connections")->description("connections to each source, of the raw probe too");
}

absl::StatusOr<TransferBenchOptions> PlanBench(const BenchFlags& flags, const std::string& folder) {
  TransferBenchOptions options{
      .readers = flags.readers, .rounds = flags.rounds, .evict_bytes = DefaultEvictBytes()};
  const ModelChoice model{
      .synthetic = flags.synthetic, .bytes = flags.bytes, .tensors = flags.tensors};
  TH_RETURN_IF_ERROR(ShardsOf(model, /*shards=*/1).status());
  TH_ASSIGN_OR_RETURN(options.cast, CastOf(flags, folder));
  options.cast.model = model;
  options.cast.transports = {flags.transport};
  options.cast.checksums = flags.checksums;
  return options;
}

std::string ProbeText(const BenchFlags& flags, const TransferMeasurement& measured) {
  if (flags.transport != kSameHost) {
    return absl::StrFormat("blocking send and recv, %d connections, %s", flags.connections,
                           measured.congestion_control);
  }
  return absl::StrFormat("memcpy from shared memory, %d threads",
                         std::min(flags.connections, flags.data_threads));
}

// iperf3 beside a transfer that crosses no network would say nothing.
absl::StatusOr<double> IperfBeside(const BenchFlags& flags, uint64_t bytes,
                                   const HeldSignals& held) {
  if (flags.transport == kSameHost) return absl::NotFoundError("nothing crosses TCP");
  return MeasureIperf(bytes, flags.connections, [&held] { return held.Pending(); });
}

std::string TextOf(const BenchFlags& flags, const TransferMeasurement& measured,
                   const std::string& iperf) {
  const TransferFigures figures = FiguresOf(measured);
  return absl::StrFormat(
      "%s in %d tensors to %d reader(s) over %s, checksums %s, median of %d rounds\n"
      "update      %.3f GB/s, the last reader after %.3f s\n"
      "raw probe   %.3f GB/s (%s), ratio %.2f\n"
      "iperf3      %s\n"
      "processor   %.3f s a GB received: the holder %.3f, the readers %.3f\n"
      "copies sent by the holder %.2f, extra memory %s (resident %s), control bytes a rank and "
      "round %d, Publish kept its caller %.3f ms\n",
      FormatBytes(measured.bytes), measured.tensors, flags.readers, flags.transport,
      flags.checksums ? "on" : "off", measured.rounds.size(), figures.gbytes_per_s,
      figures.last_reader_seconds, figures.baseline_gbytes_per_s, ProbeText(flags, measured),
      figures.ratio, iperf, figures.holder_cpu_seconds_per_gb + figures.readers_cpu_seconds_per_gb,
      figures.holder_cpu_seconds_per_gb, figures.readers_cpu_seconds_per_gb,
      figures.holder_copies_sent, FormatBytes(figures.peak_extra_bytes),
      FormatBytes(figures.rss_growth_bytes), figures.control_bytes, figures.publish_seconds * 1e3);
}

ExitStatus RunBench(const BenchFlags& flags) {
  const HeldSignals held;
  absl::StatusOr<ScratchFolder> folder = ScratchFolder::Make("th-bench", flags.keep);
  if (!folder.ok()) return flags.reporter.Fail(folder.status(), ExitStatus::kLocalFiles);
  const absl::StatusOr<TransferBenchOptions> options = PlanBench(flags, folder->path());
  if (!options.ok()) {
    return flags.reporter.Fail(options.status(), absl::IsInvalidArgument(options.status())
                                                     ? ExitStatus::kUsage
                                                     : ExitStatus::kLocalFiles);
  }
  const absl::StatusOr<TransferMeasurement> measured = MeasureTransfer(*options);
  if (!measured.ok()) return FailMeasuring(flags, *folder, measured.status());
  const absl::StatusOr<double> iperf = IperfBeside(flags, measured->bytes, held);
  if (held.Pending()) {
    return flags.reporter.Fail(absl::CancelledError("interrupted"), ExitStatus::kInterrupted);
  }
  nlohmann::json report = ToJson(*measured);
  report["transport"] = flags.transport;
  report["checksum"] = flags.checksums ? "on" : "off";
  report["readers"] = flags.readers;
  report["connections"] = flags.connections;
  report["iperf3"] = nullptr;
  if (iperf.ok()) {
    report["iperf3"] = *iperf;
  } else {
    report["iperf3_missing"] = std::string(iperf.status().message());
  }
  flags.reporter.Report(report,
                        TextOf(flags, *measured,
                               iperf.ok() ? absl::StrFormat("%.3f GB/s (bytes thrown away)", *iperf)
                                          : absl::StrCat("none: ", iperf.status().message())));
  return measured->verified ? ExitStatus::kOk : ExitStatus::kFailed;
}

}  // namespace

void AddBenchCommand(CLI::App* app, ExitStatus* exit) {
  CLI::App* bench = app->add_subcommand("bench", "measure, with a yardstick beside each figure");
  bench->require_subcommand(1);
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* transfer = bench->add_subcommand(
      "transfer",
      "a version from one holder to some readers, beside what this machine can do at most");
  AddFlags(transfer, flags.get());
  transfer->callback([flags, exit] { *exit = RunBench(*flags); });
  AddBenchServerCommand(bench, exit);
  AddBenchRegistryCommand(bench, exit);
  AddBenchFanoutCommand(bench, exit);
  AddBenchScenarioCommand(bench, exit);
  AddBenchModelCommand(bench, exit);
}

}  // namespace th
