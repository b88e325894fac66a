#include "th/bench/transfer_bench.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

using nlohmann::json;

constexpr absl::Duration kStepTimeout = absl::Minutes(10);
constexpr char kHolder[] = "holder";

constexpr double kBytesPerMebibyte = 1 << 20;
constexpr uint64_t kFewestEvictBytes = uint64_t{64} << 20;
constexpr uint64_t kMostEvictBytes = uint64_t{512} << 20;

// From the first start to the last end among the ranks' answers.
double SpanOf(const std::vector<RankProcess*>& ranks) {
  double first = std::numeric_limits<double>::infinity(), last = 0;
  for (RankProcess* rank : ranks) {
    first = std::min(first, rank->answer()->value("started_s", 0.0));
    last = std::max(last, rank->answer()->value("ended_s", 0.0));
  }
  return last - first;
}

double ChecksumOf(const std::vector<RankProcess*>& ranks, const char* key) {
  double checksum = 0;
  for (RankProcess* rank : ranks) checksum += rank->answer()->value(key, 0.0);
  return checksum;
}

uint64_t Most(const std::vector<RankProcess*>& ranks, const char* key) {
  uint64_t most = 0;
  for (RankProcess* rank : ranks) most = std::max(most, rank->answer()->value(key, uint64_t{0}));
  return most;
}

class TransferBench {
 public:
  explicit TransferBench(const TransferBenchOptions& options) : options_(options) {}

  absl::StatusOr<TransferMeasurement> Run() {
    Say(absl::StrFormat("starting a server, a holder and %d reader(s), which make the weights",
                        options_.readers));
    TH_ASSIGN_OR_RETURN(cluster_, LocalCluster::Open(options_.cluster));
    std::vector<GroupChoice> groups = {{.name = kHolder, .load = true, .gpu = GpuOf(0)}};
    for (uint32_t i = 1; i <= options_.readers; ++i)
      groups.push_back({.name = absl::StrCat("reader-", i), .gpu = GpuOf(i)});
    TH_RETURN_IF_ERROR(cluster_->Start(groups));
    holder_ = cluster_->RanksOf(kHolder);
    measured_.bytes = holder_[0]->answer()->value("bytes", uint64_t{0});
    measured_.tensors = holder_[0]->answer()->value("tensors", uint64_t{0});
    measured_.readers = options_.readers;
    for (const GroupChoice& group : groups) {
      if (group.name != kHolder) readers_.push_back(cluster_->RanksOf(group.name).front());
    }
    all_ = cluster_->AllRanks();
    for (uint32_t round = 0; round <= options_.rounds; ++round) TH_RETURN_IF_ERROR(RunRound(round));
    return measured_;
  }

 private:
  // The first process is the holder's.
  std::optional<uint32_t> GpuOf(uint32_t process) const {
    if (options_.gpus == 0) return std::nullopt;
    if (process == 0 || options_.gpus == 1) return 0;
    return 1 + (process - 1) % (options_.gpus - 1);
  }

  absl::Status SendToRanks(const std::vector<RankProcess*>& ranks, const json& command) {
    return cluster_->poller().SendToRanks(ranks, command, kStepTimeout);
  }

  absl::Status RunRound(uint32_t number) {
    TransferRound round;
    TH_ASSIGN_OR_RETURN(const Counters before, Count());
    TH_RETURN_IF_ERROR(PublishNext(number, &round));
    const bool probe_first = number % 2 == 1;
    if (probe_first) {
      TH_RETURN_IF_ERROR(Probe(&round));
      // The probe left the very bytes that the update is to bring.
      TH_RETURN_IF_ERROR(SendToRanks(readers_, {{"do", "scribble"}}));
    }
    TH_RETURN_IF_ERROR(Update(&round));
    if (number == 0 || number == options_.rounds) TH_RETURN_IF_ERROR(Verify());
    if (!probe_first) TH_RETURN_IF_ERROR(Probe(&round));
    TH_ASSIGN_OR_RETURN(const Counters after, Count());
    round.holder_bytes_sent = after.sent - before.sent;
    for (const auto& [name, bytes] : after.control) {
      round.control_bytes = std::max(round.control_bytes, bytes - before.control.at(name));
    }
    SayRound(number, round);
    if (number > 0) measured_.rounds.push_back(round);
    return absl::OkStatus();
  }

  void Say(const std::string& line) {
    if (options_.progress) options_.progress(line);
  }

  // Round 0 warms up.
  void SayRound(uint32_t number, const TransferRound& round) {
    std::string line = number == 0 ? std::string("warm-up")
                                   : absl::StrFormat("round %d of %d", number, options_.rounds);
    absl::StrAppendFormat(&line, ": update %.3f s", round.update_seconds);
    if (round.probe_seconds > 0)
      absl::StrAppendFormat(&line, ", raw probe %.3f s", round.probe_seconds);
    Say(line);
  }

  // Other bytes every time: what an earlier round left would not pass for this one's.
  absl::Status PublishNext(uint32_t number, TransferRound* round) {
    if (number > 0) TH_RETURN_IF_ERROR(SendToRanks(holder_, {{"do", "unpublish"}}));
    TH_RETURN_IF_ERROR(SendToRanks(holder_, {{"do", "change"}, {"content", number}}));
    TH_RETURN_IF_ERROR(SendToRanks(holder_, {{"do", "publish"}, {"label", absl::StrCat(number)}}));
    round->publish_seconds = holder_[0]->answer()->value("publish_seconds", 0.0);
    return absl::OkStatus();
  }

  absl::Status EvictCaches() {
    return SendToRanks(all_, {{"do", "evict"}, {"bytes", options_.evict_bytes}});
  }

  absl::Status Update(TransferRound* round) {
    TH_RETURN_IF_ERROR(EvictCaches());
    TH_RETURN_IF_ERROR(SendToRanks(all_, {{"do", "meter-start"}}));
    TH_RETURN_IF_ERROR(SendToRanks(readers_, {{"do", "update"}, {"version", "latest"}}));
    for (RankProcess* reader : readers_) {
      if (reader->answer()->value("outcome", "") == "moved") continue;
      return absl::InternalError(
          absl::StrCat(reader->name(), " did not move: ", reader->answer()->dump()));
    }
    round->update_seconds = SpanOf(readers_);
    round->peak_extra_bytes = Most(readers_, "peak_extra_bytes");
    round->packing_overhead_bytes = Most(readers_, "packing_overhead_bytes");
    holds_ = true;
    return ReadMeters(round);
  }

  absl::Status ReadMeters(TransferRound* round) {
    TH_RETURN_IF_ERROR(SendToRanks(all_, {{"do", "meter-read"}}));
    round->holder_cpu_seconds = ChecksumOf(holder_, "cpu_seconds");
    round->readers_cpu_seconds = ChecksumOf(readers_, "cpu_seconds");
    round->rss_growth_bytes = Most(all_, "growth_bytes");
    return absl::OkStatus();
  }

  // The probe writes into the readers' buffers: they must not be offered to others meanwhile.
  absl::Status Probe(TransferRound* round) {
    if (std::exchange(holds_, false))
      TH_RETURN_IF_ERROR(SendToRanks(readers_, {{"do", "unpublish"}}));
    switch (options_.baseline) {
      case TransferBaseline::kTcp:
        TH_RETURN_IF_ERROR(ProbeTcp());
        round->probe_seconds = SpanOf(readers_);
        return SendToRanks(holder_, {{"do", "probe-end"}});
      case TransferBaseline::kSharedMemory:
        TH_RETURN_IF_ERROR(ProbeMemory());
        round->probe_seconds = SpanOf(readers_);
        return SendToRanks(holder_, {{"do", "drop-copy"}});
      case TransferBaseline::kGpuCopy:
        TH_RETURN_IF_ERROR(SendToRanks(readers_, {{"do", "copy-gpu"}, {"from", *GpuOf(0)}}));
        round->probe_seconds = SpanOf(readers_);
        return absl::OkStatus();
      case TransferBaseline::kRdma:
        return ProbeRdma(round);
    }
    return absl::InternalError("no such baseline");
  }

  // A program of others may be missing or fail: what we measure ourselves counts all the same.
  absl::Status ProbeRdma(TransferRound* round) {
    if (!measured_.baseline_missing.empty()) return absl::OkStatus();
    const absl::StatusOr<double> rate = MeasurePerftest(
        {.paths = options_.rdma_paths, .readers = options_.readers, .bytes = measured_.bytes},
        options_.interrupted);
    if (absl::IsCancelled(rate.status())) return rate.status();
    if (rate.ok()) {
      round->probe_seconds = static_cast<double>(measured_.bytes) / (*rate * 1e9);
    } else {
      measured_.baseline_missing = std::string(rate.status().message());
      if (absl::IsNotFound(rate.status())) measured_.baseline_missing += " (Debian: perftest)";
    }
    return absl::OkStatus();
  }

  absl::Status ProbeMemory() {
    TH_RETURN_IF_ERROR(SendToRanks(holder_, {{"do", "share-copy"}}));
    const std::string path = holder_[0]->answer()->value("path", "");
    TH_RETURN_IF_ERROR(EvictCaches());
    // A pull copies on as many threads as it has connections, at most those that there are.
    const uint32_t threads = std::min(options_.cluster.connections, options_.cluster.data_threads);
    return SendToRanks(readers_, {{"do", "read-copy"}, {"path", path}, {"threads", threads}});
  }

  absl::Status ProbeTcp() {
    TH_RETURN_IF_ERROR(EvictCaches());
    const uint32_t connections = options_.cluster.connections;
    TH_RETURN_IF_ERROR(SendToRanks(
        holder_,
        {{"do", "probe-send"}, {"readers", options_.readers}, {"connections", connections}}));
    const uint32_t port = holder_[0]->answer()->value("port", 0u);
    TH_RETURN_IF_ERROR(SendToRanks(
        readers_, {{"do", "probe-read"}, {"port", port}, {"connections", connections}}));
    measured_.congestion_control = readers_[0]->answer()->value("congestion_control", "");
    return absl::OkStatus();
  }

  absl::Status Verify() {
    TH_RETURN_IF_ERROR(SendToRanks(all_, {{"do", "sum"}}));
    for (RankProcess* rank : all_) {
      if (rank->answer()->value("sum", "?") == holder_[0]->answer()->value("sum", "")) continue;
      return absl::DataLossError(absl::StrCat(rank->name(), " holds other bytes than the holder"));
    }
    measured_.verified = true;
    return absl::OkStatus();
  }

  struct Counters {
    uint64_t sent = 0;                        // by the holder
    std::map<std::string, uint64_t> control;  // by rank
  };
  absl::StatusOr<Counters> Count() {
    TH_RETURN_IF_ERROR(SendToRanks(all_, {{"do", "stats"}}));
    Counters counters{.sent = holder_[0]->answer()->value("bytes_sent", uint64_t{0})};
    for (RankProcess* rank : all_) {
      counters.control[rank->name()] = rank->answer()->value("control_bytes", uint64_t{0});
    }
    return counters;
  }

  const TransferBenchOptions& options_;
  std::unique_ptr<LocalCluster> cluster_;
  std::vector<RankProcess*> holder_, readers_, all_;
  bool holds_ = false;  // the readers hold what they last updated to
  TransferMeasurement measured_;
};

double GigabytesPerSecond(uint64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

// The median's share of each of the GB that all readers together received.
double PerGigabyte(const TransferMeasurement& measurement, std::vector<double> seconds) {
  const double gigabytes =
      static_cast<double>(measurement.bytes) * static_cast<double>(measurement.readers) / 1e9;
  return gigabytes > 0 ? Median(std::move(seconds)) / gigabytes : 0;
}

std::vector<double> All(const std::vector<TransferRound>& rounds, double TransferRound::*field) {
  std::vector<double> values;
  values.reserve(rounds.size());
  for (const TransferRound& round : rounds) values.push_back(round.*field);
  return values;
}

}  // namespace

absl::StatusOr<TransferMeasurement> MeasureTransfer(const TransferBenchOptions& options) {
  return TransferBench(options).Run();
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

TransferFigures FiguresOf(const TransferMeasurement& measurement) {
  TransferFigures figures;
  figures.last_reader_seconds = Median(All(measurement.rounds, &TransferRound::update_seconds));
  figures.gbytes_per_s = GigabytesPerSecond(measurement.bytes, figures.last_reader_seconds);
  if (measurement.baseline_missing.empty()) {
    figures.baseline_gbytes_per_s = GigabytesPerSecond(
        measurement.bytes, Median(All(measurement.rounds, &TransferRound::probe_seconds)));
  }
  if (figures.baseline_gbytes_per_s > 0)
    figures.ratio = figures.gbytes_per_s / figures.baseline_gbytes_per_s;
  for (const TransferRound& round : measurement.rounds) {
    if (measurement.bytes > 0) {
      figures.holder_copies_sent =
          std::max(figures.holder_copies_sent, static_cast<double>(round.holder_bytes_sent) /
                                                   static_cast<double>(measurement.bytes));
    }
    figures.publish_seconds = std::max(figures.publish_seconds, round.publish_seconds);
    figures.peak_extra_bytes = std::max(figures.peak_extra_bytes, round.peak_extra_bytes);
    figures.packing_overhead_bytes =
        std::max(figures.packing_overhead_bytes, round.packing_overhead_bytes);
    figures.control_bytes = std::max(figures.control_bytes, round.control_bytes);
    figures.rss_growth_bytes = std::max(figures.rss_growth_bytes, round.rss_growth_bytes);
  }
  figures.holder_cpu_seconds_per_gb =
      PerGigabyte(measurement, All(measurement.rounds, &TransferRound::holder_cpu_seconds));
  figures.readers_cpu_seconds_per_gb =
      PerGigabyte(measurement, All(measurement.rounds, &TransferRound::readers_cpu_seconds));
  return figures;
}

json ToJson(const TransferMeasurement& measurement) {
  const TransferFigures figures = FiguresOf(measurement);
  json report = {
      {"bytes", measurement.bytes},
      {"tensors", measurement.tensors},
      {"rounds", measurement.rounds.size()},
      {"verified", measurement.verified},
      {"gbytes_per_s", figures.gbytes_per_s},
      {"last_reader_seconds", figures.last_reader_seconds},
      {"last_reader_seconds_of_rounds", All(measurement.rounds, &TransferRound::update_seconds)},
      {"holder_copies_sent", figures.holder_copies_sent},
      {"peak_extra_bytes", figures.peak_extra_bytes},
      {"packing_overhead_bytes", figures.packing_overhead_bytes},
      {"control_bytes", figures.control_bytes},
      {"rss_growth_mib", static_cast<double>(figures.rss_growth_bytes) / kBytesPerMebibyte},
      {"cpu_seconds_per_gb",
       figures.holder_cpu_seconds_per_gb + figures.readers_cpu_seconds_per_gb},
      {"holder_cpu_seconds_per_gb", figures.holder_cpu_seconds_per_gb},
      {"readers_cpu_seconds_per_gb", figures.readers_cpu_seconds_per_gb},
      {"publish_seconds", figures.publish_seconds},
      {"baseline", figures.baseline_gbytes_per_s},
      {"baseline_seconds_of_rounds", All(measurement.rounds, &TransferRound::probe_seconds)},
      {"baseline_congestion_control", measurement.congestion_control},
      {"ratio", figures.ratio}};
  if (!measurement.baseline_missing.empty()) {
    report["baseline"] = report["ratio"] = nullptr;
    report["baseline_seconds_of_rounds"] = json::array();
    report["baseline_missing"] = measurement.baseline_missing;
  }
  return report;
}

uint64_t DefaultEvictBytes() {
  const int64_t cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return std::clamp<uint64_t>(cache > 0 ? static_cast<uint64_t>(cache) * 2 : 0, kFewestEvictBytes,
                              kMostEvictBytes);
}

}  // namespace th
