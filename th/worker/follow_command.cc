// tensorhub_worker follow: moves to every latest version, in memory or into folders, and serves it
// on.
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "th/client_flags/connection_flags.h"
#include "th/command_line/exit_status.h"
#include "th/command_line/quantity.h"
#include "th/command_line/stop_signals.h"
#include "th/memory/file_descriptor.h"
#include "th/protocol/messages.h"
#include "th/worker/command.h"
#include "th/worker/follower.h"
#include "th/worker/metrics_page.h"

namespace th {
namespace {

struct FollowFlags {
  ConnectionFlags connection;
  MemberFlags member;  // an empty group: one of this process alone
  std::string into;
  size_t keep = 2;
  std::string form = kDefaultForm;
  absl::Duration poll = absl::Seconds(1);
  absl::Duration timeout = absl::Hours(1);
  bool stage = false;
  uint64_t staging_limit_bytes = 0;
  std::string when_seeding = "wait";
  std::string http;
};

ExitStatus Fail(const absl::Status& status, ExitStatus exit) {
  LOG(ERROR) << status.message();
  return exit;
}

// Now, not after hours of waiting for a version.
absl::Status MakeFolder(const std::string& folder) {
  std::error_code error;
  if (folder.empty()) return absl::OkStatus();
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::NotFoundError(
        absl::StrCat("cannot make the folder ", folder, ": ", error.message()));
  }
  if (access(folder.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return FileError("write into", folder, errno);
}

// For scripts: a line of stdout a version.
void Report(const FollowedVersion& followed) {
  std::cout << "version=" << followed.update.version().ToString()
            << " bytes=" << followed.bytes_received
            << " seconds=" << absl::ToDoubleSeconds(followed.took)
            << " pause=" << absl::ToDoubleSeconds(followed.pause)
            << EventSuffix(followed.update.event) << (followed.folder.empty() ? "" : " folder=")
            << followed.folder << std::endl;
}

// A copy that there is no room for is never made, and staging makes one of its own.
absl::Status CheckSeeding(const FollowFlags& flags) {
  if (flags.when_seeding != "copy") return absl::OkStatus();
  if (flags.stage) {
    return absl::InvalidArgumentError(
        "--when-seeding copy does nothing with --stage, which receives into a copy anyway: give "
        "--when-seeding skip");
  }
  if (flags.member.offload_limit_bytes > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--when-seeding copy has no room for a copy: give --offload-limit, as much as a shard has, "
      "or --when-seeding skip");
}

ExitStatus RunFollow(const FollowFlags& flags) {
  StopSignals stop(static_cast<int>(ExitStatus::kOk));
  const absl::Status seeding = CheckSeeding(flags);
  if (!seeding.ok()) return Fail(seeding, ExitStatus::kUsage);
  absl::StatusOr<ClientOptions> client = flags.member.ToClientOptions(flags.connection);
  if (!client.ok()) return Fail(client.status(), ExitStatus::kUsage);
  client->staging_limit_bytes = flags.staging_limit_bytes;
  if (client->group.empty()) client->group = GroupOfThisProcess("follower");
  const auto metrics = ServeMetrics(flags.http);
  if (!metrics.ok()) return Fail(metrics.status(), ExitStatus::kFailed);
  LOG(INFO) << "follows " << flags.connection.key().ToString() << " as group " << client->group;
  if (const absl::Status made = MakeFolder(flags.into); !made.ok())
    return Fail(made, ExitStatus::kLocalFiles);
  Follower follower({.connection = flags.connection,
                     .client = *client,
                     .form = flags.form,
                     .into = flags.into,
                     .keep = flags.keep,
                     .poll = flags.poll,
                     .timeout = flags.timeout,
                     .stage = flags.stage,
                     .when_seeding = ParseWhenSeeding(flags.when_seeding).value(),  // checked
                     .preempt_grace = flags.member.preempt_grace},
                    &stop);
  const absl::Status status = follower.Run(&Report);
  if (status.ok()) return ExitStatus::kOk;
  if (follower.could_not_save()) return Fail(status, ExitStatus::kLocalFiles);
  return Fail(ExplainJoin(status), ExitStatusOf(status));
}

}  // namespace

void AddFollowCommand(CLI::App* app, ExitStatus* exit) {
  auto flags = std::make_shared<FollowFlags>();
  CLI::App* follow = app->add_subcommand(
      "follow", "move to every latest version and serve it on, until SIGTERM or SIGINT");
  CLI::Option* into =
      follow->add_option("--into", flags->into, "write each version as a folder in this one");
  follow
      ->add_option("--keep", flags->keep,
                   "the newest versions in --into, so many of them; older folders are removed")
      ->check(CLI::Range(1, 1'000'000))
      ->type_name("INT")
      ->needs(into)
      ->capture_default_str();
  follow->add_option("--form", flags->form, "the form of the weights")->capture_default_str();
  AddDurationFlag(follow, "--poll", &flags->poll, {absl::Milliseconds(10), absl::Hours(1)},
                  "the time, like 500ms, between two looks for a newer version");
  AddDurationFlag(follow, "--timeout", &flags->timeout, kTimeouts,
                  "the time, like 10m, for one update");
  CLI::Option* limit = AddByteSizeFlag(follow, "--staging-limit", &flags->staging_limit_bytes,
                                       "host memory of each rank for a version that is received "
                                       "beside the one it serves, like 20GiB; without --stage too: "
                                       "a transfer that fails leaves what is served as it was",
                                       "none");
  follow
      ->add_flag("--stage", flags->stage,
                 "receive a version beside the one that is served, then move it in; the line that "
                 "tells it says how long that pause was")
      ->needs(limit);
  follow
      ->add_option("--when-seeding", flags->when_seeding,
                   "while a version is on its way into this site: wait for it, skip it (go on with "
                   "the one before and look again after --poll), or, where nobody brings it, copy "
                   "it into host memory first (--offload-limit)")
      ->check(CLI::IsMember({"wait", "skip", "copy"}))
      ->capture_default_str();
  AddConnectionFlags(follow, &flags->connection);
  AddMemberFlags(follow, &flags->member);
  follow->get_option("--group")->default_str("follower-HOST-PID");
  AddOffloadFlag(follow, &flags->member);
  AddPreemptFlag(follow, &flags->member);
  AddHttpFlag(follow, &flags->http);
  follow->callback([flags, exit] { *exit = RunFollow(*flags); });
}

}  // namespace th
