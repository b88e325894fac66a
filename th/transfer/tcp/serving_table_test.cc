#include "th/transfer/tcp/serving_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/status_matchers.h"

namespace th::tcp {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::th::testing::StatusIs;

constexpr WorkerId kHolder(7);

// Admits everybody, or keeps what it is asked.
class Holder : public HolderDelegate {
 public:
  void OnAdmission(AdmissionRequest request, std::function<void(Admission)> decide) override {
    decide(answer);
    asked.push_back(request.transfer);
  }
  void OnReaderBytes(TransferId, uint64_t) override {}
  void OnReaderReleased(TransferId transfer, uint64_t) override { released.push_back(transfer); }

  Admission answer;
  std::vector<TransferId> asked, released;
};

class ServingTableTest : public ::testing::Test {
 protected:
  ServingTableTest() {
    open_.capability.claims.source.worker = kHolder;
    open_.nonce[0] = 1;
    table_.AddHolder(kHolder, &holder_);
  }

  // The holder was asked and said yes; nothing is served yet.
  void Admit(TransferId transfer) {
    bool admitted = false;
    EXPECT_OK(table_.Decide({.transfer = transfer, .capability = open_.capability},
                            [&](const Admission& a) { admitted = a.status.ok(); }));
    EXPECT_TRUE(admitted);
  }
  std::shared_ptr<ServingTable::Transfer> Begin(TransferId transfer) {
    return table_.Begin(transfer, open_, {}, 1, [this](ServingTable::Ending) { ++cuts_; });
  }

  ServingTable table_{0, absl::UnixEpoch()};
  Holder holder_;
  Open open_;
  int cuts_ = 0;
};

TEST_F(ServingTableTest, ATransferIsReleasedWithItsLastConnection) {
  Admit(TransferId(1));
  const auto transfer = Begin(TransferId(1));
  ASSERT_NE(transfer, nullptr);
  ASSERT_OK(table_.Join(open_, 2, [](ServingTable::Ending) {}).status());
  table_.Leave(transfer, 1);
  EXPECT_THAT(holder_.released, IsEmpty());
  table_.Leave(transfer, 2);
  EXPECT_THAT(holder_.released, ElementsAre(TransferId(1)));
}

TEST_F(ServingTableTest, WhatWasCutBeforeItBeganNeverBegins) {
  Admit(TransferId(1));
  table_.EndTransfer(TransferId(1), ServingTable::Ending::kNow);
  EXPECT_EQ(Begin(TransferId(1)), nullptr);
  table_.ReleaseUnserved(kHolder, TransferId(1));
  EXPECT_THAT(holder_.released, ElementsAre(TransferId(1)));
  EXPECT_EQ(table_.transfers_served(), 0);
}

TEST_F(ServingTableTest, ACutEndsEveryConnectionAndLetsNoOtherJoin) {
  Admit(TransferId(1));
  const auto transfer = Begin(TransferId(1));
  ASSERT_OK(table_.Join(open_, 2, [this](ServingTable::Ending) { ++cuts_; }).status());
  table_.EndTransfer(TransferId(1), ServingTable::Ending::kNow);
  EXPECT_EQ(cuts_, 2);
  EXPECT_THAT(table_.Join(open_, 3, [](ServingTable::Ending) {}),
              StatusIs(absl::StatusCode::kPermissionDenied));
  table_.Leave(transfer, 1);
  table_.Leave(transfer, 2);
  EXPECT_THAT(holder_.released, ElementsAre(TransferId(1)));
}

TEST_F(ServingTableTest, RemovingTheHolderLetsNoConnectionJoinWhileItWaits) {
  Admit(TransferId(1));
  const auto transfer = Begin(TransferId(1));
  // The cut comes from within RemoveHolder: from here to its return the holder is leaving.
  ASSERT_OK(table_
                .Join(open_, 2,
                      [&](ServingTable::Ending) {
                        EXPECT_THAT(table_.Join(open_, 3, [](ServingTable::Ending) {}),
                                    StatusIs(absl::StatusCode::kPermissionDenied));
                        table_.Leave(transfer, 1);
                        table_.Leave(transfer, 2);
                      })
                .status());
  table_.RemoveHolder(kHolder);
  EXPECT_THAT(holder_.released, ElementsAre(TransferId(1)));
}

TEST_F(ServingTableTest, ARefusedOrUnaskedTransferNeverBegins) {
  holder_.answer.status = absl::PermissionDeniedError("no");
  EXPECT_OK(table_.Decide({.transfer = TransferId(1), .capability = open_.capability},
                          [](const Admission&) {}));
  EXPECT_EQ(Begin(TransferId(1)), nullptr);
  EXPECT_EQ(Begin(TransferId(2)), nullptr);
}

TEST_F(ServingTableTest, NobodyIsAskedForAHolderThatIsNotHere) {
  open_.capability.claims.source.worker = WorkerId(8);
  EXPECT_THAT(table_.Decide({.transfer = TransferId(1), .capability = open_.capability},
                            [](const Admission&) { ADD_FAILURE(); }),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(holder_.asked, IsEmpty());
}

}  // namespace
}  // namespace th::tcp
