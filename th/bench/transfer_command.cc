// th bench transfer: the speed of an update, with its yardstick beside it.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "th/bench/bench_commands.h"
#include "th/bench/bench_flags.h"
#include "th/bench/iperf.h"
#include "th/bench/memory_need.h"
#include "th/bench/perftest.h"
#include "th/bench/transfer_bench.h"
#include "th/client_flags/connection_flags.h"
#include "th/client_flags/flag_checks.h"
#include "th/command_line/quantity.h"
#include "th/command_line/reporter.h"
#include "th/controlled_rank/device_weights.h"
#include "th/controlled_rank/rank_weights.h"
#include "th/doctor/doctor.h"
#include "th/processes/held_signals.h"
#include "th/processes/scratch_folder.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

constexpr char kTcp[] = "tcp", kSameHost[] = "same_host", kRdma[] = "ibverbs", kCuda[] = "cuda_ipc";

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
  app->add_option(
         "--transport", flags->transport,
         "how the bytes move: tcp, beside raw TCP; same-host (same_host; out of the holder's "
         "memory), beside memcpy from shared memory; rdma (ibverbs; between two processes over "
         "this machine's devices), beside ib_read_bw; cuda (cuda_ipc; from GPU 0 to the other "
         "GPUs in turn, or within the only one), beside the driver's copy")
      ->transform(IsTransport())
      ->capture_default_str();
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

// Why this machine cannot, and what `th doctor` says of it.
absl::Status CannotMeasure(absl::string_view transport, absl::string_view check,
                           const absl::Status& why) {
  std::string text = absl::StrCat("--transport ", transport, ": ", why.message());
  for (const doctor::Finding& finding : doctor::Examine({})) {
    if (finding.check != check) continue;
    absl::StrAppend(&text, "; th doctor says of ", finding.check, ": ", finding.found, "; ",
                    finding.means);
    if (!finding.advice.empty()) absl::StrAppend(&text, "; to do: ", finding.advice);
  }
  return absl::FailedPreconditionError(text);
}

// Adds what only one of the transports needs: its devices, and what is measured beside it.
absl::Status PlanTransport(const BenchFlags& flags, TransferBenchOptions* options) {
  if (flags.transport == kSameHost) {
    options->baseline = TransferBaseline::kSharedMemory;
  } else if (flags.transport == kCuda) {
    options->baseline = TransferBaseline::kGpuCopy;
    const auto gpus = LoadGpus();
    if (!gpus.ok()) return CannotMeasure("cuda", "gpus", gpus.status());
    options->gpus = static_cast<uint32_t>((*gpus)->devices().all().size());
  } else if (flags.transport == kRdma) {
    options->baseline = TransferBaseline::kRdma;
    auto paths = PathsOfAPull(flags.connections);
    if (!paths.ok()) return CannotMeasure("rdma", "rdma-devices", paths.status());
    options->rdma_paths = *std::move(paths);
  }
  return absl::OkStatus();
}

absl::StatusOr<TransferBenchOptions> PlanBench(const BenchFlags& flags, const std::string& folder) {
  TransferBenchOptions options{
      .readers = flags.readers, .rounds = flags.rounds, .evict_bytes = DefaultEvictBytes()};
  const ModelChoice model{
      .synthetic = flags.synthetic, .bytes = flags.bytes, .tensors = flags.tensors};
  TH_RETURN_IF_ERROR(ShardsOf(model, /*shards=*/1).status());
  if (flags.transport != kCuda) {  // whose weights are in GPU memory
    // The yardstick of same_host has a copy of its own.
    const uint64_t copies = uint64_t{1} + flags.readers + (flags.transport == kSameHost ? 1 : 0);
    TH_RETURN_IF_ERROR(
        CheckMemory({.version_bytes = flags.bytes, .copies = copies}, AvailableMemory()));
  }
  TH_ASSIGN_OR_RETURN(options.cluster, ClusterOf(flags, folder));
  options.cluster.model = model;
  options.cluster.transports = {flags.transport};
  options.cluster.checksums = flags.checksums;
  TH_RETURN_IF_ERROR(PlanTransport(flags, &options));
  return options;
}

std::string ProbeText(const BenchFlags& flags, const TransferMeasurement& measured) {
  if (flags.transport == kTcp) {
    return absl::StrFormat("blocking send and recv, %d connections, %s", flags.connections,
                           measured.congestion_control);
  }
  if (flags.transport == kRdma) {
    return absl::StrFormat("ib_read_bw, %d queue pairs", flags.connections);
  }
  if (flags.transport == kCuda) return "the driver's copy";
  return absl::StrFormat("memcpy from shared memory, %d threads",
                         std::min(flags.connections, flags.data_threads));
}

std::string BaselineText(const BenchFlags& flags, const TransferMeasurement& measured,
                         const TransferFigures& figures) {
  if (!measured.baseline_missing.empty()) return absl::StrCat("none: ", measured.baseline_missing);
  return absl::StrFormat("%.3f GB/s (%s), ratio %.2f", figures.baseline_gbytes_per_s,
                         ProbeText(flags, measured), figures.ratio);
}

// iperf3 beside a transfer that crosses no network would say nothing.
absl::StatusOr<double> IperfBeside(const BenchFlags& flags, uint64_t bytes,
                                   const HeldSignals& held) {
  if (flags.transport != kTcp) return absl::NotFoundError("nothing crosses TCP");
  return MeasureIperf(bytes, flags.connections, [&held] { return held.Pending(); });
}

std::string TextOf(const BenchFlags& flags, const TransferMeasurement& measured,
                   const std::string& iperf) {
  const TransferFigures figures = FiguresOf(measured);
  return absl::StrFormat(
      "%s in %d tensors to %d reader(s) over %s, checksums %s, median of %d rounds\n"
      "update      %.3f GB/s, the last reader after %.3f s\n"
      "raw probe   %s\n"
      "iperf3      %s\n"
      "processor   %.3f s a GB received: the holder %.3f, the readers %.3f\n"
      "copies sent by the holder %.2f, extra memory %s (resident %s), control bytes a rank and "
      "round %d, Publish kept its caller %.3f ms\n",
      FormatBytes(measured.bytes), measured.tensors, flags.readers, flags.transport,
      flags.checksums ? "on" : "off", measured.rounds.size(), figures.gbytes_per_s,
      figures.last_reader_seconds, BaselineText(flags, measured, figures), iperf,
      figures.holder_cpu_seconds_per_gb + figures.readers_cpu_seconds_per_gb,
      figures.holder_cpu_seconds_per_gb, figures.readers_cpu_seconds_per_gb,
      figures.holder_copies_sent, FormatBytes(figures.peak_extra_bytes),
      FormatBytes(figures.rss_growth_bytes), figures.control_bytes, figures.publish_seconds * 1e3);
}

ExitStatus StatusOfPlan(const absl::Status& why) {
  if (absl::IsInvalidArgument(why)) return ExitStatus::kUsage;
  // The machine lacks what the transport needs.
  if (absl::IsFailedPrecondition(why)) return ExitStatus::kFailed;
  return ExitStatus::kLocalFiles;
}

ExitStatus RunBench(const BenchFlags& flags) {
  const HeldSignals held;
  absl::StatusOr<ScratchFolder> folder = ScratchFolder::Make("th-bench", flags.keep);
  if (!folder.ok()) return flags.reporter.Fail(folder.status(), ExitStatus::kLocalFiles);
  absl::StatusOr<TransferBenchOptions> options = PlanBench(flags, folder->path());
  if (!options.ok()) return flags.reporter.Fail(options.status(), StatusOfPlan(options.status()));
  options->interrupted = [&held] { return held.Pending(); };
  options->progress = [](const std::string& line) { fprintf(stderr, "%s\n", line.c_str()); };
  const absl::StatusOr<TransferMeasurement> measured = MeasureTransfer(*options);
  if (!measured.ok()) return FailMeasuring(flags, *folder, measured.status());
  if (flags.transport == kTcp) options->progress("iperf3 over the same connections");
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

void AddBenchTransferCommand(CLI::App* bench, ExitStatus* exit) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* transfer = bench->add_subcommand(
      "transfer",
      "a version from one holder to some readers, beside what this machine can do at most");
  AddFlags(transfer, flags.get());
  transfer->callback([flags, exit] { *exit = RunBench(*flags); });
}

}  // namespace th
