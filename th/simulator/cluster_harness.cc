#include "th/simulator/cluster_harness.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

ClusterSpec HarnessSpec(absl::Duration stopping_time) {
  ClusterSpec spec;
  spec.stopping_time = stopping_time;
  spec.segment_count = kHarnessSegments;
  spec.fabric.host_rate =
      static_cast<double>(spec.segment_bytes) / absl::ToDoubleSeconds(kHarnessSegmentTime);
  spec.fabric.same_site_latency = kHarnessLatency;
  spec.replicator.request_bytes = spec.segment_bytes;
  spec.endpoints = 2;
  return spec;
}

}  // namespace

void PrintTo(const OperationDone& done, std::ostream* os) {
  *os << "call " << done.call << " outcome " << static_cast<int>(done.outcome) << ", reason "
      << static_cast<int>(done.not_available) << ", " << done.status;
}

ClusterHarness::ClusterHarness(absl::Duration stopping_time)
    : cluster_(HarnessSpec(stopping_time)) {}

ClusterHarness::~ClusterHarness() {
  EXPECT_THAT(cluster_.checker().violations(), ::testing::IsEmpty());
}

SimulatedWorker* ClusterHarness::JoinRank(const RankName& name, uint32_t ranks) {
  return JoinRank(name, ranks, static_cast<int>(name.rank.value));
}

SimulatedWorker* ClusterHarness::StartRank(const RankName& name, uint32_t ranks, int shard) {
  WorkerSpec spec;
  spec.name = name;
  spec.ranks = ranks;
  spec.shard = shard;
  spec.location.host = absl::StrCat("n", cluster_.workers().size());
  spec.offload_limit_bytes = uint64_t{1} << 40;  // room for every copy
  return cluster_.Start(std::move(spec));
}

SimulatedWorker* ClusterHarness::JoinRank(const RankName& name, uint32_t ranks, int shard) {
  SimulatedWorker* rank = StartRank(name, ranks, shard);
  EXPECT_TRUE(RunUntil([&] { return rank->ready() || rank->ended().has_value(); }));
  return rank;
}

std::vector<SimulatedWorker*> ClusterHarness::JoinGroup(const std::string& group, uint32_t ranks) {
  std::vector<SimulatedWorker*> joined;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    joined.push_back(JoinRank({group, Rank(rank)}, ranks));
  }
  return joined;
}

CallId ClusterHarness::Publish(SimulatedWorker* rank, const std::string& label) {
  EXPECT_EQ(rank->state(), BufferState::kWritable) << "would write into a buffer that is frozen";
  return rank->Publish(label, /*content=*/label);
}

std::vector<OperationDone> ClusterHarness::Await(const std::vector<SimulatedWorker*>& ranks,
                                                 const std::vector<CallId>& calls) {
  EXPECT_TRUE(RunUntil([&] {
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (!ranks[i]->done.contains(calls[i])) return false;
    }
    return true;
  })) << "an operation has no end";
  std::vector<OperationDone> done;
  for (size_t i = 0; i < ranks.size(); ++i) done.push_back(ranks[i]->done[calls[i]]);
  return done;
}

std::vector<OperationDone> ClusterHarness::PublishAll(const std::vector<SimulatedWorker*>& ranks,
                                                      const std::string& label) {
  std::vector<CallId> calls;
  calls.reserve(ranks.size());
  for (SimulatedWorker* rank : ranks) calls.push_back(Publish(rank, label));
  return Await(ranks, calls);
}

std::vector<OperationDone> ClusterHarness::UpdateAll(const std::vector<SimulatedWorker*>& ranks,
                                                     const VersionSelector& selector) {
  std::vector<CallId> calls;
  calls.reserve(ranks.size());
  for (SimulatedWorker* rank : ranks) calls.push_back(rank->Update(selector));
  return Await(ranks, calls);
}

std::vector<OperationDone> ClusterHarness::UnpublishAll(
    const std::vector<SimulatedWorker*>& ranks) {
  std::vector<CallId> calls;
  calls.reserve(ranks.size());
  for (SimulatedWorker* rank : ranks) calls.push_back(rank->Unpublish());
  return Await(ranks, calls);
}

CommandFinished ClusterHarness::RunCommandOf(SimulatedWorker* rank, const RunCommand& command) {
  const CallId call = rank->Command(command);
  EXPECT_TRUE(RunUntil([&] { return rank->commands.contains(call); }));
  return rank->commands[call];
}

}  // namespace th
