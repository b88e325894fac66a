// All ranks of a group that reads a whole model, in one process: what `th pull` and
// `tensorhub_worker follow` are.
//
//   TH_ASSIGN_OR_RETURN(auto readers, ReaderGroup::Join({.client = options}, model));
//   readers->UpdateAsync(version, {}, [](absl::StatusOr<GroupUpdate> result) { ... });
//   ...
//   TH_RETURN_IF_ERROR(readers->Leave());
//
// Thread-safe as far as the client is.
#ifndef TH_WORKER_READER_GROUP_H_
#define TH_WORKER_READER_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "th/client/client.h"
#include "th/weights/version.h"
#include "th/worker/model_memory.h"
#include "th/worker/version_shards.h"

namespace th {

// The layouts of all shards. Errors of Controller::GetLayout.
absl::StatusOr<std::vector<ShardLayout>> FetchLayouts(Controller& controller,
                                                      const VersionShards& shards);

// The results of the ranks' updates together.
struct GroupUpdate {
  std::vector<UpdateResult> ranks;

  const UpdateResult& first() const { return ranks.front(); }  // all have one outcome and version
  uint64_t bytes_received() const;
  uint32_t reroutes() const;
  absl::Duration stall() const;  // summed over the ranks
  absl::Duration longest_stall() const;
};

struct ReaderGroupOptions {
  ClientOptions client;  // rank and ranks are filled in: one a shard
  std::string buffer_name = "weights";
  std::string form = kDefaultForm;
  bool log_readers = false;  // a line for each reader of what the group holds
};

// After the deadline of a notice: for readers to end the segment under way.
inline constexpr absl::Duration kPreemptMargin = absl::Seconds(2);

struct GroupUpdateOptions {
  VersionSequence floor;
  absl::Duration timeout = absl::Minutes(10);
  WhenSeeding when_seeding = WhenSeeding::kWait;
  // On a TensorHub thread.
  std::function<void(uint32_t rank, const UpdateProgress&)> on_progress;
};

struct GroupStageOptions {
  absl::Duration timeout = absl::Minutes(10);
  WhenSeeding when_seeding = WhenSeeding::kWait;  // of a stage
};

class ReaderGroup {
 public:
  // Joins a rank a shard of `model`, whose memory outlives the group, and registers it. Errors of
  // Client::Join and Register.
  static absl::StatusOr<std::unique_ptr<ReaderGroup>> Join(const ReaderGroupOptions& options,
                                                           const ModelMemory& model);

  // `done` runs once, on a TensorHub thread. The error is the first rank's that has one.
  void UpdateAsync(const VersionSelector& version, const GroupUpdateOptions& options,
                   ResultCallback<GroupUpdate> done);
  // Into spare memory, and from there into the ranks' buffers: see WeightBuffer.
  void StageAsync(const VersionSelector& version, const GroupStageOptions& options,
                  ResultCallback<GroupUpdate> done);
  void ApplyAsync(const GroupStageOptions& options, ResultCallback<GroupUpdate> done);
  // A notice for all ranks, which leave at `deadline`: see Client::Preempt. Returns when they have,
  // kPreemptMargin after it at the latest. The first rank's error.
  absl::Status Preempt(absl::Time deadline);
  // OK while all memberships live; else why the first of them ended.
  absl::Status membership() const;
  // True when the server knows of all ranks just now: see Client::connected.
  bool connected() const;
  // Ends what is under way with CANCELLED. The first rank's error.
  absl::Status Leave();

 private:
  struct Member {
    std::unique_ptr<Client> client;
    WeightBuffer weights;
  };
  // Starts one call a rank; `done` gets what they come to together.
  using StartOne = std::function<void(WeightBuffer&, ResultCallback<UpdateResult>)>;
  void OnAll(const StartOne& start, ResultCallback<GroupUpdate> done);

  std::vector<Member> members_;
};

}  // namespace th

#endif  // TH_WORKER_READER_GROUP_H_
