#include "th/cli/simulate_soak.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "th/command_line/json_lines.h"
#include "th/processes/child_process.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

// Between two looks at the processes.
constexpr absl::Duration kLookEvery = absl::Milliseconds(50);
constexpr absl::Duration kReportEvery = absl::Seconds(10);
// The most failures that are kept for the report; the others are counted.
constexpr size_t kMaxFailuresKept = 100;

double PerSecond(uint64_t count, absl::Duration took) {
  const double seconds = absl::ToDoubleSeconds(took);
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

// One process with the seeds from `first` on.
struct Batch {
  uint64_t first = 0;
  std::unique_ptr<ChildProcess> process;
  nlohmann::json report;  // null until its line has come
};

class Soaking {
 public:
  explicit Soaking(const SoakOptions& options)
      : options_(options), began_(MonotonicNow()), reported_at_(began_) {
    result_.first_seed = result_.next_seed = options.first_seed;
  }

  absl::StatusOr<SoakResult> Run() {
    std::vector<Batch> batches(options_.processes);
    for (;;) {
      const bool time_is_over =
          started_ >= options_.processes && MonotonicNow() - began_ >= options_.duration;
      bool running = false;
      for (Batch& batch : batches) {
        if (batch.process == nullptr && !time_is_over) TH_RETURN_IF_ERROR(Start(&batch));
        if (batch.process != nullptr) Look(&batch);
        running |= batch.process != nullptr;
      }
      if (!running && time_is_over) break;
      ReportRate();
      if (!options_.stopped(kLookEvery)) continue;
      result_.interrupted = true;
      break;
    }
    result_.took = MonotonicNow() - began_;
    return std::move(result_);
  }

 private:
  absl::Status Start(Batch* batch) {
    *batch = {.first = result_.next_seed};
    const std::string name = absl::StrCat("seeds-", batch->first);
    TH_ASSIGN_OR_RETURN(
        batch->process,
        ChildProcess::Start({.name = name,
                             .arguments = {options_.program, "simulate", "--json", "--seeds",
                                           absl::StrCat(options_.batch), "--first-seed",
                                           absl::StrCat(batch->first)},
                             .log_path = absl::StrCat(options_.folder, "/", name, ".log")}));
    result_.next_seed += options_.batch;
    ++started_;
    return absl::OkStatus();
  }

  void Look(Batch* batch) {
    for (const std::string& line : batch->process->ReadLines()) {
      const nlohmann::json report = ParseLine(line);
      if (report.is_object()) batch->report = report;
    }
    if (!batch->process->HasEnded() || batch->process->output_fd() >= 0) return;
    if (batch->report.is_object() && batch->report.contains("failed_seeds")) {
      Count(batch->report);
    } else {
      result_.crashes.push_back(absl::StrCat(
          "seeds ", batch->first, " to ", batch->first + options_.batch - 1, ": their process ",
          batch->process->Condition(), "; what it said is in ", batch->process->log_path()));
      options_.print_line(result_.crashes.back());
    }
    batch->process = nullptr;
  }

  void Count(const nlohmann::json& report) {
    result_.seeds += report.at("seeds").get<uint64_t>();
    result_.failed_seeds += report.at("failed_seeds").get<uint64_t>();
    for (const nlohmann::json& failure : report.at("failures")) {
      Report(failure);
      if (result_.failures.size() < kMaxFailuresKept) result_.failures.push_back(failure);
    }
  }

  void Report(const nlohmann::json& failure) {
    options_.print_line(
        absl::StrCat(failure.at("command").get<std::string>(), "\nviolates what must hold:"));
    for (const nlohmann::json& violation : failure.at("violated")) {
      options_.print_line(absl::StrCat("  ", violation.get<std::string>()));
    }
    options_.print_line(absl::StrCat("these faults are enough (",
                                     failure.at("shortest_command").get<std::string>(), "):"));
    for (const nlohmann::json& fault : failure.at("faults")) {
      options_.print_line(absl::StrCat("  ", fault.get<std::string>()));
    }
  }

  void ReportRate() {
    const absl::Time now = MonotonicNow();
    if (now - reported_at_ < kReportEvery) return;
    reported_at_ = now;
    options_.print_line(absl::StrFormat("%d seeds, %.0f a second, %d failed", result_.seeds,
                                        PerSecond(result_.seeds, now - began_),
                                        result_.failed_seeds));
  }

  const SoakOptions& options_;
  const absl::Time began_;
  absl::Time reported_at_;
  uint64_t started_ = 0;  // batches
  SoakResult result_;
};

}  // namespace

absl::StatusOr<SoakResult> Soak(const SoakOptions& options) { return Soaking(options).Run(); }

nlohmann::json ToJson(const SoakResult& result) {
  return {{"seeds", result.seeds},
          {"first_seed", result.first_seed},
          {"next_seed", result.next_seed},
          {"interrupted", result.interrupted},
          {"failed_seeds", result.failed_seeds},
          {"seconds", absl::ToDoubleSeconds(result.took)},
          {"seeds_per_second", PerSecond(result.seeds, result.took)},
          {"failures", result.failures},
          {"crashes", result.crashes}};
}

std::string TextOf(const SoakResult& result) {
  if (result.seeds == 0 && result.good()) {
    return absl::StrFormat("%sno seed from %d on has ended",
                           result.interrupted ? "INTERRUPTED, " : "", result.first_seed);
  }
  const std::string verdict = result.good() ? "GOOD" : "BAD";
  return absl::StrFormat(
      "%s%s: %d fresh seeds from %d on (before %d), %d failed, %d batches crashed; %.0f a second "
      "for %.0f s",
      result.interrupted ? "INTERRUPTED, " : "", verdict, result.seeds, result.first_seed,
      result.next_seed, result.failed_seeds, result.crashes.size(),
      PerSecond(result.seeds, result.took), absl::ToDoubleSeconds(result.took));
}

}  // namespace th
