// The common part of the benchmarks that start a server and ranks: the flags of those processes,
// the cluster that follows from them, and how a run that failed is told.
//
//   struct FanoutFlags : ProcessFlags { ... };
//   AddProcessFlags(app, flags.get());                       // last: they end the list of flags
//   absl::StatusOr<ScratchFolder> folder = ScratchFolder::Make("th-bench", flags.keep);
//   TH_ASSIGN_OR_RETURN(LocalClusterOptions cluster, ClusterOf(flags, folder->path()));
//   if (!measured.ok()) return FailMeasuring(flags, *folder, measured.status());
#ifndef TH_BENCH_BENCH_FLAGS_H_
#define TH_BENCH_BENCH_FLAGS_H_

#include <cstdint>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "th/command_line/exit_status.h"
#include "th/command_line/reporter.h"
#include "th/controlled_rank/local_cluster.h"
#include "th/processes/scratch_folder.h"

namespace th {

struct ProcessFlags {
  uint32_t connections = 2;   // to each source
  uint32_t data_threads = 2;  // of each process
  std::string server_binary;  // empty: the one beside th
  std::string keep;           // folder for state and logs; empty: gone after a run that went well
  Reporter reporter;
};

// --connections, --data-threads, --server-binary, --keep, --json; what `flags` has is the default.
// `flags` outlives the parse.
void AddProcessFlags(CLI::App* app, ProcessFlags* flags);

// Programs, folder and threads of a cluster; model, shards and places are the caller's to add.
// NOT_FOUND when there is no controlled_rank beside th, or no tensorhub_server and none was given.
absl::StatusOr<LocalClusterOptions> ClusterOf(const ProcessFlags& flags, const std::string& folder);

// The server that chooses sources as other systems do (policy_flag.h). NOT_FOUND when it is not
// beside th.
absl::StatusOr<std::string> FindPolicyServer();

// Reports `why`, and how th then ends. Keeps the folder, and names it, where its logs say more: not
// after an interruption, nor where there are no virtual hosts and so nothing has run.
ExitStatus FailMeasuring(const ProcessFlags& flags, ScratchFolder& folder, const absl::Status& why);

// The check of a flag that gives the rate of a virtual host's link, like 250mbit.
CLI::Validator LinkRate();
// The check of a flag that gives the number of readers of a fan-out.
CLI::Validator FanoutReaders();
// Takes an entry that ParseLinkClass takes, like 250mbit*2.
CLI::Validator LinkClassText();

}  // namespace th

#endif  // TH_BENCH_BENCH_FLAGS_H_
