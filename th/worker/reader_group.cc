#include "th/worker/reader_group.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "th/status/status_macros.h"
#include "th/worker/reader_log.h"

namespace th {
namespace {

// Collects the ranks' results and passes them on when the last is there.
class Collector {
 public:
  Collector(size_t ranks, ResultCallback<GroupUpdate> done)
      : missing_(ranks), done_(std::move(done)) {
    update_.ranks.resize(ranks);
  }

  void Add(size_t rank, absl::StatusOr<UpdateResult> result) {
    {
      absl::MutexLock lock(&mutex_);
      if (result.ok()) {
        update_.ranks[rank] = *std::move(result);
      } else {
        status_.Update(result.status());
      }
      if (--missing_ > 0) return;
    }
    // The last one: nobody else comes any more.
    if (status_.ok()) {
      done_(std::move(update_));
    } else {
      done_(status_);
    }
  }

 private:
  absl::Mutex mutex_;
  size_t missing_ ABSL_GUARDED_BY(mutex_);
  GroupUpdate update_;
  absl::Status status_;
  ResultCallback<GroupUpdate> done_;
};

}  // namespace

absl::StatusOr<std::vector<ShardLayout>> FetchLayouts(Controller& controller,
                                                      const VersionShards& shards) {
  std::vector<ShardLayout> layouts;
  for (const SealedShard& shard : shards.shards) {
    TH_ASSIGN_OR_RETURN(ShardLayout layout, controller.GetLayout(shard.layout));
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

uint64_t GroupUpdate::bytes_received() const {
  uint64_t bytes = 0;
  for (const UpdateResult& rank : ranks) bytes += rank.bytes_received;
  return bytes;
}

uint32_t GroupUpdate::reroutes() const {
  uint32_t reroutes = 0;
  for (const UpdateResult& rank : ranks) reroutes += rank.reroutes;
  return reroutes;
}

absl::Duration GroupUpdate::stall() const {
  absl::Duration stall;
  for (const UpdateResult& rank : ranks) stall += rank.stall();
  return stall;
}

absl::Duration GroupUpdate::longest_stall() const {
  absl::Duration longest;
  for (const UpdateResult& rank : ranks) longest = std::max(longest, rank.stall());
  return longest;
}

absl::StatusOr<std::unique_ptr<ReaderGroup>> ReaderGroup::Join(const ReaderGroupOptions& options,
                                                               const ModelMemory& model) {
  auto group = std::make_unique<ReaderGroup>();
  const std::vector<ShardLayout>& layouts = model.layouts();
  for (uint32_t rank = 0; rank < layouts.size(); ++rank) {
    ClientOptions client = options.client;
    client.rank = rank;
    client.ranks = static_cast<uint32_t>(layouts.size());
    if (options.log_readers) client.on_reader = LogReaders(absl::StrCat(client.group, "/", rank));
    Member& member = group->members_.emplace_back();
    TH_ASSIGN_OR_RETURN(member.client, Client::Join(std::move(client)));
    if (options.log_readers && rank == 0) LogLeftOut(*member.client);
    TH_ASSIGN_OR_RETURN(member.weights,
                        member.client->Register(
                            model.TensorsOfShard(rank),
                            {.name = options.buffer_name,
                             .form = options.form,
                             .segment_bytes = layouts[rank].segment_bytes(),
                             .checksums = layouts[rank].checksum() != ChecksumAlgorithm::kNone}));
    if (member.weights.layout_digest() != layouts[rank].digest()) {
      return absl::InternalError(absl::StrCat("shard ", layouts[rank].digest().ShortHex(),
                                              " became the layout ",
                                              member.weights.layout_digest().ShortHex()));
    }
  }
  return group;
}

void ReaderGroup::UpdateAsync(const VersionSelector& version, const GroupUpdateOptions& options,
                              ResultCallback<GroupUpdate> done) {
  // Shared by the callbacks of the ranks: the last one to come ends it.
  auto collector = std::make_shared<Collector>(members_.size(), std::move(done));
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    UpdateOptions update{
        .floor = options.floor, .timeout = options.timeout, .when_seeding = options.when_seeding};
    if (options.on_progress) {
      update.on_progress = [rank, report = options.on_progress](const UpdateProgress& progress) {
        report(rank, progress);
      };
    }
    members_[rank].weights.UpdateAsync(version, std::move(update),
                                       [collector, rank](absl::StatusOr<UpdateResult> result) {
                                         collector->Add(rank, std::move(result));
                                       });
  }
}

void ReaderGroup::OnAll(const StartOne& start, ResultCallback<GroupUpdate> done) {
  // Shared by the callbacks of the ranks: the last one to come ends it.
  auto collector = std::make_shared<Collector>(members_.size(), std::move(done));
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    start(members_[rank].weights, [collector, rank](absl::StatusOr<UpdateResult> result) {
      collector->Add(rank, std::move(result));
    });
  }
}

void ReaderGroup::StageAsync(const VersionSelector& version, const GroupStageOptions& options,
                             ResultCallback<GroupUpdate> done) {
  OnAll(
      [&](WeightBuffer& weights, ResultCallback<UpdateResult> one) {
        weights.StageAsync(version,
                           {.timeout = options.timeout, .when_seeding = options.when_seeding},
                           std::move(one));
      },
      std::move(done));
}

void ReaderGroup::ApplyAsync(const GroupStageOptions& options, ResultCallback<GroupUpdate> done) {
  OnAll(
      [&](WeightBuffer& weights, ResultCallback<UpdateResult> one) {
        weights.ApplyAsync({.timeout = options.timeout}, std::move(one));
      },
      std::move(done));
}

absl::Status ReaderGroup::membership() const {
  for (const Member& member : members_) TH_RETURN_IF_ERROR(member.client->membership());
  return absl::OkStatus();
}

bool ReaderGroup::connected() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.client->connected(); });
}

absl::Status ReaderGroup::Preempt(absl::Time deadline) {
  absl::Status status;
  for (Member& member : members_) {
    if (member.client != nullptr) status.Update(member.client->Preempt(deadline));
  }
  for (Member& member : members_) {
    if (member.client == nullptr) continue;
    (void)member.client->AwaitEnded(deadline - absl::Now() + kPreemptMargin);
  }
  return status;
}

absl::Status ReaderGroup::Leave() {
  absl::Status status;
  for (Member& member : members_) {
    if (member.client != nullptr) status.Update(member.client->Leave());
  }
  return status;
}

}  // namespace th
