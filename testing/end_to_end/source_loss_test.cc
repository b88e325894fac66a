// Readers go on when their source is killed, stopped or leaves in mid-transfer.
#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/cluster/cluster.h"
#include "testing/status_matchers.h"
#include "th/status/status_macros.h"

namespace th::testing {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;

// Slow enough that a transfer is caught in the middle, fast enough for a test: 16 MiB in 1.6 s.
constexpr uint64_t kUplink = uint64_t{10} << 20;

// A trainer that has published "v1", and what its bytes are.
struct PublishedTrainer {
  RankProcess* rank = nullptr;
  std::string checksum;
};

class SourceLossTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start()); }

  absl::StatusOr<PublishedTrainer> Publisher(const std::string& group, const std::string& label) {
    PublishedTrainer trainer;
    TH_ASSIGN_OR_RETURN(
        trainer.rank,
        cluster_->Join({.group = group, .uplink_bytes_per_second = kUplink, .load = true}));
    TH_ASSIGN_OR_RETURN(trainer.checksum, cluster_->ChecksumOf(trainer.rank));
    TH_RETURN_IF_ERROR(cluster_->SendToRanks({trainer.rank}, Publish(label)));
    return trainer;
  }
  absl::StatusOr<RankProcess*> Reader(const std::string& group) {
    return cluster_->Join({.group = group, .uplink_bytes_per_second = kUplink});
  }
  // Seconds of one undisturbed update of a fresh reader.
  absl::StatusOr<double> UndisturbedSeconds() {
    TH_ASSIGN_OR_RETURN(RankProcess * reader, Reader("undisturbed"));
    TH_RETURN_IF_ERROR(cluster_->SendToRanks({reader}, Update("latest")));
    const double seconds = (*reader->answer())["seconds"];
    TH_RETURN_IF_ERROR(cluster_->SendToRanks({reader}, json{{"do", "leave"}}));
    return seconds;
  }
  void ExpectMoved(RankProcess* reader, const std::string& checksum) {
    ASSERT_OK(reader->answer().status());
    EXPECT_EQ((*reader->answer())["outcome"], "moved");
    EXPECT_THAT(cluster_->ChecksumOf(reader), IsOkAndHolds(checksum));
  }

  std::unique_ptr<Cluster> cluster_;
};

TEST_F(SourceLossTest, KilledSourceIsReplacedAndNothingIsTorn) {
  ASSERT_OK_AND_ASSIGN(const PublishedTrainer first, Publisher("trainer-a", "v1"));
  ASSERT_OK_AND_ASSIGN(const PublishedTrainer second, Publisher("trainer-b", "v1"));
  ASSERT_EQ(first.checksum, second.checksum);
  ASSERT_OK_AND_ASSIGN(RankProcess * reader, Reader("rollout"));

  reader->Send(Update("latest"));
  ASSERT_OK(cluster_->AwaitFraction(reader, 0.3));
  RankProcess* const source =
      cluster_->SourceOf(reader) == "trainer-a/0" ? first.rank : second.rank;
  source->process().Signal(SIGKILL);
  ASSERT_OK(cluster_->Await({reader}, "the update"));

  ExpectMoved(reader, first.checksum);
}

TEST_F(SourceLossTest, StoppedSourceCostsAtMostASecond) {
  ASSERT_OK_AND_ASSIGN(const PublishedTrainer first, Publisher("trainer-a", "v1"));
  ASSERT_OK_AND_ASSIGN(const PublishedTrainer second, Publisher("trainer-b", "v1"));
  ASSERT_OK_AND_ASSIGN(const double undisturbed, UndisturbedSeconds());
  ASSERT_OK_AND_ASSIGN(RankProcess * reader, Reader("rollout"));

  reader->Send(Update("latest"));
  ASSERT_OK(cluster_->AwaitFraction(reader, 0.3));
  RankProcess* const source =
      cluster_->SourceOf(reader) == "trainer-a/0" ? first.rank : second.rank;
  source->process().Signal(SIGSTOP);
  ASSERT_OK(cluster_->Await({reader}, "the update"));
  source->process().Signal(SIGCONT);

  const double seconds = (*reader->answer())["seconds"];
  ExpectMoved(reader, first.checksum);
  EXPECT_LE(seconds, undisturbed + 1.0);
}

TEST_F(SourceLossTest, ReadersOfAKilledRelayGoOnWithWhatTheyHave) {
  ASSERT_OK_AND_ASSIGN(const PublishedTrainer trainer, Publisher("trainer", "v1"));
  std::vector<RankProcess*> readers;
  for (const char* group : {"rollout-0", "rollout-1", "rollout-2"}) {
    ASSERT_OK_AND_ASSIGN(RankProcess * reader, Reader(group));
    readers.push_back(reader);
    reader->Send(Update("latest"));
  }
  // Somebody reads from a rollout: that one is the relay.
  RankProcess* relay = nullptr;
  ASSERT_OK(cluster_->RunUntil(
      [&] {
        for (RankProcess* reader : readers) {
          if (cluster_->FractionOf(reader) < 0.2) return false;
          for (RankProcess* other : readers) {
            if (cluster_->SourceOf(reader) == other->name()) relay = other;
          }
        }
        return relay != nullptr;
      },
      "a relay in mid-transfer"));
  relay->process().Signal(SIGKILL);
  for (RankProcess* reader : readers) {
    if (reader == relay) continue;
    ASSERT_OK(cluster_->Await({reader}, "the update"));
    ExpectMoved(reader, trainer.checksum);
  }
}

TEST_F(SourceLossTest, OnlySourceThatDiesEndsTheUpdateWithItsNameAndLeavesTheBufferUndefined) {
  ASSERT_OK_AND_ASSIGN(const PublishedTrainer trainer, Publisher("trainer", "v1"));
  ASSERT_OK_AND_ASSIGN(RankProcess * reader, Reader("rollout"));
  reader->Send(Update("latest"));
  ASSERT_OK(cluster_->AwaitFraction(reader, 0.3));
  trainer.rank->process().Signal(SIGKILL);
  const absl::Status status = cluster_->Await({reader}, "the update");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("trainer/0"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("buffer undefined"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank=rollout/0"));
}

TEST_F(SourceLossTest, ReaderOfAnUnpublishedSourceIsCutWithinTheDrainAndTheSourceMayWrite) {
  ASSERT_OK_AND_ASSIGN(const PublishedTrainer first, Publisher("trainer-a", "v1"));
  ASSERT_OK_AND_ASSIGN(const PublishedTrainer second, Publisher("trainer-b", "v1"));
  ASSERT_OK_AND_ASSIGN(RankProcess * reader, Reader("rollout"));
  reader->Send(Update("latest"));
  ASSERT_OK(cluster_->AwaitFraction(reader, 0.2));
  RankProcess* const source =
      cluster_->SourceOf(reader) == "trainer-a/0" ? first.rank : second.rank;
  source->Send({{"do", "unpublish"}, {"drain_seconds", 0.1}});
  ASSERT_OK(cluster_->Await({source}, "the unpublish"));
  // The memory is the trainer's again: other bytes go in while the reader is still filling.
  ASSERT_OK(cluster_->SendToRanks({source}, Change(7)));
  ASSERT_OK(cluster_->Await({reader}, "the update"));
  ExpectMoved(reader, first.checksum);
}

// The trainer feeds reader 0, each reader the next one: nobody may feed two.
class ChainTest : public ::testing::Test {
 protected:
  static constexpr size_t kReaders = 8;
  static constexpr size_t kStopped = 1;  // the second hop

  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start({"--max-readers-per-source=1"}));
    const auto join = [&](const std::string& group, bool load) {
      return cluster_->Join({.group = group, .uplink_bytes_per_second = kUplink, .load = load});
    };
    ASSERT_OK_AND_ASSIGN(trainer_, join("trainer", true));
    ASSERT_OK_AND_ASSIGN(checksum_, cluster_->ChecksumOf(trainer_));
    ASSERT_OK(cluster_->SendToRanks({trainer_}, Publish("v1")));
    for (size_t i = 0; i < kReaders; ++i) {
      ASSERT_OK_AND_ASSIGN(RankProcess * reader, join(absl::StrCat("rollout-", i), false));
      readers_.push_back(reader);
    }
  }
  // Each begins once the one before it receives, so that it reads from that one.
  void BeginAll() {
    std::string source = trainer_->name();
    for (RankProcess* reader : readers_) {
      reader->Send(Update("latest"));
      ASSERT_OK(cluster_->RunUntil([&] { return cluster_->FractionOf(reader) > 0; },
                                   absl::StrCat(reader->name(), " to receive")));
      ASSERT_EQ(cluster_->SourceOf(reader), source);
      source = reader->name();
    }
  }
  static size_t FailuresIn(const json& result) {
    size_t failures = 0;
    for (const json& source : result["sources"]) failures += source["failure"] == "" ? 0 : 1;
    return failures;
  }

  std::unique_ptr<Cluster> cluster_;
  RankProcess* trainer_ = nullptr;
  std::string checksum_;
  std::vector<RankProcess*> readers_;
};

TEST_F(ChainTest, ExactlyOneSourceIsBlamedWhenTheSecondHopStops) {
  ASSERT_NO_FATAL_FAILURE(BeginAll());
  readers_[kStopped]->process().Signal(SIGSTOP);
  size_t failures = 0;
  for (RankProcess* reader : readers_) {
    if (reader == readers_[kStopped]) continue;
    ASSERT_OK(cluster_->Await({reader}, "the update"));
    EXPECT_EQ((*reader->answer())["outcome"], "moved") << reader->name();
    failures += FailuresIn(*reader->answer());
  }
  EXPECT_EQ(failures, 1u);
  EXPECT_EQ(FailuresIn(*readers_[kStopped + 1]->answer()), 1u) << "the one that reads from it";
  for (RankProcess* reader : readers_) {
    if (reader == readers_[kStopped]) continue;
    EXPECT_THAT(cluster_->ChecksumOf(reader), IsOkAndHolds(checksum_));
  }
  readers_[kStopped]->process().Signal(SIGKILL);
}

}  // namespace
}  // namespace th::testing
