// th attach, run as a program against a server and holders that are programs too.
#include <signal.h>

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/program_run/program_run.h"
#include "th/cli/commands_fixture.h"
#include "th/command_line/json_lines.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kOk = 0, kFailed = 1, kNotThere = 4;

class AttachCommandTest : public CommandsTest {
 protected:
  // A publisher of one shard, which lies in an arena of TensorHub.
  std::unique_ptr<RunningProgram> PublishOneShard(int seed, const std::string& label,
                                                  const std::string& group = "trainer") {
    auto publisher =
        StartPublisher(MakeModelFolder(group, seed), label, {"--ranks", "1", "--group", group});
    EXPECT_THAT(publisher->AwaitLine("published"), HasSubstr("version=" + label));
    return publisher;
  }
};

TEST_F(AttachCommandTest, AVersionIsUsedWhereItsHolderHasIt) {
  const auto publisher = PublishOneShard(1, "step-1");
  const ProgramRun run = RunTh({"attach", "--verify", "--json"});
  ASSERT_EQ(run.status, kOk) << run.errors;
  EXPECT_EQ(run.json()["version"], "step-1");
  EXPECT_EQ(run.json()["source"], "trainer/0");
  EXPECT_EQ(run.json()["bytes"], 400'072);
  EXPECT_TRUE(run.json().contains("verify_seconds"));
  EXPECT_THAT(RunTh({"attach", "--verify", "--shard", "trainer/0"}).output(),
              AllOf(HasSubstr("in the memory of trainer/0"),
                    HasSubstr("all bytes are those that were published")));
}

TEST_F(AttachCommandTest, WhatIsAttachedOutlivesItsUnpublish) {
  auto publisher = PublishOneShard(1, "step-1");
  RunningProgram attach(Against({Th(), "attach", "--verify", "--hold"}));
  EXPECT_THAT(attach.AwaitLine("attached in"), HasSubstr("version step-1"));
  publisher->process().Signal(SIGTERM);  // it unpublishes and ends
  const ProgramRun ended = publisher->Finish();
  EXPECT_EQ(ended.status, kOk) << ended.errors;
  const auto next = PublishOneShard(2, "step-2", "second");
  attach.process().Signal(SIGTERM);
  const ProgramRun run = attach.Finish();
  EXPECT_EQ(run.status, kOk) << run.errors;
  EXPECT_THAT(run.output(), HasSubstr("at the end too all bytes are those that were published"));
  EXPECT_EQ(RunTh({"attach", "--verify", "--json"}).json()["version"], "step-2");
}

TEST_F(AttachCommandTest, AnUnknownLabelIsSaidToBeSoAndTheKnownOnesAreNamed) {
  const auto first = PublishOneShard(1, "step-1");
  const auto second = PublishOneShard(2, "step-2", "second");
  const ProgramRun run = RunTh({"attach", "--version", "step-9"});
  EXPECT_EQ(run.status, kNotThere);
  EXPECT_THAT(run.errors, AllOf(HasSubstr("step-9 is not published"),
                                HasSubstr("held are step-2, step-1"), Not(HasSubstr("nobody"))));
}

TEST_F(AttachCommandTest, WithoutAnyVersionItSaysSo) {
  const ProgramRun run = RunTh({"attach"});
  EXPECT_EQ(run.status, kNotThere);
  EXPECT_THAT(run.errors, HasSubstr("no version of the model is held by anybody"));
}

TEST_F(AttachCommandTest, OverATransportThatMapsNothingItIsRefusedWithTheReason) {
  const auto publisher = PublishOneShard(1, "step-1");
  const ProgramRun run = RunTh({"attach", "--transports", "tcp"});
  EXPECT_EQ(run.status, kFailed);
  EXPECT_THAT(run.errors,
              AllOf(HasSubstr("no holder of the version can be attached"),
                    HasSubstr("trainer/0: this reader has no transport over which memory "
                              "can be used in place")));
}

// A process that plays several ranks has their shards side by side in one arena, where the copy
// that one shard's readers cause would lose what is written into another.
TEST_F(AttachCommandTest, MemoryThatIsNoArenaOfItsOwnIsRefusedWithTheReason) {
  auto publisher = StartPublisher(MakeModelFolder("model", 1), "step-1");
  publisher->AwaitLine("published");
  RunningProgram follower(Against({Worker(), "follow", "--poll", "0.05"}));
  follower.AwaitLine("version=step-1");
  publisher->process().Signal(SIGTERM);
  EXPECT_EQ(publisher->Finish().status, kOk);
  const ProgramRun run = RunTh({"attach", "--shard", "follower/0"});
  EXPECT_EQ(run.status, kFailed);
  EXPECT_THAT(run.errors, AllOf(HasSubstr("follower/0"), HasSubstr("arenas of TensorHub's own")));
  follower.process().Signal(SIGTERM);
  EXPECT_EQ(follower.Finish().status, kOk);
}

}  // namespace
}  // namespace th
