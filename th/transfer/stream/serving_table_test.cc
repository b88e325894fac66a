// Tests of what the table adds to ServedTransfers: delegates are called, connections are told, and
// removing a holder waits. served_transfers_test has who is admitted and released.
#include "th/transfer/stream/serving_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/transfer/test_peers.h"

namespace th::stream {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::th::testing::TestShard;

constexpr WorkerId kHolder(7);

// Answers when it is told to.
class Holder : public HolderDelegate {
 public:
  void OnAdmission(AdmissionRequest request, std::function<void(Admission)> decide) override {
    asked.push_back(request.transfer);
    decides.push_back(std::move(decide));
  }
  void OnReaderBytes(TransferId, uint64_t bytes) override { reader_bytes.push_back(bytes); }
  void OnReaderReleased(TransferId transfer, uint64_t bytes, const std::string& why) override {
    released.push_back(transfer);
    released_bytes += bytes;
    whys.push_back(why);
  }

  std::vector<TransferId> asked, released;
  std::vector<std::function<void(Admission)>> decides;
  std::vector<uint64_t> reader_bytes;
  uint64_t released_bytes = 0;
  std::vector<std::string> whys;
};

class ServingTableTest : public ::testing::Test {
 protected:
  ServingTableTest() {
    open_.capability.claims.source.worker = kHolder;
    open_.nonce[0] = 1;
    open_.layout = shard_.layout().digest();
    table_->AddHolder(kHolder, &holder_);
  }

  // Connection `number`, whose news are in `news_`.
  void OpenAs(uint64_t number, bool joins = false) {
    open_.joins = joins;
    table_->Open(ServingConnection(number), open_, [this, number](const ServingTable::News& news) {
      news_.push_back(absl::StrCat(number, " ", InWords(news)));
      if (std::holds_alternative<Served>(news)) served_ = std::get<Served>(news);
      if (std::holds_alternative<ServingEnd>(news) && on_end_ != nullptr) on_end_();
    });
  }
  void Decide(absl::Status status = absl::OkStatus()) {
    holder_.decides.back()({std::move(status), shard_.store(), BufferGeneration(3)});
  }
  void Close(uint64_t number) { table_->Close(ServingConnection(number)); }

  using Served = std::shared_ptr<ServingTable::Transfer>;
  static std::string InWords(const ServingTable::News& news) {
    if (const auto* served = std::get_if<Served>(&news)) {
      return absl::StrCat("admitted under ", (*served)->generation.value);
    }
    if (const auto* why = std::get_if<absl::Status>(&news)) {
      return absl::StrCat("refused: ", absl::StatusCodeToString(why->code()));
    }
    return std::get<ServingEnd>(news) == ServingEnd::kNow ? "cut" : "finish";
  }

  TestShard shard_{TestShard::Spec{}};
  std::shared_ptr<ServingTable> table_ =
      std::make_shared<ServingTable>(0, absl::UnixEpoch() + absl::Hours(1));
  Holder holder_;
  Open open_;
  std::vector<std::string> news_;
  Served served_;
  std::function<void()> on_end_;
};

TEST_F(ServingTableTest, ATransferIsReleasedWithItsLastConnection) {
  OpenAs(1);
  Decide();
  OpenAs(2, /*joins=*/true);
  EXPECT_THAT(news_, ElementsAre("1 admitted under 3", "2 admitted under 3"));
  EXPECT_EQ(served_->store, shard_.store());
  Close(1);
  EXPECT_THAT(holder_.released, IsEmpty());
  Close(2);
  EXPECT_EQ(holder_.released, holder_.asked);
  EXPECT_EQ(table_->transfers_served(), 1);
}

TEST_F(ServingTableTest, ARefusalIsToldAndCounted) {
  OpenAs(1);
  Decide(absl::PermissionDeniedError("no"));
  EXPECT_THAT(news_, ElementsAre("1 refused: PERMISSION_DENIED"));
  Close(1);
  EXPECT_THAT(holder_.released, IsEmpty());
  EXPECT_EQ(table_->transfers_refused(), 1);
}

TEST_F(ServingTableTest, NobodyIsAskedForAHolderThatIsNotHere) {
  open_.capability.claims.source.worker = WorkerId(8);
  OpenAs(1);
  EXPECT_THAT(news_, ElementsAre("1 refused: NOT_FOUND"));
  EXPECT_THAT(holder_.asked, IsEmpty());
}

TEST_F(ServingTableTest, ANumberThatIsTakenStaysWithItsHolderUntilThatGoes) {
  OpenAs(1);
  Decide();
  Holder another;
  EXPECT_FALSE(table_->AddHolder(kHolder, &another));
  on_end_ = [&] {
    EXPECT_FALSE(table_->AddHolder(kHolder, &another)) << "the first is told of its readers yet";
    Close(1);
  };
  table_->RemoveHolder(kHolder);
  EXPECT_EQ(holder_.released, holder_.asked);
  EXPECT_THAT(another.released, IsEmpty());
  EXPECT_TRUE(table_->AddHolder(kHolder, &another));
  OpenAs(2);
  EXPECT_EQ(another.asked.size(), 1);
}

TEST_F(ServingTableTest, WhatWasCutBeforeItBeganIsReleasedWithoutAByte) {
  OpenAs(1);
  table_->EndTransfer(holder_.asked[0], ServingEnd::kNow);
  Decide();
  EXPECT_THAT(news_, ElementsAre("1 cut"));
  EXPECT_EQ(holder_.released, holder_.asked);
  EXPECT_EQ(table_->transfers_served(), 0);
}

TEST_F(ServingTableTest, AConnectionThatIsClosedHearsNothing) {
  OpenAs(1);
  Close(1);
  Decide();
  EXPECT_THAT(news_, IsEmpty());
  EXPECT_EQ(holder_.released, holder_.asked);
}

TEST_F(ServingTableTest, RemovingTheHolderLetsNoConnectionJoinWhileItWaits) {
  OpenAs(1);
  Decide();
  news_.clear();
  // The end comes from within RemoveHolder: from here to its return the holder is leaving.
  on_end_ = [this] {
    OpenAs(2, /*joins=*/true);
    Close(1);
  };
  table_->RemoveHolder(kHolder);
  EXPECT_THAT(news_, ElementsAre("1 cut", "2 refused: PERMISSION_DENIED"));
  EXPECT_EQ(holder_.released, holder_.asked);
}

TEST_F(ServingTableTest, WhatAHolderDecidesAfterItsRemovalHasNoEffect) {
  OpenAs(1);
  table_->RemoveHolder(kHolder);
  Decide();
  EXPECT_THAT(news_, ElementsAre("1 cut"));
  EXPECT_THAT(holder_.released, IsEmpty());
}

TEST_F(ServingTableTest, TheHolderHearsOnceWhyATransferWasEndedAndWhatCameFirst) {
  OpenAs(1);
  Decide();
  OpenAs(2, /*joins=*/true);
  table_->NoteWhyEnded(*served_, "it takes no bytes");
  Close(1);
  table_->NoteWhyEnded(*served_, "its other connection neither");
  Close(2);
  EXPECT_THAT(holder_.whys, ElementsAre("it takes no bytes"));
}

TEST_F(ServingTableTest, TheHolderHearsOfBytesNowAndThenAndOfAllAtTheEnd) {
  OpenAs(1);
  Decide();
  const absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  table_->CountSent(*served_, 10, now);
  table_->CountSent(*served_, 20, now + kReaderBytesInterval - absl::Milliseconds(1));
  table_->CountSent(*served_, 30, now + kReaderBytesInterval);
  EXPECT_THAT(holder_.reader_bytes, ElementsAre(10, 60));
  table_->CountSent(*served_, 40, now + kReaderBytesInterval);
  Close(1);
  EXPECT_EQ(holder_.released_bytes, 100);
  EXPECT_EQ(table_->bytes_sent(), 100);
}

}  // namespace
}  // namespace th::stream
