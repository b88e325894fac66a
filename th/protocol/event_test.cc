#include "th/protocol/event.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;

TEST(EventIdTest, TextAndBack) {
  const EventId id = EventId::Of(Epoch(7), 1234);
  EXPECT_EQ(id.ToString(), "7-1234");
  EXPECT_THAT(ParseEventId("7-1234"), IsOkAndHolds(id));
  EXPECT_EQ(EventSuffix(id), " event=7-1234");
}

TEST(EventIdTest, NoneIsNoText) {
  EXPECT_TRUE(EventId().empty());
  EXPECT_EQ(EventId().ToString(), "");
  EXPECT_EQ(EventSuffix(EventId()), "");
}

TEST(EventIdTest, WhatIsNoIdIsRefusedAndNamed) {
  for (const char* text : {"", "7", "7-", "-7", "7-0", "7-1-2", "a-1", "7-4294967296", "7 - 1x"}) {
    EXPECT_THAT(ParseEventId(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)))
        << text;
  }
}

TEST(EventIdTest, ASourceReadsItFromTheCapability) {
  const EventId id = EventId::Of(Epoch(7), 0xffffffff);
  CapabilityClaims claims{.epoch = Epoch(7), .assignment = AssignmentOf(id, 3)};
  EXPECT_EQ(EventOf(claims), id);
  claims.assignment = AssignmentId(3);  // of a server that has no events
  EXPECT_TRUE(EventOf(claims).empty());
}

TEST(EventIdTest, AssignmentsOfOneOperationRise) {
  const EventId id = EventId::Of(Epoch(2), 5);
  EXPECT_LT(AssignmentOf(id, 1), AssignmentOf(id, 2));
  EXPECT_LT(AssignmentOf(id, 0xffffffff), AssignmentOf(EventId::Of(Epoch(2), 6), 1));
}

TEST(EventKindTest, EachHasANameOfItsOwn) {
  for (int kind = 1; kind <= static_cast<int>(EventKind::kServerStops); ++kind) {
    EXPECT_NE(EventKindName(static_cast<EventKind>(kind)), "event") << kind;
  }
  EXPECT_EQ(EventKindName(static_cast<EventKind>(200)), "event");
}

TEST(EventTimeTest, IsInUtcWithMilliseconds) {
  EXPECT_EQ(EventTimeText(absl::FromUnixMillis(1'700'000'000'125)), "2023-11-14T22:13:20.125Z");
  EXPECT_EQ(EventTimeText(absl::UnixEpoch()), "");
}

}  // namespace
}  // namespace th
