// The watch of the server distinguishes claims that the server takes from those that it refuses.
#include "th/simulator/server_watch.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/simulator/cluster_harness.h"
#include "th/weights/checksum.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A publisher that has claimed other sums than the version turns out to have, and is given to a
// reader as a source.
class ClaimedChecksumsTest : public ::testing::Test {
 protected:
  void ClaimOtherChecksums(ServerWatch::Outcome outcome) {
    watch_.Heard(
        *trainer_,
        ShardSealed{trainer_->buffer_id(), kVersion, RootOfChecksums({SegmentChecksum{7}})},
        outcome);
  }
  void TheTrueRootIsKnown() {
    const Digest layout = cluster_.cluster().LayoutOf(reader_->spec().shard)->digest();
    watch_.Said(
        *reader_,
        RootKnown{kVersion, {.layout = layout, .root = RootOfChecksums({SegmentChecksum{1}})}}, {});
  }
  void ThePublisherIsGiven() {
    AssignedSource source;
    source.buffer = {trainer_->session().worker(), trainer_->buffer_id()};
    source.endpoints = {{.address = "w0:1", .transport = kSimulatedTransport, .site = ""}};
    source.generation = BufferGeneration(1);
    source.publisher = true;
    AssignSources assigned;
    assigned.key.buffer = reader_->buffer_id();
    assigned.version = kVersion;
    assigned.sources = {source};
    watch_.Said(*reader_, assigned, {});
  }

  static constexpr VersionSequence kVersion{9};
  ClusterHarness cluster_;
  SimulatedWorker* const trainer_ = cluster_.JoinRank({"trainer", Rank(0)}, 1);
  SimulatedWorker* const reader_ = cluster_.JoinRank({"rollout", Rank(0)}, 1);
  ServerWatch watch_{&cluster_.cluster()};
};

TEST_F(ClaimedChecksumsTest, WhoseClaimTheServerTookIsNoSource) {
  ClaimOtherChecksums({});
  TheTrueRootIsKnown();
  ThePublisherIsGiven();
  EXPECT_THAT(cluster_.TakeViolations(), ElementsAre(HasSubstr("has other sums than the version")));
}

TEST_F(ClaimedChecksumsTest, AClaimThatTheServerRefusedIsNone) {
  ClaimOtherChecksums({.refused = true});
  TheTrueRootIsKnown();
  ThePublisherIsGiven();
  EXPECT_THAT(cluster_.TakeViolations(), IsEmpty());
}

}  // namespace
}  // namespace th
