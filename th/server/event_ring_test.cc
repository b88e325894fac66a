#include "th/server/event_ring.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

absl::Time At(int seconds) { return absl::FromUnixSeconds(1000 + seconds); }

RegistryEvent Event(uint32_t id, const std::string& model = "m") {
  return {.text = absl::StrCat("text ", id),
          .kind = EventKind::kPublished,
          .id = EventId::Of(Epoch(7), id),
          .key = {"r1", model},
          .who = "trainer"};
}

std::vector<uint64_t> Numbers(const RecentEvents& events) {
  std::vector<uint64_t> numbers;
  numbers.reserve(events.events.size());
  for (const RecentEvent& event : events.events) numbers.push_back(event.number);
  return numbers;
}

TEST(EventRingTest, OldestFirstWithTheirAge) {
  EventRing ring;
  ring.Add(Event(1), At(0));
  ring.Add(Event(2), At(3));
  const RecentEvents found = ring.Find({}, At(5));
  ASSERT_EQ(Numbers(found), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(found.events[0].age, absl::Seconds(5));
  EXPECT_EQ(found.events[1].age, absl::Seconds(2));
  EXPECT_EQ(found.events[0].at, At(0));
  EXPECT_EQ(found.events[1].at, At(3));
  EXPECT_EQ(found.events[1].what, "text 2");
  EXPECT_EQ(found.events[1].who, "trainer");
  EXPECT_EQ(found.last, 2u);
  EXPECT_FALSE(found.lost);
}

TEST(EventRingTest, WhatIsForTheLogAloneIsNotKept) {
  EventRing ring;
  ring.Add({.text = "stream 3 refused"}, At(0));
  EXPECT_EQ(ring.size(), 0u);
}

TEST(EventRingTest, ForgetsTheOldestAndSaysSo) {
  EventRing ring(3);
  for (uint32_t i = 1; i <= 5; ++i) ring.Add(Event(i), At(0));
  EXPECT_EQ(Numbers(ring.Find({}, At(0))), (std::vector<uint64_t>{3, 4, 5}));
  EXPECT_TRUE(ring.Find({.after = 1}, At(0)).lost);  // number 2 is gone
  EXPECT_FALSE(ring.Find({.after = 2}, At(0)).lost);
  EXPECT_FALSE(ring.Find({}, At(0)).lost);  // who asks for the first time misses nothing
}

TEST(EventRingTest, LongTextsAreCut) {
  EventRing ring;
  RegistryEvent event = Event(1);
  event.text = std::string(10 * kMaxEventTextBytes, 'x');
  ring.Add(event, At(0));
  EXPECT_EQ(ring.Find({}, At(0)).events.at(0).what.size(), kMaxEventTextBytes);
}

TEST(EventRingTest, FiltersByModelAndId) {
  EventRing ring;
  ring.Add(Event(1, "a"), At(0));
  ring.Add(Event(2, "b"), At(0));
  ring.Add(Event(1, "a"), At(0));
  EXPECT_EQ(Numbers(ring.Find({.model = "b"}, At(0))), (std::vector<uint64_t>{2}));
  EXPECT_EQ(Numbers(ring.Find({.id = EventId::Of(Epoch(7), 1)}, At(0))),
            (std::vector<uint64_t>{1, 3}));
  EXPECT_THAT(Numbers(ring.Find({.run = "other"}, At(0))), IsEmpty());
}

TEST(EventRingTest, TheServersOwnEventsAreOfEveryModel) {
  EventRing ring;
  ring.Add({.text = "started", .kind = EventKind::kServerStarted, .who = "server"}, At(0));
  ring.Add(Event(1, "a"), At(0));
  EXPECT_EQ(Numbers(ring.Find({.run = "r1", .model = "b"}, At(0))), (std::vector<uint64_t>{1}));
  EXPECT_EQ(Numbers(ring.Find({.run = "r1", .model = "a"}, At(0))), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(Numbers(ring.Find({.id = EventId::Of(Epoch(7), 1)}, At(0))),
            (std::vector<uint64_t>{2}));
}

TEST(EventRingTest, AFollowerAsksOnAndMissesNothing) {
  EventRing ring;
  for (uint32_t i = 1; i <= 5; ++i) ring.Add(Event(i), At(0));
  std::vector<uint64_t> seen;
  uint64_t after = 1;
  for (int asked = 0; asked < 3; ++asked) {
    const RecentEvents found = ring.Find({.after = after, .limit = 2}, At(0));
    for (const uint64_t number : Numbers(found)) seen.push_back(number);
    after = found.last;
  }
  EXPECT_THAT(seen, ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(after, 5u);
}

TEST(EventRingTest, WhoAsksFirstHasTheNewestWithinTheLimit) {
  EventRing ring;
  for (uint32_t i = 1; i <= 5; ++i) ring.Add(Event(i), At(0));
  const RecentEvents found = ring.Find({.limit = 2}, At(0));
  EXPECT_EQ(Numbers(found), (std::vector<uint64_t>{4, 5}));
  EXPECT_EQ(found.last, 5u);
}

TEST(EventRingTest, AnAnswerIsNeverLongerThanTheProtocolAllows) {
  EventRing ring;
  for (uint32_t i = 1; i <= kMaxEventsOfAnswer + 10; ++i) ring.Add(Event(i), At(0));
  EXPECT_EQ(ring.Find({.limit = 1'000'000}, At(0)).events.size(), kMaxEventsOfAnswer);
}

}  // namespace
}  // namespace th
