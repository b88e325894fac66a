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
  absl::Duration preempt_grace;  // a stop is a notice of so long; zero: it leaves at once
};

struct FollowedVersion {
  const UpdateResult& update;  // of the first rank
  uint64_t bytes_received = 0;
  absl::Duration took;
  absl::Duration pause;  // of it, how long the slowest rank had its buffer taken away
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

  // Until a stop is requested (OK) or an error that time will not mend: the membership is lost, the
  // model's layout changed, a folder cannot be written. On a full disk it goes on in memory. An
  // update that failed for lack of sources is tried again; one that would take a retained version's
  // last replica, or has no room, too, while what is held is served on.
  absl::Status Run(const std::function<void(const FollowedVersion&)>& on_version);
  // True when what Run came to is the folder's fault, not the server's or a peer's.
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
  // True while the latest version is the one that was refused for its shards: to try it again would
  // be a failed operation in the server's memory of events, again and again.
  absl::StatusOr<bool> IsStillMisfit();
  absl::Status JoinAs(FirstVersion first);
  absl::Status FollowOnce(const std::function<void(const FollowedVersion&)>& on_version);
  // Into the buffers, or beside them if it stages: the latest version, if there is another than the
  // one held; nothing when it was stopped.
  absl::StatusOr<std::optional<GroupUpdate>> Receive();
  // Moves the staged version in; nothing when it was stopped.
  absl::StatusOr<std::optional<GroupUpdate>> MoveIn();
  absl::StatusOr<std::string> Save(const VersionInfo& version);
  // False too while the server is away, or knows no more of the version.
  bool WasWithdrawn(VersionSequence version) const;
  // Empty, having said so, where the disk is full: what is held is served from memory.
  absl::StatusOr<std::string> SaveUnlessFull(const VersionInfo& version);
  // Says why a try failed, once; OK where the next one may do better, else why.
  absl::Status Judge(const absl::Status& failed);
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
  VersionSequence named_;                  // the latest version when it was last asked for by name
  std::optional<VersionSequence> misfit_;  // of `named_` before the try that was refused
};

}  // namespace th

#endif  // TH_WORKER_FOLLOWER_H_
