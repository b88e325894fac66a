// A server that is killed and comes back with an empty, an older or another state directory: its
// fleet comes back by itself, and nobody's process ends. LOST_STATE_READERS is how many readers it
// has.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/cluster/cluster.h"
#include "testing/status_matchers.h"
#include "th/status/status_macros.h"

namespace th::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kUsualReaders = 4;
// From the start of the server until everybody is back and can fetch.
constexpr absl::Duration kBackAfter = absl::Seconds(10);
// Longer than the time that a member may be silent.
constexpr absl::Duration kLease = absl::Seconds(1);

int Readers() {
  const char* const asked = std::getenv("LOST_STATE_READERS");
  int readers = kUsualReaders;
  if (asked != nullptr && !absl::SimpleAtoi(asked, &readers)) ADD_FAILURE() << asked;
  return readers;
}

struct StateLoss {
  const char* name;
  // Changes the state directory while the server does not run. An early copy of it lies at
  // `backup`, a copy of another server's at `backup`-of-another.
  void (*change)(const std::string& state_dir, const std::string& backup);
};

class LostStateTest : public ::testing::TestWithParam<StateLoss> {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(cluster_,
                         Cluster::Start({absl::StrCat("--lease=", absl::FormatDuration(kLease))}));
    backup_ = cluster_->state_dir() + "-backup";
    fs::copy(cluster_->state_dir(), backup_);
    {
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Cluster> another, Cluster::Start());
      fs::copy(another->state_dir(), backup_ + "-of-another");
    }
    // The copy does not know of these two openings.
    ASSERT_OK(cluster_->RestartServer());
    ASSERT_OK(cluster_->RestartServer());
    ASSERT_OK_AND_ASSIGN(trainer_, Join("trainer", /*load=*/true));
    ASSERT_OK(cluster_->SendToRanks({trainer_}, Publish("v1")));
    const int readers = Readers();
    for (int i = 0; i < readers; ++i) {
      ASSERT_OK_AND_ASSIGN(RankProcess * reader, Join(absl::StrCat("rollout-", i)));
      readers_.push_back(reader);
    }
    ASSERT_OK(cluster_->SendToRanks(readers_, Update("latest")));
  }
  void TearDown() override {
    fs::remove_all(backup_);
    fs::remove_all(backup_ + "-of-another");
  }

  absl::StatusOr<RankProcess*> Join(const std::string& group, bool load = false) {
    return cluster_->Join({.group = group, .load = load});
  }
  // The server is killed, its state changes, and it starts again.
  void LoseState() {
    ASSERT_OK(cluster_->KillServer());
    GetParam().change(cluster_->state_dir(), backup_);
    started_ = absl::Now();
    ASSERT_OK(cluster_->StartServer());
  }
  void ExpectEverybodyBack(const std::vector<RankProcess*>& ranks) {
    ASSERT_OK(cluster_->SendToRanks(ranks, Update("latest")));
    EXPECT_LE(absl::Now() - started_, kBackAfter);
    for (RankProcess* rank : ranks) {
      EXPECT_EQ((*rank->answer())["outcome"], "already there") << rank->name();
    }
  }
  // The versions that are held were announced to the server, and a new one gets a higher sequence.
  void ExpectThatVersionsGoOn(const std::vector<RankProcess*>& ranks) {
    ASSERT_OK_AND_ASSIGN(RankProcess * late, Join("late"));
    ASSERT_OK(cluster_->SendToRanks({late}, Update("v1")));
    EXPECT_EQ((*late->answer())["outcome"], "moved");
    ASSERT_OK(cluster_->SendToRanks({trainer_}, Unpublish()));
    ASSERT_OK(cluster_->SendToRanks({trainer_}, Change(2)));
    ASSERT_OK_AND_ASSIGN(const std::string checksum, cluster_->ChecksumOf(trainer_));
    ASSERT_OK(cluster_->SendToRanks({trainer_}, Publish("v2")));
    ASSERT_OK(cluster_->SendToRanks(ranks, Update("latest")));
    for (RankProcess* rank : ranks) {
      EXPECT_EQ((*rank->answer())["outcome"], "moved") << rank->name();
      EXPECT_THAT(cluster_->ChecksumOf(rank), IsOkAndHolds(checksum)) << rank->name();
    }
  }

  std::unique_ptr<Cluster> cluster_;
  std::string backup_;
  RankProcess* trainer_ = nullptr;
  std::vector<RankProcess*> readers_;
  absl::Time started_;
};

TEST_P(LostStateTest, EverybodyComesBackAndAStoppedMemberToo) {
  readers_[0]->process().Signal(SIGSTOP);
  LoseState();
  const std::vector<RankProcess*> awake(readers_.begin() + 1, readers_.end());
  ExpectEverybodyBack(awake);
  readers_[0]->process().Signal(SIGCONT);
  ASSERT_OK(cluster_->SendToRanks({readers_[0]}, Update("latest")));
  EXPECT_LE(absl::Now() - started_, kBackAfter);
  ExpectThatVersionsGoOn(readers_);
}

TEST_P(LostStateTest, AStoppedProcessDoesNotPutItsReplacementOut) {
  RankProcess* const old = readers_[0];
  old->process().Signal(SIGSTOP);
  LoseState();
  ExpectEverybodyBack({readers_.begin() + 1, readers_.end()});
  ASSERT_OK_AND_ASSIGN(readers_[0], Join("rollout-0"));
  ASSERT_OK(cluster_->SendToRanks({readers_[0]}, Update("latest")));
  old->process().Signal(SIGCONT);
  old->Send(Update("latest"));  // it comes back first, and hears that it was replaced
  EXPECT_FALSE(cluster_->Await({old}, "the end of the old process's membership").ok());
  ExpectThatVersionsGoOn(readers_);
}

// Twice in a row.
TEST_P(LostStateTest, WhatWasLearnedIsKeptAndLearnedAgain) {
  LoseState();
  ASSERT_OK(cluster_->RestartServer());
  ExpectEverybodyBack(readers_);
  LoseState();
  ExpectEverybodyBack(readers_);
  ExpectThatVersionsGoOn(readers_);
}

INSTANTIATE_TEST_SUITE_P(
    States, LostStateTest,
    ::testing::Values(StateLoss{"Empty", [](const std::string& state_dir,
                                            const std::string&) { fs::remove_all(state_dir); }},
                      StateLoss{"Older",
                                [](const std::string& state_dir, const std::string& backup) {
                                  fs::remove_all(state_dir);
                                  fs::copy(backup, state_dir);
                                }},
                      StateLoss{"Another",
                                [](const std::string& state_dir, const std::string& backup) {
                                  fs::remove_all(state_dir);
                                  fs::copy(backup + "-of-another", state_dir);
                                }}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace th::testing
