// The metrics of a process with memberships that come and go.
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"
#include "th/client/test_worker.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::th::testing::TestServer;
using ::th::testing::Worker;

std::string Sample(const std::string& name, const std::string& group, const std::string& more,
                   uint64_t value) {
  return absl::StrCat("tensorhub_worker_", name, "{run=\"run\",model=\"model\",group=\"", group,
                      "\",rank=\"0\"", more, "} ", value, "\n");
}

TEST(MetricsTextTest, SaysWhatEachMembershipDid) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer"), rollout = Worker::Make(server, "rollout");
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK_AND_ASSIGN(const UpdateResult updated, rollout.buffer.Update(Latest()));
  ASSERT_TRUE(updated.moved());
  const std::string text = MetricsText();
  EXPECT_THAT(text, HasSubstr(Sample("connected", "trainer", "", 1)));
  EXPECT_THAT(text,
              HasSubstr(Sample("calls_total", "trainer", ",verb=\"publish\",outcome=\"done\"", 1)));
  EXPECT_THAT(text, HasSubstr(Sample("readers_admitted_total", "trainer", "", 1)));
  EXPECT_THAT(text,
              HasSubstr(Sample("calls_total", "rollout", ",verb=\"update\",outcome=\"moved\"", 1)));
  EXPECT_THAT(text, HasSubstr(Sample("update_seconds_count", "rollout", "", 1)));
  EXPECT_THAT(text, HasSubstr("source=\"publisher\"} " + absl::StrCat(updated.bytes_received)));
  EXPECT_THAT(text, HasSubstr("tensorhub_transport_transfers_served_total{transport="));
}

TEST(MetricsTextTest, ARankThatHasJoinedAgainIsListedOnce) {
  TestServer server;
  Worker before = Worker::Make(server, "rollout");
  ASSERT_OK(before.client->Leave());
  EXPECT_THAT(MetricsText(), HasSubstr(Sample("connected", "rollout", "", 0)));
  before.client.reset();  // its buffer keeps the membership
  const Worker after = Worker::Make(server, "rollout");
  const std::string text = MetricsText();
  EXPECT_THAT(text, HasSubstr(Sample("connected", "rollout", "", 1)));
  EXPECT_THAT(text, Not(HasSubstr(Sample("connected", "rollout", "", 0))));
}

// The transfers that this process has served, over all transports.
uint64_t TransfersServed() {
  uint64_t served = 0;
  for (const absl::string_view line : absl::StrSplit(MetricsText(), '\n')) {
    if (!absl::StartsWith(line, "tensorhub_transport_transfers_served_total{")) continue;
    uint64_t value = 0;
    EXPECT_TRUE(absl::SimpleAtoi(line.substr(line.rfind(' ') + 1), &value)) << line;
    served += value;
  }
  return served;
}

TEST(MetricsTextTest, CountersOfTransportsStayWhereAMembershipEnds) {
  const uint64_t before = TransfersServed();
  TestServer one, two;
  const Worker stays = Worker::Make(two, "stays");
  {
    Worker trainer = Worker::Make(one, "trainer"), rollout = Worker::Make(one, "rollout");
    ASSERT_OK(trainer.PublishAndWait(1));
    ASSERT_OK(rollout.buffer.Update(Latest()));
  }
  EXPECT_GT(TransfersServed(), before);
}

TEST(MetricsTextTest, WhatHasGoneIsNotListed) {
  TestServer server;
  { const Worker gone = Worker::Make(server, "gone"); }
  EXPECT_THAT(MetricsText(), Not(HasSubstr("group=\"gone\"")));
}

}  // namespace
}  // namespace th
