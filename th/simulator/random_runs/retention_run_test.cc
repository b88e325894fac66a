// Nothing but verbs, in fleets at random: what the policy keeps stays fetchable (invariant 3).
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/under_sanitizer.h"
#include "th/simulator/cluster.h"
#include "th/simulator/random_runs/retention_watch.h"
#include "th/simulator/random_runs/simulated_group.h"

namespace th {
namespace {

using ::testing::AnyOf;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const uint64_t kSeeds = testing::UnderSanitizer() ? 10 : 60;  // no more is to be found out
constexpr absl::Duration kRun = absl::Seconds(20);
constexpr uint64_t kOffloadLimitBytes = uint64_t{1} << 40;

// How much every rank may copy, and how fast; kOftenRefused: as much as it likes, but now and then
// the host has no memory for a copy of which it had said that there would be some.
enum class Copies : uint8_t { kAny, kOneAndSlowly, kOftenRefused };
// Another number for each rank, so that it is mostly one of a group that is refused.
constexpr uint64_t kFewestCopiesPerRefusal = 2;

// How the unpublishes of ranks have ended, and how many did so.
using UnpublishEnds = std::map<absl::StatusCode, uint64_t>;

// Want of room ends an unpublish at once or when its time is over, by when there was none.
absl::StatusCode EndOf(const absl::Status& status) {
  const bool no_room = absl::IsDeadlineExceeded(status) &&
                       absl::StrContains(status.message(), "it waited for room to offload");
  return no_room ? absl::StatusCode::kFailedPrecondition : status.code();
}

// A trainer and some rollouts that keep what is retained, and a trainer's word of the policy.
class VoluntaryRun {
 public:
  explicit VoluntaryRun(uint64_t seed, Copies copies = Copies::kAny)
      : random_(seed),
        shards_(static_cast<uint32_t>(1 + random_.Below(3))),
        copies_(copies),
        cluster_(Spec(seed)) {
    auto trainer = std::make_unique<SimulatedTrainer>(&cluster_, Ranks("trainer"), random_.Fork());
    trainer->NeverRollBack();
    groups_.push_back(std::move(trainer));
    for (uint64_t i = 1 + random_.Below(3); i > 0; --i) {
      groups_.push_back(std::make_unique<SimulatedRollout>(
          &cluster_, Ranks(absl::StrCat("rollout-", i)), random_.Fork()));
    }
    for (const auto& group : groups_) {
      group->SetOnRetention(OnRetention::kOffload);
      group->Begin();
    }
  }

  // The versions that copies have saved.
  uint64_t Run() {
    const auto keep = static_cast<uint32_t>(1 + random_.Below(3));
    SetRetention(keep);
    RetentionWatch watch(&cluster_, keep, shards_);
    cluster_.RunUntil(
        [&] {
          watch.Look();
          return false;
        },
        kRun);
    return watch.versions_saved();
  }
  // Runs without the watch: versions that are kept may be lost.
  void RunUnwatched() {
    SetRetention(static_cast<uint32_t>(1 + random_.Below(3)));
    cluster_.Run(kRun);
  }
  // Now and then the server dies, and another comes after a while.
  void RestartServers() {
    const absl::Duration up = random_.Between(absl::Seconds(1), absl::Seconds(6));
    const absl::Duration away = random_.Between(absl::Milliseconds(100), absl::Seconds(4));
    cluster_.Post(up, [this] { cluster_.server().Kill(); });
    cluster_.Post(up + away, [this] {
      cluster_.server().Start();
      RestartServers();
    });
  }
  void AddUnpublishEnds(UnpublishEnds& ends) const {
    for (const auto& worker : cluster_.workers()) {
      for (const auto& [call, done] : worker->done) {
        if (done.kind == OperationKind::kUnpublish) ++ends[EndOf(done.status)];
      }
    }
  }
  const std::vector<std::string>& violations() { return cluster_.checker().violations(); }
  // The number of offload buffers that are there now, of all workers.
  size_t copies() const {
    size_t copies = 0;
    for (const auto& worker : cluster_.workers()) copies += worker->copies().size();
    return copies;
  }
  // The policy is taken back, and nobody calls anything any more.
  void EndRetention() {
    for (const auto& group : groups_) group->Rest();
    SetRetention(0);
    cluster_.Run(absl::Seconds(70));  // longer than a copy may take
  }

 private:
  ClusterSpec Spec(uint64_t seed) {
    ClusterSpec spec;
    spec.seed = seed;
    spec.jitter = random_.Between(absl::ZeroDuration(), absl::Milliseconds(3));
    spec.segment_count = 4 + random_.Below(12);
    const double bytes = static_cast<double>(spec.segment_count * spec.segment_bytes);
    spec.fabric.host_rate = bytes * static_cast<double>(1 + random_.Below(20));
    spec.fabric.same_host_rate = spec.fabric.host_rate * 8;
    if (copies_ == Copies::kOneAndSlowly) {
      shard_bytes_ = static_cast<uint64_t>(bytes);
      spec.fabric.same_host_rate = bytes * static_cast<double>(1 + random_.Below(4));
    }
    return spec;
  }
  std::vector<WorkerSpec> Ranks(const std::string& group) {
    std::vector<WorkerSpec> specs;
    for (uint32_t rank = 0; rank < shards_; ++rank) {
      WorkerSpec spec;
      spec.name = {group, Rank(rank)};
      spec.ranks = shards_;
      spec.shard = static_cast<int>(rank);
      spec.location.host = absl::StrCat("h", random_.Below(4));
      spec.offload_limit_bytes =
          copies_ == Copies::kOneAndSlowly ? shard_bytes_ : kOffloadLimitBytes;
      if (copies_ == Copies::kOftenRefused) {
        spec.copies_refused_every = kFewestCopiesPerRefusal + rank;
      }
      specs.push_back(std::move(spec));
    }
    return specs;
  }
  void SetRetention(uint32_t keep_latest) {
    SimulatedWorker* by = groups_.front()->ranks().front();
    cluster_.RunUntil([&] { return by->ready(); }, absl::Seconds(10));
    RunCommand command;
    command.idempotency_key = absl::StrCat("keep ", keep_latest);
    command.command = th::SetRetention{.keep_latest = keep_latest};
    const CallId call = by->Command(std::move(command));
    cluster_.RunUntil([&] { return by->commands.contains(call); }, absl::Seconds(10));
  }

  SeededRandom random_;
  const uint32_t shards_;
  const Copies copies_;
  uint64_t shard_bytes_ = 0;
  Cluster cluster_;
  std::vector<std::unique_ptr<SimulatedGroup>> groups_;
};

TEST(RetentionRunTest, WhatThePolicyKeepsIsNeverLostByVerbsAlone) {
  uint64_t saved = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    VoluntaryRun run(seed);
    saved += run.Run();
    ASSERT_THAT(run.violations(), IsEmpty()) << "seed " << seed;
  }
  EXPECT_GE(saved, kSeeds) << "else the runs have not come near it";
}

TEST(RetentionRunTest, WhatThePolicyKeepsIsNotLostWhileTheServerIsAwayEither) {
  uint64_t saved = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    VoluntaryRun run(seed);
    run.RestartServers();
    saved += run.Run();
    EXPECT_THAT(run.violations(), IsEmpty()) << "seed " << seed;
  }
  EXPECT_GE(saved, kSeeds) << "else the runs have not come near it";
}

// An unpublish ends well, or for want of room and with the buffer still published.
TEST(RetentionRunTest, WithRoomForOneSlowCopyNothingIsLostEither) {
  UnpublishEnds ends;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    VoluntaryRun run(seed, Copies::kOneAndSlowly);
    run.Run();
    ASSERT_THAT(run.violations(), IsEmpty()) << "seed " << seed;
    run.AddUnpublishEnds(ends);
  }
  EXPECT_GE(ends[absl::StatusCode::kOk], kSeeds);
  EXPECT_GE(ends[absl::StatusCode::kFailedPrecondition], kSeeds) << "else there was always room";
  EXPECT_THAT(ends, SizeIs(2));
}

// One rank cannot make the copy that the server has asked its group for: that ends the copies of
// all ranks, the buffers stay published, and the next try may do.
TEST(RetentionRunTest, AGroupOfWhichARankHasNoMemoryForItsCopyLosesNothing) {
  UnpublishEnds ends;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    VoluntaryRun run(seed, Copies::kOftenRefused);
    run.Run();
    ASSERT_THAT(run.violations(), IsEmpty()) << "seed " << seed;
    run.AddUnpublishEnds(ends);
  }
  EXPECT_GE(ends[absl::StatusCode::kOk], kSeeds);
  EXPECT_GE(ends[absl::StatusCode::kResourceExhausted], kSeeds) << "else nothing was refused";
  EXPECT_THAT(ends, SizeIs(2));
}

// The trainer goes on, though what is retained may be lost. Who called shortly before the server
// went, and hears it only in its last moment, is out of time. Where another rank has unpublished
// before the server named the version, the publish has failed for all, and the unpublish says so.
TEST(RetentionRunTest, WithRoomForOneSlowCopyAnUnpublishEndsWithoutAServerToo) {
  UnpublishEnds ends;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    VoluntaryRun run(seed, Copies::kOneAndSlowly);
    run.RestartServers();
    run.RunUnwatched();
    ASSERT_THAT(run.violations(), IsEmpty()) << "seed " << seed;
    run.AddUnpublishEnds(ends);
  }
  EXPECT_GE(ends[absl::StatusCode::kOk], kSeeds);
  const uint64_t late_or_lost =
      ends[absl::StatusCode::kDeadlineExceeded] + ends[absl::StatusCode::kUnavailable];
  EXPECT_LT(late_or_lost * 20, ends[absl::StatusCode::kOk]) << "these are the exception";
  for (const auto& [code, count] : ends) {
    EXPECT_THAT(code, AnyOf(absl::StatusCode::kOk, absl::StatusCode::kFailedPrecondition,
                            absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kUnavailable))
        << count;
  }
}

TEST(RetentionRunTest, NoCopyOutlivesItsRetention) {
  for (uint64_t seed = 1; seed <= kSeeds / 10; ++seed) {
    VoluntaryRun run(seed);
    run.Run();
    run.EndRetention();
    EXPECT_EQ(run.copies(), 0u) << "seed " << seed;
    ASSERT_THAT(run.violations(), IsEmpty()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace th
