// Receiving a whole version into memory, as `th pull` and `th verify --bytes` do: find its shards,
// join a rank a shard, update, leave.
#ifndef TH_CLI_PULLING_H_
#define TH_CLI_PULLING_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/client/client.h"
#include "th/client_flags/connection_flags.h"
#include "th/command_line/stop_signals.h"
#include "th/worker/model_memory.h"
#include "th/worker/reader_group.h"
#include "th/worker/version_shards.h"

namespace th {

struct PullFlags {
  ConnectionFlags connection;
  MemberFlags member;
  std::string version = "latest";
  std::string form = kDefaultForm;
  absl::Duration timeout = absl::Hours(1);
  bool wait = false;             // until the version is published, within `timeout`
  std::string command = "pull";  // begins the name of its group where --group gives none
};

// --version, --form, --timeout and those of connection and member.
void AddPullFlags(CLI::App* app, PullFlags* flags);

// How the process joins: as a group of its own unless --group names one ("pull-n7-4711": unlike
// that of any other such process, on this machine or another), on which what is retained must not
// rely. INVALID_ARGUMENT, a usage error: see MemberFlags.
absl::StatusOr<ClientOptions> ReaderOptions(const PullFlags& flags);

// A version as it is to be pulled.
struct FoundVersion {
  std::unique_ptr<Controller> controller;
  VersionShards shards;
};
// Errors of Connect, and of Resolve or WaitFor; NOT_FOUND, naming the versions that are held.
absl::StatusOr<FoundVersion> FindVersion(const PullFlags& flags);

// Why nothing could be read of a version although the server answers, `failed` being what the call
// came to: NOT_FOUND when nobody holds it any more, else FAILED_PRECONDITION with what to do about
// a source that sends nothing, or that nothing in common leads to. UNAVAILABLE: the server does not
// answer either.
absl::Status WhyNotRead(Controller& controller, const PullFlags& flags, const VersionInfo& version,
                        const absl::Status& failed);

struct PulledModel {
  ModelMemory model;  // gathered
  GroupUpdate update;
  absl::Duration seconds;  // from the call of Update to its end
};
// Pulls a version, with a progress line on stderr. CANCELLED after a signal; errors of
// ReaderOptions and joining (ExitStatusOfJoin), and of the update as WhyNotRead tells them.
absl::StatusOr<PulledModel> Pull(const PullFlags& flags, const FoundVersion& found,
                                 StopSignals* stop);

// bytes, seconds, gbytes_per_s, reroutes, sources: [{rank, name, transport, bytes}].
nlohmann::json ToJson(const PulledModel& pulled);

}  // namespace th

#endif  // TH_CLI_PULLING_H_
