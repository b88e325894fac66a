// Readers are admitted, join, are cut and are released. Holders and connections are played by hand;
// outputs are compared as text.
#include "th/pipeline_replicator/served_transfers.h"

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr WorkerId kHolder(7);
constexpr TransferId kTransfer(1);

ServingConnection C(uint64_t number) { return ServingConnection(number); }

struct InWords {
  std::string operator()(const AskHolder& o) const {
    return absl::StrCat("ask ", o.holder.value, " for ", o.transfer.value);
  }
  std::string operator()(const AdmitConnection& o) const {
    return absl::StrCat("admit ", o.connection.value, " to ", o.transfer.value);
  }
  std::string operator()(const RefuseConnection& o) const {
    return absl::StrCat("refuse ", o.connection.value, ": ",
                        absl::StatusCodeToString(o.why.code()));
  }
  std::string operator()(const EndConnection& o) const {
    return absl::StrCat(o.end == ServingEnd::kNow ? "cut " : "finish ", o.connection.value);
  }
  std::string operator()(const ReleaseTransfer& o) const {
    return absl::StrCat("release ", o.transfer.value, " of ", o.holder.value);
  }
};

class ServedTransfersTest : public ::testing::Test {
 protected:
  ServedTransfersTest() { transfers_.AddHolder(kHolder); }

  static Digest Layout(uint8_t first = 1) {
    Digest layout;
    layout.bytes[0] = first;
    return layout;
  }
  static ServedTransfers::Opening Opening(bool joins = false, uint8_t nonce = 1) {
    ServedTransfers::Opening opening{.joins = joins, .layout = Layout()};
    opening.capability.claims.source.worker = kHolder;
    opening.nonce[0] = nonce;
    return opening;
  }
  std::vector<std::string> Outputs() {
    std::vector<std::string> outputs;
    while (const auto output = transfers_.PollOutput()) {
      outputs.push_back(std::visit(InWords(), *output));
    }
    return outputs;
  }
  // By connection 1.
  void Open() {
    transfers_.HandleOpened(C(1), kTransfer, Opening());
    EXPECT_THAT(Outputs(), ElementsAre("ask 7 for 1"));
  }
  void Admit() { transfers_.HandleDecided(kTransfer, {absl::OkStatus(), Layout()}); }
  void Begin() {
    Open();
    Admit();
    EXPECT_THAT(Outputs(), ElementsAre("admit 1 to 1"));
  }
  void Join(uint64_t connection) {
    transfers_.HandleOpened(C(connection), TransferId(99), Opening(/*joins=*/true));
  }

  ServedTransfers transfers_;
};

// ---- the admission

TEST_F(ServedTransfersTest, ATransferIsReleasedWithItsLastConnection) {
  Begin();
  EXPECT_EQ(transfers_.served(), 1);
  Join(2);
  EXPECT_THAT(Outputs(), ElementsAre("admit 2 to 1"));
  EXPECT_EQ(transfers_.served(), 1) << "it is the same transfer";
  transfers_.HandleClosed(C(1));
  EXPECT_THAT(Outputs(), IsEmpty());
  EXPECT_FALSE(transfers_.IsQuiet(kHolder));
  transfers_.HandleClosed(C(2));
  EXPECT_THAT(Outputs(), ElementsAre("release 1 of 7"));
  EXPECT_TRUE(transfers_.IsQuiet(kHolder));
  transfers_.HandleClosed(C(2));
  EXPECT_THAT(Outputs(), IsEmpty());
}

TEST_F(ServedTransfersTest, ARefusedTransferNeverBegins) {
  Open();
  transfers_.HandleDecided(kTransfer, {absl::PermissionDeniedError("no"), std::nullopt});
  EXPECT_THAT(Outputs(), ElementsAre("refuse 1: PERMISSION_DENIED"));
  Admit();
  EXPECT_THAT(Outputs(), IsEmpty());
  EXPECT_EQ(transfers_.served(), 0);
  EXPECT_EQ(transfers_.refused(), 1);
}

TEST_F(ServedTransfersTest, NobodyIsAskedForAHolderThatIsNotHere) {
  ServedTransfers::Opening elsewhere = Opening();
  elsewhere.capability.claims.source.worker = WorkerId(8);
  transfers_.HandleOpened(C(1), kTransfer, elsewhere);
  EXPECT_THAT(Outputs(), ElementsAre("refuse 1: NOT_FOUND"));
}

TEST_F(ServedTransfersTest, AReaderOfAnotherLayoutIsRefusedAndTheHolderReleased) {
  Open();
  transfers_.HandleDecided(kTransfer, {absl::OkStatus(), Layout(2)});
  EXPECT_THAT(Outputs(), ElementsAre("release 1 of 7", "refuse 1: FAILED_PRECONDITION"));
}

TEST_F(ServedTransfersTest, AHolderThatAdmitsToNoBufferIsReleased) {
  Open();
  transfers_.HandleDecided(kTransfer, {absl::OkStatus(), std::nullopt});
  EXPECT_THAT(Outputs(), ElementsAre("release 1 of 7", "refuse 1: INTERNAL"));
}

TEST_F(ServedTransfersTest, AReaderThatLeavesBeforeItIsAdmittedIsReleased) {
  Open();
  transfers_.HandleClosed(C(1));
  EXPECT_THAT(Outputs(), IsEmpty());
  Admit();
  EXPECT_THAT(Outputs(), ElementsAre("release 1 of 7"));
  EXPECT_EQ(transfers_.served(), 0);
}

// ---- further connections

TEST_F(ServedTransfersTest, OnlyTheSamePullIsJoined) {
  Open();
  Join(2);
  EXPECT_THAT(Outputs(), ElementsAre("refuse 2: PERMISSION_DENIED")) << "not admitted yet";
  Admit();
  Outputs();
  ServedTransfers::Opening forged = Opening(/*joins=*/true);
  forged.capability.mac[0] ^= 1;
  transfers_.HandleOpened(C(3), TransferId(99), forged);
  transfers_.HandleOpened(C(4), TransferId(99), Opening(/*joins=*/true, /*nonce=*/2));
  EXPECT_THAT(Outputs(), ElementsAre("refuse 3: PERMISSION_DENIED", "refuse 4: PERMISSION_DENIED"));
}

TEST_F(ServedTransfersTest, ConnectionsOfOneTransferAreLimited) {
  Begin();
  for (uint64_t i = 2; i <= kMaxConnectionsPerTransfer; ++i) Join(i);
  EXPECT_EQ(Outputs().size(), kMaxConnectionsPerTransfer - 1);
  Join(100);
  EXPECT_THAT(Outputs(), ElementsAre("refuse 100: RESOURCE_EXHAUSTED"));
  transfers_.HandleClosed(C(3));
  Join(101);
  EXPECT_THAT(Outputs(), ElementsAre("admit 101 to 1"));
}

// ---- cuts

TEST_F(ServedTransfersTest, ACutEndsEveryConnectionAndLetsNoOtherJoin) {
  Begin();
  Join(2);
  Outputs();
  transfers_.End(kTransfer, ServingEnd::kNow);
  EXPECT_THAT(Outputs(), ElementsAre("cut 1", "cut 2"));
  Join(3);
  EXPECT_THAT(Outputs(), ElementsAre("refuse 3: PERMISSION_DENIED"));
  transfers_.HandleClosed(C(1));
  transfers_.HandleClosed(C(2));
  EXPECT_THAT(Outputs(), ElementsAre("release 1 of 7"));
}

TEST_F(ServedTransfersTest, AFinishEndsConnectionsWhereTheirSegmentEnds) {
  Begin();
  transfers_.End(kTransfer, ServingEnd::kAfterSegment);
  transfers_.End(kTransfer, ServingEnd::kNow);
  EXPECT_THAT(Outputs(), ElementsAre("finish 1", "cut 1"));
}

TEST_F(ServedTransfersTest, WhatWasCutBeforeItBeganNeverBegins) {
  Open();
  transfers_.End(kTransfer, ServingEnd::kNow);
  EXPECT_THAT(Outputs(), ElementsAre("cut 1"));
  Admit();
  EXPECT_THAT(Outputs(), ElementsAre("release 1 of 7"));
  EXPECT_EQ(transfers_.served(), 0);
}

// ---- holders

TEST_F(ServedTransfersTest, AHolderThatIsRemovedServesNobodyAndIsQuietOnceAllIsReleased) {
  Begin();
  transfers_.HandleOpened(C(2), TransferId(2), Opening(/*joins=*/false, /*nonce=*/2));
  Outputs();
  transfers_.RemoveHolder(kHolder);
  EXPECT_THAT(Outputs(), ElementsAre("cut 1", "cut 2"));
  Join(3);
  transfers_.HandleOpened(C(4), TransferId(4), Opening(/*joins=*/false, /*nonce=*/4));
  EXPECT_THAT(Outputs(), ElementsAre("refuse 3: PERMISSION_DENIED", "refuse 4: NOT_FOUND"));
  transfers_.HandleDecided(TransferId(2), {absl::OkStatus(), Layout()});
  EXPECT_THAT(Outputs(), IsEmpty());
  EXPECT_FALSE(transfers_.IsQuiet(kHolder));
  transfers_.HandleClosed(C(1));
  EXPECT_THAT(Outputs(), ElementsAre("release 1 of 7"));
  EXPECT_TRUE(transfers_.IsQuiet(kHolder));
}

TEST_F(ServedTransfersTest, WhatAForgottenHolderDecidesHasNoEffect) {
  Open();
  transfers_.RemoveHolder(kHolder);
  transfers_.ForgetHolder(kHolder);
  Outputs();
  transfers_.AddHolder(kHolder);
  Admit();
  transfers_.HandleClosed(C(1));
  EXPECT_THAT(Outputs(), IsEmpty());
}

}  // namespace
}  // namespace th
