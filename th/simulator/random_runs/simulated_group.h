// A training or serving framework in a simulation, and what it does with its ranks: it starts them,
// calls the verbs in a loop on all of them, starts dead ones again.
//
// A trainer publishes, lets others read, unpublishes, "computes", publishes the next step; now and
// then its ranks wait neither for each other nor for readers, or it rolls back and publishes other
// content under labels that were used. A rollout updates in a loop. A dead trainer rank takes its
// whole group along, as training jobs do; a dead rollout rank joins its group again.
#ifndef TH_SIMULATOR_RANDOM_RUNS_SIMULATED_GROUP_H_
#define TH_SIMULATOR_RANDOM_RUNS_SIMULATED_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "th/simulator/cluster.h"
#include "th/simulator/seeded_random.h"

namespace th {

// How often a framework looks at its ranks.
inline constexpr absl::Duration kGroupPoll = absl::Milliseconds(20);

class SimulatedGroup {
 public:
  // `ranks` gives the spec of each rank. `cluster` outlives the group.
  SimulatedGroup(Cluster* cluster, std::vector<WorkerSpec> ranks, SeededRandom random);
  virtual ~SimulatedGroup() = default;

  void Begin();
  // Sets the option of its calls from the next start of a rank on; kDrop until told otherwise.
  void SetOnRetention(OnRetention on_retention) { on_retention_ = on_retention; }
  // The same for the ranks that live, too.
  void DropFromNowOn();
  // Likewise; kWait until told otherwise.
  void SetWhenSeeding(WhenSeeding when_seeding) { when_seeding_ = when_seeding; }
  // No further call is begun; ranks that are dead stay dead.
  void Rest() { resting_ = true; }
  const std::vector<SimulatedWorker*>& ranks() const { return ranks_; }
  std::string Name() const { return specs_.front().name.group; }
  // How each rank is, for people.
  std::string Describe() const;
  // The version of the latest publish or update that ended well on every rank.
  VersionSequence newest() const { return newest_; }
  // Calls of ranks; one that found nothing available is done.
  uint64_t operations_done() const { return operations_done_; }
  uint64_t operations_failed() const { return operations_failed_; }

 protected:
  // The subject of an operation: the group's buffers, or copies and streams beside them.
  enum class About : uint8_t { kOwn, kBeside };
  // All ranks live and wait for nothing: the next thing to do.
  virtual void Act() = 0;
  // All ranks live, and some wait for something: what an impatient caller does.
  virtual void ActEarly() {}
  virtual bool restarts_together() const = 0;
  virtual void Restarted() {}  // after ranks were started again

  Cluster& cluster() const { return *cluster_; }
  SeededRandom& random() { return random_; }
  // A verb of each rank, in its own time, within a moment. It may begin several operations; what is
  // waited for, and what LastWentWell() answers for, is the one of `kind` on `about`.
  void OnEachRank(OperationKind kind, const std::function<void(SimulatedWorker*)>& verb,
                  About about = About::kOwn);
  // An operation of all ranks; readers have `drain` to finish.
  void UnpublishAll(absl::Duration drain);
  // Buffers that an update has left undefined may be written again.
  void ResetUndefined();
  OperationKind latest_kind() const { return latest_kind_; }
  void Pause(absl::Duration shortest, absl::Duration longest);
  bool AnyIs(BufferState state) const;
  bool AllAre(BufferState state) const;
  // True when the latest operation has ended well on every rank.
  bool LastWentWell() const { return ended_well_ == ranks_.size(); }

 private:
  void Poll();
  bool Idle() const;
  // True if some rank is dead: nothing else is done then.
  bool StartDeadOnesAgain();
  void StartRank(size_t index);
  void Heard(const SimulatedWorker& rank, const OperationDone& done);

  Cluster* const cluster_;
  const std::vector<WorkerSpec> specs_;
  SeededRandom random_;
  std::vector<SimulatedWorker*> ranks_;
  OnRetention on_retention_ = OnRetention::kDrop;
  WhenSeeding when_seeding_ = WhenSeeding::kWait;
  bool resting_ = false;
  absl::Time restart_at_ = absl::InfiniteFuture();
  absl::Time act_at_;
  OperationKind latest_kind_ = OperationKind::kPublish;
  About latest_about_ = About::kOwn;
  size_t ended_well_ = 0;  // ranks, of the latest operation
  VersionSequence newest_;
  uint64_t operations_done_ = 0, operations_failed_ = 0;
};

class SimulatedTrainer : public SimulatedGroup {
 public:
  using SimulatedGroup::SimulatedGroup;

  void NeverRollBack() { rolls_back_ = false; }
  // Some step that it has published in this lineage; 0: none.
  uint64_t APublishedStep(uint64_t choice) const {
    return published_steps_.empty() ? 0 : published_steps_[choice % published_steps_.size()];
  }
  // From now on a server that has lost its state may know of a roll-back and not where it went: a
  // group that is refused for it is started again.
  void RestartWhereRolledBack() { restarts_where_rolled_back_ = true; }
  // Somebody else has: it goes on from there once it is started again.
  void WasRolledBackTo(uint64_t step);
  // From its next publish on it lets others read for good, unless a liar publishes after it.
  void KeepPublished() {
    keeps_published_ = true;
    keeps_beyond_ = newest();
  }
  // The label that it has published and lets others read; empty: nothing now.
  std::string published_label() const;
  const std::string& published_content() const { return content_; }

 protected:
  void Act() override;
  void ActEarly() override;
  bool restarts_together() const override { return true; }
  void Restarted() override;

 private:
  struct RollBackUnderWay {
    SimulatedWorker* by;
    CallId call;
    uint64_t to_step;
  };
  bool IsRefusedAsRolledBack() const;
  bool IsOutbid() const;  // somebody who lies has published after it
  void PublishNextStep();
  void RollBackSomewhere();
  void FinishRollBack();

  uint64_t step_ = 0;
  uint64_t contents_ = 0;  // no two publishes have the same one
  std::string content_;
  bool rolls_back_ = true;
  bool restarts_where_rolled_back_ = false;
  bool keeps_published_ = false;
  // A label that it has published before may be the version that it was: that is not kept.
  VersionSequence keeps_beyond_;
  bool resumes_ = false;     // loads the latest version before it goes on
  bool has_loaded_ = false;  // because a publish was refused, and none has gone well since
  bool latest_was_publish_ = false;
  bool kept_ = false;                      // the latest publish was begun to be kept
  std::vector<uint64_t> published_steps_;  // of this lineage
  std::optional<RollBackUnderWay> roll_back_;
};

// Publishes what a trainer has published, under the same label; now and then its bytes are others,
// and it says that they are the same.
class SimulatedTwin : public SimulatedGroup {
 public:
  // `original` outlives it and has as many ranks.
  SimulatedTwin(Cluster* cluster, std::vector<WorkerSpec> ranks, const SimulatedTrainer* original,
                SeededRandom random)
      : SimulatedGroup(cluster, std::move(ranks), random), original_(original) {}

 protected:
  void Act() override;
  bool restarts_together() const override { return true; }

 private:
  const SimulatedTrainer* const original_;
  std::string last_content_;  // that it has published, or tried to
};

class SimulatedRollout : public SimulatedGroup {
 public:
  using SimulatedGroup::SimulatedGroup;

  // It does so now and then; never until told so.
  void Stages() { stages_ = true; }
  void Receives() { receives_ = true; }
  uint64_t staged() const { return staged_; }  // by all ranks of the group
  uint64_t applied() const { return applied_; }

 protected:
  void Act() override;
  bool restarts_together() const override { return false; }
  void Restarted() override { latest_ = Beside::kNothing; }

 private:
  enum class Beside : uint8_t { kNothing, kStage, kApply };
  // True: it has begun something.
  bool ActOnStaged();
  void Update();
  // One rank's caller may cancel the call that the group has just begun.
  void MaybeCancel();
  void Stage();
  void Receive();
  SegmentSet DrawWanted(uint64_t segment_count);
  ReceiveSpec DrawReceive(uint64_t segment_count);

  bool stages_ = false, receives_ = false;
  Beside latest_ = Beside::kNothing;  // that all ranks were told to do, and has not been looked at
  uint64_t staged_ = 0, applied_ = 0;
};

}  // namespace th

#endif  // TH_SIMULATOR_RANDOM_RUNS_SIMULATED_GROUP_H_
