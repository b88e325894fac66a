// th top and th events against a real server with a publisher and a reader.
#include <csignal>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testing/program_run/program_run.h"
#include "th/cli/commands_fixture.h"
#include "th/server/event_log_lines.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kOk = 0, kUsage = 2, kNotThere = 4, kLocalFiles = 5;
// The bytes of the tensors of MakeModelFolder.
constexpr uint64_t kModelBytes = 400'072;

class LiveTest : public CommandsTest {
 protected:
  std::unique_ptr<RunningProgram> Publish() {
    return CommandsTest::Publish(MakeModelFolder("model", 1), "step-1");
  }
  // Pulls; the event id of the reader's operation, as the reader reports it.
  std::string Pull() {
    const ProgramRun pull = RunTh({"pull", FreshFolder("pulled") + "/here", "--json"});
    EXPECT_EQ(pull.status, kOk) << pull.errors;
    return pull.json()["event"];
  }
};

TEST_F(LiveTest, OneIdLeadsThroughClientServerAndSource) {
  const auto publisher = Publish();
  const std::string event = Pull();
  EXPECT_THAT(event, HasSubstr("-"));
  // The server's memory.
  const nlohmann::json events = RunTh({"events", "--id", event, "--json"}).json();
  ASSERT_EQ(events["events"].size(), 2u) << events;
  EXPECT_EQ(events["events"][0]["kind"], "update began");
  EXPECT_EQ(events["events"][1]["kind"], "update moved");
  for (const nlohmann::json& one : events["events"]) EXPECT_EQ(one["event"], event);
  // The server's log and the source's.
  EXPECT_TRUE(server_.program().AwaitError("update moved"));
  EXPECT_TRUE(publisher->AwaitError("admitted event=" + event));
  EXPECT_THAT(RunTh({"events"}).output(), HasSubstr("published: step-1"));
}

TEST_F(LiveTest, EventsOnDiskAreShownWithoutAServer) {
  const auto own = [](const std::string& what) {
    LoggedEvent logged{.epoch = Epoch(7)};
    logged.event = {.kind = EventKind::kServerStarted,
                    .at = absl::FromUnixSeconds(1'700'000'000),
                    .who = "server",
                    .what = what};
    return EventLogLine(logged);
  };
  const auto line = [](uint32_t number, const std::string& model) {
    LoggedEvent logged{.epoch = Epoch(7)};
    logged.event = {.number = number,
                    .id = EventId::Of(Epoch(7), number),
                    .kind = EventKind::kPublished,
                    .at = absl::FromUnixSeconds(1'700'000'000),
                    .key = {"r1", model},
                    .who = "trainer",
                    .what = absl::StrCat("step-", number)};
    return EventLogLine(logged);
  };
  const std::string log = FreshFolder("events") + "-log";
  std::ofstream(log + ".1") << own("once") << line(1, "m") << line(2, "other");
  std::ofstream(log) << line(3, "m") << "{\"time\":\"20";
  server_.Kill();
  const std::vector<std::string> events = {Th(), "events", "--run", "r1", "--log", log};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), events.begin(), events.end());
    return RunProgram(more);
  };
  const ProgramRun all = with({});
  EXPECT_EQ(all.status, kOk);
  EXPECT_EQ(all.output(),
            "2023-11-14T22:13:20.000Z  -  -  server  server started: once\n"
            "2023-11-14T22:13:20.000Z  7-1  r1/m  trainer  published: step-1\n"
            "2023-11-14T22:13:20.000Z  7-2  r1/other  trainer  published: step-2\n"
            "2023-11-14T22:13:20.000Z  7-3  r1/m  trainer  published: step-3");
  EXPECT_THAT(all.errors, HasSubstr("1 lines of " + log + " and the file before it are no events"));
  EXPECT_THAT(with({"--model", "other"}).output(), Not(HasSubstr("step-3")));
  EXPECT_EQ(with({"--id", "7-3", "--json"}).json()["what"], "step-3");
  EXPECT_EQ(with({"--id", "7-9"}).status, kNotThere);
  const ProgramRun unknown = with({"--model", "nobodys"});
  EXPECT_EQ(unknown.status, kNotThere);
  EXPECT_EQ(unknown.output(), "");
  EXPECT_EQ(with({"--follow"}).status, kUsage);
  EXPECT_EQ(RunProgram({Th(), "events", "--log", log + "-none"}).status, kLocalFiles);
}

TEST_F(LiveTest, TopShowsWhoHoldsWhatAndWhatUpdatesCost) {
  const auto publisher = Publish();
  Pull();
  const ProgramRun run = RunTh({"top", "--once", "--json"});
  ASSERT_EQ(run.status, kOk) << run.errors;
  ASSERT_EQ(run.lines.size(), 1u);
  const nlohmann::json model = run.json()["models"][0];
  EXPECT_EQ(model["run"], "r1");
  EXPECT_THAT(std::string(model["latest"]), HasSubstr("step-1"));
  EXPECT_EQ(model["replicas"][0]["group"], "trainer");
  EXPECT_EQ(model["replicas"][0]["state"], "published");
  EXPECT_EQ(model["replicas"][0]["bytes_held"], kModelBytes);
  const nlohmann::json& totals = model["totals"];
  EXPECT_EQ(totals["publishes"], 1);
  EXPECT_EQ(totals["moves"], 1);
  EXPECT_EQ(totals["claims_refused"], 0);
  uint64_t received = 0;
  for (const nlohmann::json& one : totals["received"]) {
    EXPECT_EQ(one["transport"], "same_host");
    EXPECT_EQ(one["source"], "publisher");
    received += one["bytes"].get<uint64_t>();
  }
  EXPECT_EQ(received, kModelBytes);
  EXPECT_EQ(totals["copies"]["publisher"], 1.0);
  EXPECT_GT(totals["stall_seconds"]["transfer"], 0.0);
  EXPECT_THAT(RunTh({"top", "--once"}).output(), HasSubstr("copies 1.00 from publishers"));
}

TEST_F(LiveTest, TopInAPipePrintsPagesUntilASignal) {
  const auto publisher = Publish();
  RunningProgram top(Against({Th(), "top", "--interval", "100ms"}));
  EXPECT_THAT(top.AwaitLine("TensorHub, epoch"), Not(HasSubstr("\x1b")));
  EXPECT_THAT(top.AwaitLine("TensorHub, epoch"), HasSubstr("1 model"));  // and again
  top.process().Signal(SIGINT);
  EXPECT_EQ(top.Finish().status, kOk);
}

TEST_F(LiveTest, TopKeepsTheLastPictureWhileTheServerIsAway) {
  const auto publisher = Publish();
  RunningProgram top(Against({Th(), "top", "--interval", "100ms"}));
  RunningProgram as_json(Against({Th(), "top", "--interval", "100ms", "--json"}));
  const std::string head = top.AwaitLine("TensorHub, epoch ");
  EXPECT_NE(top.AwaitLine("trainer"), "");
  EXPECT_NE(as_json.AwaitLine("trainer"), "");
  server_.Kill();
  EXPECT_NE(top.AwaitLine("the server does not answer since "), "");
  EXPECT_THAT(top.AwaitLine("trainer"), HasSubstr("step-1"));
  EXPECT_TRUE(as_json.AwaitError("the server does not answer"));
  server_.Start();
  EXPECT_TRUE(as_json.AwaitError("the server answers again"));
  std::string later = head;
  while (later == head) later = top.AwaitLine("TensorHub, epoch ");
  EXPECT_NE(later, "") << "the page of the next epoch";
  top.process().Signal(SIGINT);
  EXPECT_EQ(top.Finish().status, kOk);
}

TEST_F(LiveTest, EventsGoOnWhileTheyAreFollowed) {
  RunningProgram events(Against({Th(), "events", "--follow", "--interval", "50ms", "--json"}));
  const auto publisher = Publish();
  const nlohmann::json published =
      nlohmann::json::parse(events.AwaitLine("published"), nullptr, false);
  EXPECT_EQ(published["who"], "trainer");
  absl::Time at;
  std::string error;
  EXPECT_TRUE(
      absl::ParseTime(absl::RFC3339_full, published["time"].get<std::string>(), &at, &error));
  EXPECT_LT(absl::AbsDuration(absl::Now() - at), absl::Minutes(1));
  const std::string event = Pull();
  EXPECT_THAT(events.AwaitLine("update moved"), HasSubstr(event));
  events.process().Signal(SIGTERM);
  EXPECT_EQ(events.Finish().status, kOk);
}

TEST_F(LiveTest, AnEventThatNobodyKnowsIsNotThere) {
  const auto publisher = Publish();
  std::string event = Pull();
  event += "7";  // of this epoch, and not yet there
  const ProgramRun run = RunTh({"events", "--id", event});
  EXPECT_EQ(run.status, kNotThere);
  EXPECT_THAT(run.errors, HasSubstr("remembers no event " + event));
}

TEST_F(LiveTest, WhatIsNoIdIsAUsageError) {
  const ProgramRun run = RunTh({"events", "--id", "twelve"});
  EXPECT_EQ(run.status, kUsage);
  EXPECT_THAT(run.errors, HasSubstr("7-1234"));
}

TEST_F(LiveTest, AnEventFromBeforeARestartIsLost) {
  const auto publisher = Publish();
  const std::string event = Pull();
  server_.Kill();
  ASSERT_TRUE(publisher->AwaitError("the server is away"));
  server_.Start();
  ASSERT_TRUE(publisher->AwaitError("the server is back"));
  const ProgramRun run = RunTh({"events", "--id", event});
  EXPECT_EQ(run.status, kNotThere);
  EXPECT_THAT(run.errors, HasSubstr("event " + event + " is LOST"));
  EXPECT_EQ(RunTh({"events", "--id", event, "--json"}).json()["error"]["code"], "NOT_FOUND");
}

TEST_F(LiveTest, WithoutWorkersThereIsTheServersStartAlone) {
  EXPECT_THAT(RunProgram({Th(), "events", "--server", server_.address()}).output(),
              HasSubstr("server started"));
  const ProgramRun named = RunTh({"events"});
  EXPECT_EQ(named.status, kNotThere);
  EXPECT_THAT(named.errors, HasSubstr("knows no run=r1 model=m"));
  const ProgramRun top =
      RunProgram({Th(), "top", "--once", "--json", "--server", server_.address()});
  EXPECT_EQ(top.json()["models"].size(), 0u);
}

}  // namespace
}  // namespace th
