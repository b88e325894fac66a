#include "th/bench/bench_flags.h"

#include <cstdint>
#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "th/bench/link_classes.h"
#include "th/processes/runfiles.h"
#include "th/processes/virtual_hosts.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

constexpr int kMostConnections = 4;
constexpr int kMostDataThreads = 64;

// Empty: it is one.
std::string CheckRate(const std::string& text) {
  return std::string(ParseLinkRate(text).status().message());
}

std::string CheckReaders(const std::string& text) {
  int64_t readers = 0;
  if (!absl::SimpleAtoi(text, &readers)) return absl::StrCat("\"", text, "\" is no number");
  return std::string(CheckFanoutReaders(readers).message());
}

std::string CheckClass(const std::string& text) {
  return std::string(ParseLinkClass(text).status().message());
}

}  // namespace

void AddProcessFlags(CLI::App* app, ProcessFlags* flags) {
  app->add_option("--connections", flags->connections, "connections to each source")
      ->check(CLI::Range(1, kMostConnections))
      ->capture_default_str();
  app->add_option("--data-threads", flags->data_threads,
                  "threads that move weights in each process")
      ->check(CLI::Range(1, kMostDataThreads))
      ->capture_default_str();
  app->add_option("--server-binary", flags->server_binary,
                  "tensorhub_server, if it is not beside th")
      ->check(CLI::ExistingFile);
  app->add_option("--keep", flags->keep, "keep state and logs of all processes in this folder");
  flags->reporter.AddFlag(app);
}

absl::StatusOr<LocalClusterOptions> ClusterOf(const ProcessFlags& flags,
                                              const std::string& folder) {
  TH_ASSIGN_OR_RETURN(std::string rank_program, FindProgram(kControlledRank));
  LocalClusterOptions cluster{.rank_program = std::move(rank_program),
                              .server_program = flags.server_binary,
                              .folder = folder,
                              .connections = flags.connections,
                              .data_threads = flags.data_threads};
  if (cluster.server_program.empty()) {
    TH_ASSIGN_OR_RETURN(cluster.server_program, FindProgram("th/server/tensorhub_server"));
  }
  return cluster;
}

absl::StatusOr<std::string> FindPolicyServer() { return FindProgram("th/bench/policy_server"); }

ExitStatus FailMeasuring(const ProcessFlags& flags, ScratchFolder& folder,
                         const absl::Status& why) {
  if (absl::IsCancelled(why)) return flags.reporter.Fail(why, ExitStatus::kInterrupted);
  if (!absl::StartsWith(why.message(), kNoVirtualHosts)) {
    folder.Keep();
    fprintf(stderr, "the logs of all processes are in %s\n", folder.path().c_str());
  }
  return flags.reporter.Fail(why, ExitStatus::kFailed);
}

CLI::Validator LinkRate() { return {CheckRate, "RATE"}; }

CLI::Validator FanoutReaders() { return {CheckReaders, ""}; }

CLI::Validator LinkClassText() { return {CheckClass, "RATE*HOSTS"}; }

}  // namespace th
