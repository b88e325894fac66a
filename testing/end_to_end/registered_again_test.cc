// Ranks free their buffers and register them again, one of them or all, without waiting for each
// other, while the server is killed in between: what is published is what its readers get, and the
// group publishes again by itself.
//
// REGISTERED_AGAIN_ROUNDS is how often; a hundred take some minutes.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/cluster/cluster.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"

namespace th::testing {
namespace {

constexpr uint32_t kRanks = 2;
constexpr int kUsualRounds = 6;
// Between the first rank of a group and the last one.
constexpr absl::Duration kFarthestApart = absl::Seconds(2);
// By when a group must have published again. Calls that fail on the way are made again.
constexpr absl::Duration kLongestRound = absl::Seconds(60);
constexpr absl::Duration kCall = absl::Seconds(10);

int Rounds() {
  const char* const asked = std::getenv("REGISTERED_AGAIN_ROUNDS");
  int rounds = kUsualRounds;
  if (asked != nullptr && !absl::SimpleAtoi(asked, &rounds)) ADD_FAILURE() << asked;
  return rounds;
}

std::string LabelOf(int round) { return absl::StrCat("v", round); }

// A rank with one tensor, whose size tells the ranks' shards apart.
class Member {
 public:
  Member(const std::string& server, const std::string& group, uint32_t rank)
      : rank_(rank), memory_(size_t{100'000} * (rank + 1)) {
    auto joined = Client::Join({.server = server,
                                .run = "r",
                                .model = "m",
                                .group = group,
                                .rank = rank,
                                .ranks = kRanks});
    EXPECT_OK(joined.status());
    if (joined.ok()) client_ = *std::move(joined);
    Register();
  }

  void FillWith(int round) {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = ByteOf(round, i);
  }
  bool HasContentOf(int round) const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (memory_[i] != ByteOf(round, i)) return false;
    }
    return true;
  }
  void RegisterAgain() {
    weights_ = WeightBuffer();
    Register();
  }
  bool writable() const { return weights_.version().sequence == VersionSequence(); }
  WeightBuffer& weights() { return weights_; }

  // As a trainer that knows of nobody else: what fails is called again. The last error, if any.
  absl::Status PublishAsOften(int round, absl::Time until) {
    absl::Status status;
    do {
      if (!writable()) (void)weights_.Unpublish({.timeout = kCall});
      if (!writable()) continue;
      FillWith(round);
      status = weights_.Publish(LabelOf(round), {.timeout = kCall});
      if (!status.ok()) continue;
      const absl::StatusOr<PublishResult> published = weights_.AwaitPublished();
      status = published.status();
      if (!status.ok()) continue;
      EXPECT_EQ(published->version.label.text(), LabelOf(round));
      return absl::OkStatus();
    } while (absl::Now() < until);
    return status.ok() ? absl::DeadlineExceededError("the buffer is not writable") : status;
  }

 private:
  char ByteOf(int round, size_t place) const {
    return static_cast<char>(static_cast<size_t>(round) * 37 + rank_ * 101 + place * 7 +
                             place / 251);
  }
  void Register() {
    Tensor tensor;
    tensor.name = "w";
    tensor.dtype = DType::kU8;
    tensor.shape = {static_cast<int64_t>(memory_.size())};
    tensor.data = memory_.data();
    auto registered = client_->Register({tensor});
    EXPECT_OK(registered.status());
    if (registered.ok()) weights_ = *std::move(registered);
  }

  const uint32_t rank_;
  std::vector<char> memory_;
  std::unique_ptr<Client> client_;
  WeightBuffer weights_;
};

class RegisteredAgainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start());
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      trainer_.push_back(std::make_unique<Member>(cluster_->server_address(), "trainer", rank));
      reader_.push_back(std::make_unique<Member>(cluster_->server_address(), "rollout", rank));
    }
  }

  using Group = std::vector<std::unique_ptr<Member>>;
  template <typename Verb>
  static void OnEachRank(const Group& group, Verb verb) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < group.size(); ++rank) {
      threads.emplace_back([&, rank] { verb(rank, *group[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  // The ranks in `again` (bits) register again, the others unpublish; then all publish.
  void Publish(int round, unsigned again, absl::Duration apart) {
    const absl::Time until = absl::Now() + kLongestRound;
    std::vector<absl::Status> ends(kRanks);
    OnEachRank(trainer_, [&](size_t rank, Member& member) {
      if ((again >> rank & 1) != 0) {
        absl::SleepFor(apart * static_cast<double>(rank));  // the matter of this test
        member.RegisterAgain();
      }
      ends[rank] = member.PublishAsOften(round, until);
    });
    for (const absl::Status& end : ends) EXPECT_OK(end) << LabelOf(round);
  }
  // Readers get the bytes that were published under the label, or hear that there are none.
  void ExpectNothingElse(int round) {
    OnEachRank(reader_, [&](size_t, Member& member) {
      const auto result =
          member.weights().Update(*VersionLabel::Parse(LabelOf(round)), {.timeout = kCall});
      if (!result.ok() || result->not_available()) return;
      EXPECT_TRUE(member.HasContentOf(round)) << LabelOf(round);
    });
  }
  void ExpectFetched(int round) {
    const absl::Time until = absl::Now() + kLongestRound;
    OnEachRank(reader_, [&](size_t rank, Member& member) {
      absl::StatusOr<UpdateResult> result = absl::UnknownError("not run");
      do {
        result = member.weights().Update(*VersionLabel::Parse(LabelOf(round)), {.timeout = kCall});
      } while ((!result.ok() || result->not_available()) && absl::Now() < until);
      ASSERT_OK(result.status()) << LabelOf(round) << " at rank " << rank;
      EXPECT_FALSE(result->not_available()) << LabelOf(round) << " at rank " << rank;
      EXPECT_TRUE(member.HasContentOf(round)) << LabelOf(round) << " at rank " << rank;
    });
  }

  std::unique_ptr<Cluster> cluster_;
  Group trainer_, reader_;
};

TEST_F(RegisteredAgainTest, WhatIsPublishedIsFetchedAndRightInEveryRound) {
  const int rounds = Rounds();
  Publish(0, /*again=*/0, absl::ZeroDuration());
  ExpectFetched(0);
  for (int round = 1; round <= rounds; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const auto again = static_cast<unsigned>(1 + round % 3);  // the one, the other, both
    // Kept on this side of kFarthestApart, and different in every round.
    const absl::Duration apart = kFarthestApart * ((round * 7 % 20) / 20.0);
    Publish(round, again, apart);
    if (round % 3 == 0) {
      ASSERT_OK(cluster_->RestartServer());
    }
    if (round % 4 == 1) reader_[static_cast<size_t>(round / 4 % 2)]->RegisterAgain();
    ExpectFetched(round);
    ExpectNothingElse(round - 1);
  }
  std::cout << rounds << " rounds\n";
}

}  // namespace
}  // namespace th::testing
