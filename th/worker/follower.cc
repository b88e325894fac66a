#include "th/worker/follower.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
#include "th/command_line/quantity.h"
#include "th/protocol/catalog.h"
#include "th/status/status_macros.h"
#include "th/text/byte_size.h"
#include "th/worker/retention_losses.h"
#include "th/worker/saved_model.h"
#include "th/worker/version_shards.h"

namespace th {
namespace {

// How often it looks whether the server is away while it waits for an update.
constexpr absl::Duration kServerPoll = absl::Milliseconds(200);
// The timeout of a question to the server. Short, so that a server that is away delays no stop.
constexpr absl::Duration kQueryTimeout = absl::Seconds(2);
// A version that was refused is tried again after so many times the poll: each try is an operation
// in the server's memory of events.
constexpr int kRefusedPolls = 10;

// Errors after which the next attempt may well succeed.
bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsNotFound(status) || absl::IsAborted(status);
}

// Errors that refuse one version and leave the one that is held as it was. Another version may
// succeed, or this one once nothing retains the one that is held.
bool RefusesVersion(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status) ||
         absl::IsFailedPrecondition(status);
}

uint64_t LargestOf(const std::vector<ShardLayout>& layouts) {
  uint64_t largest = 0;
  for (const ShardLayout& layout : layouts) largest = std::max(largest, layout.bytes());
  return largest;
}

// A version without room in the limit is never staged, and those to come have the same shards.
absl::Status CheckStagingLimit(uint64_t limit_bytes, const std::vector<ShardLayout>& layouts) {
  const uint64_t largest = LargestOf(layouts);
  if (limit_bytes == 0 || limit_bytes >= largest) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--staging-limit is ", ByteSizeText(limit_bytes),
      " for each rank, and the largest shard has ", ByteSizeText(largest),
      ": no version could ever be staged; give at least ", ExactByteSizeText(largest)));
}

// A follower that copies nothing for want of room gains nothing by the limit that it was given.
void WarnOfVainLimit(uint64_t offload_limit_bytes, const std::vector<ShardLayout>& layouts) {
  const uint64_t largest = LargestOf(layouts);
  if (offload_limit_bytes == 0 || offload_limit_bytes >= largest) return;
  LOG(WARNING) << "--offload-limit of " << ByteSizeText(offload_limit_bytes)
               << " is too small for any copy: a shard has " << ByteSizeText(largest)
               << "; it is as if there were none; give at least " << ExactByteSizeText(largest);
}

absl::string_view WhyNotAvailable(NotAvailableReason reason) {
  switch (reason) {
    case NotAvailableReason::kGone:
      return "nobody holds the latest version";
    case NotAvailableReason::kLost:
      return "the latest version is of before a restart of the server, and nobody announced it";
    default:
      return "no version is published";
  }
}

void LogRemoved(const std::vector<std::string>& folders, absl::string_view why) {
  for (const std::string& folder : folders) LOG(INFO) << "removed " << folder << ": " << why;
}

}  // namespace

absl::Status Follower::Run(const std::function<void(const FollowedVersion&)>& on_version) {
  if (!options_.into.empty()) {
    LogRemoved(folders_.RemoveUnfinished(), "left unfinished by a process that was killed");
  }
  TH_ASSIGN_OR_RETURN(controller_, options_.connection.Connect());
  stop_->HoldOff();
  TH_ASSIGN_OR_RETURN(std::optional<FirstVersion> first, AwaitFirstVersion());
  if (!first) return absl::OkStatus();  // stopped before there was one
  TH_RETURN_IF_ERROR(JoinAs(*std::move(first)));
  absl::Status status;
  while (!stop_->requested()) {
    const absl::Status followed = FollowOnce(on_version);
    NoteServer();
    if (followed.ok()) said_.Clear();
    status = followed.ok() ? followed : ContinueAfter(followed);
    if (!status.ok()) break;
    stop_->WaitFor(RefusesVersion(followed) ? kRefusedPolls * options_.poll : options_.poll);
  }
  Leave();
  return status;
}

absl::Status Follower::ContinueAfter(const absl::Status& failed) {
  if (could_not_save_) return failed;
  TH_RETURN_IF_ERROR(readers_->membership());
  if (!MayPass(failed) && !(holds_one() && RefusesVersion(failed))) return failed;
  const bool for_its_shards = absl::IsInvalidArgument(failed);
  if (for_its_shards) refused_ = latest_before_try_;
  LOG_IF(WARNING, said_.IsNew(failed.message()))
      << (for_its_shards
              ? "serves what it holds, and waits for a version with the same shards; a follower "
                "that is started again takes the others: "
          : holds_one() ? "serves what it holds and will try again: "
                        : "will try again: ")
      << failed.message();
  return absl::OkStatus();
}

void Follower::Leave() {
  RetentionLosses losses(options_.connection, options_.client.group);
  if (stop_->requested() && options_.preempt_grace > absl::ZeroDuration()) {
    LOG(INFO) << "leaving in " << absl::FormatDuration(options_.preempt_grace)
              << "; readers move to other sources";
    const absl::Status noticed = readers_->Preempt(absl::Now() + options_.preempt_grace);
    LOG_IF(WARNING, !noticed.ok()) << "giving notice: " << noticed.message();
  }
  const absl::Status left = readers_->Leave();
  LOG_IF(WARNING, !left.ok()) << "leaving: " << left.message();
  losses.Log();
}

void Follower::NoteServer() {
  const bool away = !readers_->connected();
  if (std::exchange(server_away_, away) == away) return;
  LOG(INFO) << (away ? "the server is away; what is held is served on"
                     : "the server is back and knows what is held");
}

void Follower::NoteNotAvailable(const UpdateResult& update) {
  if (!update.not_available() || update.reason == NotAvailableReason::kSeeding) {
    return said_not_available_.Clear();  // what --when-seeding asks for is no news
  }
  if (!said_not_available_.IsNew(WhyNotAvailable(update.reason))) return;
  std::string held = "holds nothing";
  if (holds_one()) {
    held = absl::StrCat(held_.ToString(), WasWithdrawn(held_.sequence)
                                              ? ", which is held, was withdrawn by a roll-back"
                                              : " is held and served on");
  }
  LOG(WARNING) << held << "; " << WhyNotAvailable(update.reason) << "; looks for one to move to";
}

absl::StatusOr<std::optional<GroupUpdate>> Follower::Await(
    PendingResult<absl::StatusOr<GroupUpdate>>& pending) {
  for (;;) {
    std::optional<absl::StatusOr<GroupUpdate>> result = pending.AwaitFor(kServerPoll);
    if (result.has_value()) return *std::move(result);
    if (stop_->requested()) return std::nullopt;
    NoteServer();
  }
}

absl::StatusOr<Follower::FirstVersion> Follower::FindFirstVersion() {
  const absl::StatusOr<VersionInfo> latest = controller_->Resolve(Latest());
  if (absl::IsNotFound(latest.status())) return absl::NotFoundError("nothing is published yet");
  TH_RETURN_IF_ERROR(latest.status());
  TH_ASSIGN_OR_RETURN(const Catalog catalog, controller_->List());
  absl::StatusOr<VersionShards> shards =
      FindVersionShards(catalog, options_.connection.key(), latest->sequence, options_.form);
  if (!shards.ok()) return absl::NotFoundError(shards.status().message());
  TH_ASSIGN_OR_RETURN(std::vector<ShardLayout> layouts, FetchLayouts(*controller_, *shards));
  return FirstVersion{.shards = *std::move(shards), .layouts = std::move(layouts)};
}

absl::StatusOr<std::optional<Follower::FirstVersion>> Follower::AwaitFirstVersion() {
  SaidOnce said;
  while (!stop_->requested()) {
    absl::StatusOr<FirstVersion> found = FindFirstVersion();
    // The server may go, or the version, between two questions; or all followers of a fleet ask at
    // once, and the server answers so many and no more.
    if (found.ok() || !(MayPass(found.status()) || absl::IsResourceExhausted(found.status()))) {
      return found;
    }
    const std::string why(found.status().message());
    LOG_IF(INFO, said.IsNew(why)) << "waiting for a version of "
                                  << options_.connection.key().ToString() << " in form "
                                  << options_.form << ": " << why;
    stop_->WaitFor(options_.poll);
  }
  return std::nullopt;
}

absl::Status Follower::JoinAs(FirstVersion first) {
  TH_RETURN_IF_ERROR(CheckStagingLimit(options_.client.staging_limit_bytes, first.layouts));
  WarnOfVainLimit(options_.client.offload_limit_bytes, first.layouts);
  TH_ASSIGN_OR_RETURN(ModelMemory model, ModelMemory::Allocate(std::move(first.layouts)));
  model_ = std::make_unique<ModelMemory>(std::move(model));
  TH_ASSIGN_OR_RETURN(readers_, ReaderGroup::Join({.client = options_.client,
                                                   .buffer_name = first.shards.buffer_name,
                                                   .form = options_.form,
                                                   .log_readers = true},
                                                  *model_));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<GroupUpdate>> Follower::Receive() {
  PendingResult<absl::StatusOr<GroupUpdate>> received(stop_);
  if (options_.stage) {
    readers_->StageAsync(Latest(),
                         {.timeout = options_.timeout, .when_seeding = options_.when_seeding},
                         received.Callback());
  } else {
    readers_->UpdateAsync(Latest(),
                          {.timeout = options_.timeout, .when_seeding = options_.when_seeding},
                          received.Callback());
  }
  TH_ASSIGN_OR_RETURN(std::optional<GroupUpdate> update, Await(received));
  if (!update) return std::nullopt;  // when stopped, Leave ends it
  NoteNotAvailable(update->first());
  if (!update->first().moved()) return std::nullopt;
  return update;
}

absl::StatusOr<std::optional<GroupUpdate>> Follower::MoveIn() {
  PendingResult<absl::StatusOr<GroupUpdate>> moved_in(stop_);
  readers_->ApplyAsync({.timeout = options_.timeout}, moved_in.Callback());
  return Await(moved_in);
}

absl::StatusOr<bool> Follower::LatestIsRefused() {
  latest_before_try_ = VersionSequence();
  if (!refused_.has_value()) return false;
  const absl::StatusOr<VersionInfo> latest = controller_->Resolve(Latest(), kQueryTimeout);
  if (absl::IsNotFound(latest.status())) return true;
  TH_RETURN_IF_ERROR(latest.status());
  latest_before_try_ = latest->sequence;
  return latest_before_try_ == refused_;
}

absl::Status Follower::FollowOnce(const std::function<void(const FollowedVersion&)>& on_version) {
  TH_ASSIGN_OR_RETURN(const bool refused, LatestIsRefused());
  if (refused) return absl::OkStatus();
  const absl::Time begin = absl::Now();
  TH_ASSIGN_OR_RETURN(const std::optional<GroupUpdate> update, Receive());
  refused_.reset();
  if (!update) return absl::OkStatus();
  absl::Duration pause = update->longest_stall();
  if (options_.stage) {
    TH_ASSIGN_OR_RETURN(const std::optional<GroupUpdate> applied, MoveIn());
    if (!applied) return absl::OkStatus();
    pause = applied->longest_stall();
  }
  const absl::Duration took = absl::Now() - begin;
  TH_RETURN_IF_ERROR(model_->Gather());
  const absl::StatusOr<std::string> folder = SaveUnlessFull(update->first().version());
  if (!folder.ok()) {
    could_not_save_ = !absl::IsCancelled(folder.status());
    return could_not_save_ ? folder.status() : absl::OkStatus();
  }
  held_ = update->first().version();
  on_version({.update = update->first(),
              .bytes_received = update->bytes_received(),
              .took = took,
              .pause = pause,
              .folder = *folder});
  return absl::OkStatus();
}

absl::StatusOr<std::string> Follower::Save(const VersionInfo& version) {
  if (options_.into.empty()) return "";
  const std::string folder = folders_.PathOf(version);
  // From before a restart of the follower, or a roll-back.
  TH_ASSIGN_OR_RETURN(const bool saved, IsSaved(*model_, version, folder));
  if (!saved) {
    absl::Status room = CheckCanSave(folder, model_->bytes());
    if (absl::IsResourceExhausted(room)) {
      // The one to come will push out the oldest anyway. The last one stays until it is there.
      LogRemoved(folders_.RemoveOlder(std::max<size_t>(options_.keep, 2) - 1, held_folder_),
                 "the disk is full, and a newer version comes");
      room = CheckCanSave(folder, model_->bytes());
    }
    TH_RETURN_IF_ERROR(room);
    absl::Status written = SaveModel(*model_, version, options_.connection.key(), folder, stop_);
    if (absl::IsAlreadyExists(written)) {  // another follower with the same folder may be first
      const absl::StatusOr<bool> same = IsSaved(*model_, version, folder);
      if (same.ok() && *same) written = absl::OkStatus();
    }
    TH_RETURN_IF_ERROR(written);
  }
  held_folder_ = folder;
  LogRemoved(folders_.RemoveOlder(options_.keep, folder),
             absl::StrCat("--keep ", options_.keep,
                          " leaves the newest versions; withdrawn ones go first"));
  return folder;
}

bool Follower::WasWithdrawn(VersionSequence version) const {
  return readers_->connected() &&
         absl::IsFailedPrecondition(controller_->Resolve(version, kQueryTimeout).status());
}

absl::StatusOr<std::string> Follower::SaveUnlessFull(const VersionInfo& version) {
  absl::StatusOr<std::string> folder = Save(version);
  if (!absl::IsResourceExhausted(folder.status())) return folder;
  LOG(ERROR) << "version " << version.ToString()
             << " is served from memory and is in no folder: " << folder.status().message()
             << "; the next version is written again";
  return "";
}

}  // namespace th
