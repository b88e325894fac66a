// A group that follows a model's latest version, in memory or into folders: what `tensorhub_worker
// follow` is.
//
//   Follower follower(options, &stop);
//   absl::Status status = follower.Run([](const FollowedVersion& followed) { Log(followed); });
//
// What it holds it serves on to others. Not thread-safe.
#ifndef TH_WORKER_FOLLOWER_H_
#define TH_WORKER_FOLLOWER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/client/client.h"
#include "th/client_flags/connection_flags.h"
#include "th/command_line/stop_signals.h"
#include "th/worker/model_memory.h"
#include "th/worker/reader_group.h"
#include "th/worker/said_once.h"
#include "th/worker/version_folders.h"
#include "th/worker/version_shards.h"

namespace th {

struct FollowerOptions {
  ConnectionFlags connection;
  ClientOptions client;  // rank and ranks are filled in
  std::string form = kDefaultForm;
  std::string into;  // a folder with a folder a version; empty: in memory only
  size_t keep = 2;   // folders of versions; older ones of this model are removed
  absl::Duration poll = absl::Seconds(1);   // how often it asks for the latest
  absl::Duration timeout = absl::Hours(1);  // of one update
  // Receives beside what it serves, under client.staging_limit_bytes, and moves it in then.
  bool stage = false;
  WhenSeeding when_seeding = WhenSeeding::kWait;
  absl::Duration preempt_grace;  // the notice that it gives at a stop; zero: it leaves at once
};

struct FollowedVersion {
  const UpdateResult& update;  // of the first rank; valid during the callback
  uint64_t bytes_received = 0;
  absl::Duration took;
  absl::Duration pause;  // part of `took`: the longest stall of any rank
  std::string folder;    // written; empty: none
};

class Follower {
 public:
  // `stop` outlives it.
  Follower(FollowerOptions options, StopSignals* stop)
      : options_(std::move(options)),
        folders_(options_.into, options_.connection.key(),
                 [this](VersionSequence version) { return WasWithdrawn(version); }),
        stop_(stop) {}

  // Follows the model until a stop is requested (OK) or until an error that trying again cannot
  // cure: the membership is lost, the layout changed before any version was held, a folder cannot
  // be written. On a full disk it goes on in memory. It serves what it holds and tries again where
  // an update finds no source or no room, or would take away the last replica of a retained
  // version.
  absl::Status Run(const std::function<void(const FollowedVersion&)>& on_version);
  // True when Run ended because a version could not be saved, not because of the server or a peer.
  bool could_not_save() const { return could_not_save_; }

 private:
  struct FirstVersion {
    VersionShards shards;
    std::vector<ShardLayout> layouts;  // of each
  };
  // NOT_FOUND saying why: there is no version to begin with yet.
  absl::StatusOr<FirstVersion> FindFirstVersion();
  // Nothing when it was stopped.
  absl::StatusOr<std::optional<FirstVersion>> AwaitFirstVersion();
  // Resolves the latest version. True when it is the one that was refused for its shards, or when
  // there is none: each further try would add a failed operation to the server's events. A version
  // is tried twice before it is known as refused: the first try did not know which one it was for.
  absl::StatusOr<bool> LatestIsRefused();
  absl::Status JoinAs(FirstVersion first);
  absl::Status FollowOnce(const std::function<void(const FollowedVersion&)>& on_version);
  // Into the buffers, or beside them if it stages: the latest version, if there is another than the
  // one held; nothing when it was stopped.
  absl::StatusOr<std::optional<GroupUpdate>> Receive();
  // Moves the staged version in; nothing when it was stopped.
  absl::StatusOr<std::optional<GroupUpdate>> MoveIn();
  absl::StatusOr<std::string> Save(const VersionInfo& version);
  // True when the server says that a roll-back withdrew the version. False also while the server is
  // away, or knows the version no more.
  bool WasWithdrawn(VersionSequence version) const;
  // Empty, having said so, where the disk is full: what is held is served from memory.
  absl::StatusOr<std::string> SaveUnlessFull(const VersionInfo& version);
  // Decides whether Run goes on after a try that failed: OK, and logs the reason once, where a
  // later try may succeed; else the error.
  absl::Status ContinueAfter(const absl::Status& failed);
  void Leave();
  // The result; nothing when it was stopped. Says meanwhile when the server goes and comes.
  absl::StatusOr<std::optional<GroupUpdate>> Await(
      PendingResult<absl::StatusOr<GroupUpdate>>& pending);
  bool holds_one() const { return held_.sequence != VersionSequence(); }
  void NoteServer();
  // Says once that there is no version to move to, and whether what is held is still one.
  void NoteNotAvailable(const UpdateResult& update);

  const FollowerOptions options_;
  const VersionFolders folders_;
  StopSignals* const stop_;
  std::unique_ptr<Controller> controller_;
  std::unique_ptr<ModelMemory> model_;
  std::unique_ptr<ReaderGroup> readers_;
  bool could_not_save_ = false;
  VersionInfo held_;         // an empty sequence: none yet
  std::string held_folder_;  // written last
  bool server_away_ = false;
  SaidOnce said_;
  SaidOnce said_not_available_;
  // The latest version, as resolved just before the present try; empty: it was not resolved.
  VersionSequence latest_before_try_;
  // Set while the last try was refused for its shards: latest_before_try_ of that try.
  std::optional<VersionSequence> refused_;
};

}  // namespace th

#endif  // TH_WORKER_FOLLOWER_H_
