// The scene that the demo plays: a script over real processes.
//
// A trainer publishes version 1 and all rollouts update at once; the trainer changes its weights
// and publishes version 2, in which a rollout group that others read from is killed and later
// rejoins; the trainer unpublishes, and a late joiner is filled by rollouts alone; version 3; then
// the trainer resumes from a checkpoint: it rolls back to version 2 and publishes another
// version 3.
#ifndef TH_DEMO_DEMO_SCENE_H_
#define TH_DEMO_DEMO_SCENE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/command_line/progress_screen.h"
#include "th/controlled_rank/local_cluster.h"
#include "th/controlled_rank/victim.h"
#include "th/demo/demo_memory.h"
#include "th/demo/demo_report.h"
#include "th/demo/expected_checksums.h"

namespace th {

struct DemoSceneOptions {
  LocalClusterOptions cluster;
  uint32_t trainer_ranks = 4;
  uint32_t rollouts = 4;
  uint32_t rollout_ranks = 2;
  uint64_t distinct_bytes = 0;  // of all shards, once
  uint64_t largest_shard_bytes = 0;
  // A command (controlled_rank.h) that a reader is given after the first delivery, which is then
  // compared again: shows that the demo would notice. Empty: none.
  std::string sabotage;
  absl::Duration step_timeout = absl::Minutes(10);
};

class DemoScene {
 public:
  // `screen` and `report` outlive it.
  DemoScene(DemoSceneOptions options, ProgressScreen* screen, DemoReport* report)
      : options_(std::move(options)),
        screen_(screen),
        report_(report),
        memory_(ResidentNoise(options_.largest_shard_bytes)) {}
  // The report is as full as the scene got.
  absl::Status Play();

 private:
  absl::Status SetUp();
  absl::Status PlayFirstVersion();
  absl::Status PlayKill();
  absl::Status PlayLateJoiner();
  absl::Status PlayThirdVersion();
  absl::Status PlayRollBack();

  // The trainer's part.
  absl::Status Publish(const std::string& label, uint64_t content);
  absl::Status SendToTrainer(const nlohmann::json& command);
  absl::StatusOr<uint64_t> TrainerBytesSent();

  // The readers' part.
  absl::Status Deliver(const std::vector<std::string>& groups, bool kill);
  absl::Status Update(const std::vector<std::string>& groups, bool kill);
  absl::Status Verify(const std::vector<std::string>& groups);
  void Watch(const std::string& group, uint32_t rank, RankProcess* process);
  void KillIfSeen();
  void ShowEnds(const std::vector<RankProcess*>& ranks);
  void Record(RankProcess* reader);

  absl::StatusOr<std::vector<ShardChecksum>> ChecksumsOf(const std::vector<std::string>& groups);
  absl::Status MeasureMemory(bool baseline);

  const DemoSceneOptions options_;
  ProgressScreen* const screen_;
  DemoReport* const report_;
  std::unique_ptr<LocalCluster> cluster_;
  ExpectedChecksums expected_;
  DemoMemory memory_;
  std::vector<std::string> rollouts_;          // the groups
  std::string version_;                        // the last published, "2 (#1.2)"
  std::map<std::string, ObservedFill> fills_;  // by reader, of the update under way
  std::map<std::string, ReaderProgress> shown_;
};

}  // namespace th

#endif  // TH_DEMO_DEMO_SCENE_H_
