#include "th/bench/perftest.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "th/processes/child_process.h"
#include "th/processes/search_path.h"
#include "th/processes/tool_process.h"
#include "th/status/status_macros.h"
#include "th/transfer/ibverbs/handshake.h"
#include "th/transfer/ibverbs/rdma_device.h"
#include "th/transfer/ibverbs/verbs_library.h"

namespace th {
namespace {

constexpr char kProgram[] = "ib_read_bw";
constexpr char kLoopback[] = "127.0.0.1";
constexpr uint64_t kMessageBytes = uint64_t{1} << 20;
constexpr double kBytesPerMebibyte = 1 << 20;
// ib_read_bw takes no fewer READs.
constexpr uint64_t kFewestReads = 5;
// A deeper queue and the tool's own timeout (67 ms) ask a busy peer again for what it is sending.
constexpr char kDepth[] = "4", kTimeout[] = "16";
// The columns of its report: bytes, READs, the peak and the average rate in MiB/s.
constexpr size_t kBytesColumn = 0, kRateColumn = 3;
// It measures the processor's clock first, and gives up where a busy machine makes that uneven.
constexpr int kAttempts = 5;
constexpr absl::Duration kListenTimeout = absl::Seconds(20);
constexpr absl::Duration kRunTimeout = absl::Minutes(2);
constexpr absl::Duration kEndTimeout = absl::Seconds(5);

RdmaPort PortOf(const ibverbs::RdmaDevice& device) {
  return {.device = device.name(), .port = device.port(), .gid_index = device.gid().index};
}

struct Pair {
  std::unique_ptr<ChildProcess> server, client;
  uint16_t tcp_port = 0;
};

absl::StatusOr<std::unique_ptr<ChildProcess>> Start(std::vector<std::string> arguments) {
  return ChildProcess::Start(
      {.name = kProgram, .arguments = std::move(arguments), .log_path = "/dev/null"});
}

// All pairs at once: the servers first, then the clients. GB/s of the slowest reader.
absl::StatusOr<double> MeasureOnce(const std::string& program, const PerftestOptions& options,
                                   const std::function<bool()>& stopped) {
  std::vector<std::vector<Pair>> readers(options.readers);
  std::vector<PerftestArguments> arguments;
  const uint64_t share = options.bytes / options.paths.size();
  for (std::vector<Pair>& pairs : readers) {
    for (const RdmaPath& path : options.paths) {
      TH_ASSIGN_OR_RETURN(const uint16_t port, UnusedPort(kProgram));
      arguments.push_back(ArgumentsOfPerftest(program, path, share, port));
      TH_ASSIGN_OR_RETURN(auto server, Start(arguments.back().server));
      // Before the next port is looked for: this one is taken then.
      TH_RETURN_IF_ERROR(AwaitListening(*server, port, kListenTimeout, stopped));
      pairs.push_back({.server = std::move(server), .client = nullptr, .tcp_port = port});
    }
  }
  auto next = arguments.begin();
  for (std::vector<Pair>& pairs : readers) {
    for (Pair& pair : pairs) {
      TH_ASSIGN_OR_RETURN(pair.client, Start((next++)->client));
    }
  }
  std::optional<double> slowest;
  for (const std::vector<Pair>& pairs : readers) {
    double rate = 0;
    for (const Pair& pair : pairs) {
      TH_ASSIGN_OR_RETURN(const std::vector<std::string> lines,
                          ReadToEnd(*pair.client, kRunTimeout, stopped));
      TH_ASSIGN_OR_RETURN(const double part,
                          GigabytesPerSecondOfPerftest(absl::StrJoin(lines, "\n")));
      TH_RETURN_IF_ERROR(pair.server->AwaitEnd(kEndTimeout));
      rate += part;
    }
    slowest = std::min(slowest.value_or(rate), rate);
  }
  return slowest.value_or(0);
}

}  // namespace

absl::StatusOr<std::vector<RdmaPath>> PathsOfAPull(uint32_t connections) {
  const ibverbs::RdmaSubsystem seen = ibverbs::LookAtRdmaSubsystem();
  if (!seen.device_in_kernel) return absl::UnavailableError(ibverbs::WhyNoDevice(seen));
  TH_ASSIGN_OR_RETURN(auto verbs, ibverbs::VerbsLibrary::Load());
  TH_ASSIGN_OR_RETURN(const ibverbs::RdmaDevices devices, ibverbs::OpenRdmaDevices(verbs, {}));
  std::vector<std::shared_ptr<const ibverbs::RdmaDevice>> active;
  std::vector<ibverbs::OfferedDevice> shown;
  for (const auto& device : devices.usable) {
    if (!device->IsPortActive()) continue;
    active.push_back(device);
    shown.push_back({.link = device->link(), .gid = device->gid().gid});
  }
  if (active.empty()) {
    return absl::UnavailableError(
        "no port of an RDMA device is active: look at the cable, the network interface, and on "
        "InfiniBand at the subnet manager");
  }
  std::vector<RdmaPath> paths;
  for (uint32_t number = 0; number < connections; ++number) {
    TH_ASSIGN_OR_RETURN(const ibverbs::DeviceChoice choice,
                        ibverbs::ChooseDevices(shown, shown, number));
    RdmaPath path = {.source = PortOf(*active[choice.offered]),
                     .reader = PortOf(*active[choice.own]),
                     .connections = 1};
    const auto same = std::find_if(paths.begin(), paths.end(), [&path](const RdmaPath& each) {
      return each.source == path.source && each.reader == path.reader;
    });
    if (same == paths.end()) {
      paths.push_back(std::move(path));
    } else {
      ++same->connections;
    }
  }
  return paths;
}

PerftestArguments ArgumentsOfPerftest(const std::string& program, const RdmaPath& path,
                                      uint64_t bytes, uint16_t tcp_port) {
  const uint64_t reads = std::max(kFewestReads, bytes / kMessageBytes / path.connections);
  const auto end = [&](const RdmaPort& port) {
    return std::vector<std::string>{program,
                                    "--size",
                                    absl::StrCat(kMessageBytes),
                                    "--iters",
                                    absl::StrCat(reads),
                                    "--qp",
                                    absl::StrCat(path.connections),
                                    "--tx-depth",
                                    kDepth,
                                    "--qp-timeout",
                                    kTimeout,
                                    "--port",
                                    absl::StrCat(tcp_port),
                                    "--ib-dev",
                                    port.device,
                                    "--ib-port",
                                    absl::StrCat(port.port),
                                    "--gid-index",
                                    absl::StrCat(port.gid_index)};
  };
  PerftestArguments arguments{.server = end(path.source), .client = end(path.reader)};
  arguments.client.emplace_back(kLoopback);
  return arguments;
}

absl::StatusOr<double> GigabytesPerSecondOfPerftest(absl::string_view text) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> columns =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (columns.size() <= kRateColumn || columns[kBytesColumn] != absl::StrCat(kMessageBytes)) {
      continue;
    }
    double mebibytes = 0;
    if (absl::SimpleAtod(columns[kRateColumn], &mebibytes) && mebibytes > 0) {
      return mebibytes * kBytesPerMebibyte / 1e9;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(kProgram, " did not say how fast it was"));
}

absl::StatusOr<double> MeasurePerftest(const PerftestOptions& options,
                                       const std::function<bool()>& stopped) {
  if (options.paths.empty() || options.readers == 0) {
    return absl::InvalidArgumentError("no path or no reader for ib_read_bw");
  }
  TH_ASSIGN_OR_RETURN(const std::string program, FindTool(kProgram));
  absl::Status failed;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const absl::StatusOr<double> rate = MeasureOnce(program, options, stopped);
    if (rate.ok() || absl::IsCancelled(rate.status())) return rate;
    failed = rate.status();
  }
  return absl::UnavailableError(
      absl::StrCat(kProgram, " has failed ", kAttempts, " times in a row: ", failed.message()));
}

}  // namespace th
