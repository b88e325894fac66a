#include "th/server/server_program.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "th/command_line/stop_signals.h"
#include "th/coordination/file_store.h"
#include "th/monitoring/descriptors.h"
#include "th/monitoring/host_name.h"
#include "th/server/announcement.h"
#include "th/server/event_log.h"
#include "th/server/json_log.h"
#include "th/server/server.h"
#include "th/version/version.h"

namespace th {
namespace {

// How often a server that waits for a signal looks whether it has failed, or its parent has ended.
constexpr absl::Duration kFailureLook = absl::Milliseconds(20);

int Fail(ServerExit exit, const absl::Status& why) {
  std::cerr << "tensorhub_server: " << why.message() << std::endl;
  return static_cast<int>(exit);
}

// True once another process has adopted this one. `parent` 0: it may be adopted.
bool HasLostParent(pid_t parent) {
  if (parent == 0 || getppid() == parent) return false;
  LOG(INFO) << "the parent, process " << parent << ", has ended: stopping";
  return true;
}

// Waits for a signal, for the end of `parent` or for the server to fail; then shuts it down.
int ServeUntilStopped(Server& server, StopSignals& stop, pid_t parent) {
  absl::Status failure;
  while (failure.ok() && !stop.requested() && !HasLostParent(parent)) {
    failure = server.WaitForFailure(kFailureLook);
  }
  if (stop.requested()) {
    LOG(INFO) << "workers are told to come back later";
  } else {
    stop.StopHoldingOff();  // the first signal need not wait for the farewell
  }
  server.Shutdown();
  return failure.ok() ? static_cast<int>(ServerExit::kClean) : Fail(ServerExit::kState, failure);
}

// UNAVAILABLE: nobody could learn where it listens.
absl::Status Announce(const Server& server, const ServerFlags& flags) {
  std::error_code error;
  const std::string state_dir = std::filesystem::canonical(flags.state_dir, error).string();
  std::cout << AnnouncementLine({.address = server.address(),
                                 .http_address = server.http_address(),
                                 .epoch = server.epoch(),
                                 .state_dir = error ? flags.state_dir : state_dir,
                                 .pid = getpid()},
                                flags.json)
            << std::endl;
  if (std::cout.good()) return absl::OkStatus();
  return absl::UnavailableError("stdout cannot be written, where the address is announced");
}

// A server that cannot have more files serves with those that it has.
void RaiseDescriptorLimitAndSay() {
  const absl::StatusOr<RaisedLimit> raised = RaiseDescriptorLimit();
  if (!raised.ok()) LOG(WARNING) << raised.status().message();
  const uint64_t limit = DescriptorLimit();
  const bool is_raised = raised.ok() && raised->before < limit;
  LOG(INFO) << "open files: at most " << limit
            << (is_raised ? absl::StrCat(" (raised from ", raised->before, " to the hard limit)")
                          : std::string())
            << ", enough for " << ConnectionLimit(limit)
            << " connections, one for each worker and controller";
}

int Run(const ServerFlags& flags, StopSignals& stop) {
  RaiseDescriptorLimitAndSay();
  absl::StatusOr<std::unique_ptr<FileStore>> store = FileStore::Open(flags.state_dir);
  if (!store.ok()) return Fail(ServerExit::kState, store.status());
  std::unique_ptr<EventLog> event_log;
  if (!flags.event_log.empty()) {
    auto opened = EventLog::Open(flags.event_log, flags.event_log_limit_bytes);
    if (!opened.ok()) return Fail(ServerExit::kState, opened.status());
    event_log = *std::move(opened);
  }
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start({.listen = flags.listen,
                     .http_listen = flags.http,
                     .store = *std::move(store),
                     .limits = flags.limits,
                     .event_log = std::move(event_log),
                     .software = "tensorhub_server " + BuildVersion()});
  if (!server.ok()) return Fail(ServerExit::kCannotListen, server.status());
  if (!flags.port_file.empty()) {
    const absl::Status written = WritePortFile(flags.port_file, (*server)->port());
    if (!written.ok()) return Fail(ServerExit::kUsage, written);
  }
  if (!flags.address_file.empty()) {
    const absl::Status written =
        WriteAddressFile(flags.address_file, (*server)->address(), HostName());
    if (!written.ok()) return Fail(ServerExit::kUsage, written);
  }
  const absl::Status announced = Announce(**server, flags);
  if (!announced.ok()) return Fail(ServerExit::kUsage, announced);
  return ServeUntilStopped(**server, stop, flags.parent);
}

}  // namespace

int RunServerProgram(int argc, char** argv, const AddServerFlags& more_flags) {
  // gRPC's experiment reads at least 8 KiB at a time, and every connection that waits for its next
  // message holds as much; without it kReadBytes counts (server.cc). Who sets the variable decides.
  constexpr int kNotOverwritten = 0;
  setenv("GRPC_EXPERIMENTS", "-tcp_read_chunks", kNotOverwritten);

  StopSignals stop(kStatusOfSecondSignal,
                   {.say = [](const std::string& text) { LOG(INFO) << text; }});
  const ParsedFlags parsed = ParseServerFlags(argc, argv, BuildVersion(), more_flags);
  if (parsed.exit.has_value()) return static_cast<int>(*parsed.exit);
  FLAGS_logtostderr = true;
  FLAGS_minloglevel = parsed.flags.log_level;
  google::InitGoogleLogging(argv[0]);
  std::optional<JsonLog> json_log;
  if (parsed.flags.log_json) json_log.emplace();
  stop.HoldOff();
  return Run(parsed.flags, stop);
}

}  // namespace th
