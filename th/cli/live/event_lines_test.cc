#include "th/cli/live/event_lines.h"

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

RecentEvents Two() {
  return {.epoch = Epoch(7),
          .last = 5,
          .events = {{.number = 4,
                      .id = EventId::Of(Epoch(7), 12),
                      .kind = EventKind::kUpdateMoved,
                      .age = absl::Milliseconds(61'250),
                      .at = absl::FromUnixMillis(1'700'000'000'125),
                      .key = {"r1", "qwen"},
                      .who = "rollout-1",
                      .what = "step-5 (#7.2) after 1.2s"},
                     {.number = 5, .kind = static_cast<EventKind>(200), .age = absl::Seconds(2)}}};
}

TEST(EventTableTest, TheTableAsDrawn) {
  EXPECT_EQ("\n" + EventTable(Two()), R"(
TIME                         AGO  EVENT  MODEL    WHO        WHAT
2023-11-14T22:13:20.125Z  61.2 s  7-12   r1/qwen  rollout-1  update moved: step-5 (#7.2) after 1.2s
-                          2.0 s  -      -        -          event
)");
}

TEST(EventTableTest, SaysWhenThereIsNothing) {
  EXPECT_EQ(EventTable({}), "nothing to tell\n");
  EXPECT_THAT(WhyUnknown(EventId::Of(Epoch(7), 99), Epoch(7)),
              HasSubstr("remembers no event 7-99"));
}

TEST(EventTableTest, WhatIsOfAnotherEpochIsLost) {
  const RecentEvents none{.epoch = Epoch(7)};
  const EventId before = EventId::Of(Epoch(6), 12), elsewhere = EventId::Of(Epoch(8), 12);
  EXPECT_THAT(WhyUnknown(before, none.epoch), HasSubstr("event 6-12 is LOST: it is of epoch 6"));
  EXPECT_THAT(WhyUnknown(elsewhere, none.epoch), HasSubstr("event 8-12 is of another server"));
  EXPECT_EQ(ToJson(none, before)["lost"], true);
  EXPECT_EQ(ToJson(none, EventId::Of(Epoch(7), 12))["lost"], false);
}

TEST(EventLineTest, OneLineAnEvent) {
  EXPECT_EQ(
      EventLine(Two().events[0]),
      "2023-11-14T22:13:20.125Z  7-12  r1/qwen  rollout-1  update moved: step-5 (#7.2) after 1.2s");
}

TEST(EventsToJsonTest, HasEveryField) {
  const nlohmann::json out = ToJson(Two(), {});
  EXPECT_EQ(out["epoch"], 7);
  EXPECT_EQ(out["lost"], false);
  EXPECT_EQ(out["events"][0], nlohmann::json({{"number", 4},
                                              {"event", "7-12"},
                                              {"kind", "update moved"},
                                              {"age_seconds", 61.25},
                                              {"time", "2023-11-14T22:13:20.125Z"},
                                              {"run", "r1"},
                                              {"model", "qwen"},
                                              {"who", "rollout-1"},
                                              {"what", "step-5 (#7.2) after 1.2s"}}));
}

TEST(DropShownTest, AServerThatRaisedItsEpochGoesOnAfterWhatWasShown) {
  std::vector<RecentEvent> again = Two().events;
  EXPECT_TRUE(DropShown(Two().events[0], &again));
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].number, 5);
}

TEST(DropShownTest, AnotherProcessCountsAnew) {
  std::vector<RecentEvent> again = Two().events;
  RecentEvent of_before = Two().events[0];  // the same number
  of_before.at -= absl::Hours(1);
  EXPECT_FALSE(DropShown(of_before, &again));
  EXPECT_THAT(again, SizeIs(2));
}

}  // namespace
}  // namespace th
