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
  const ProgramRun run = RunTh({"attach", "--verify", "--json", "--transports", "same-host"});
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

// Its reason is in the error once: it is what the source did and why the attach was given up.
TEST_F(AttachCommandTest, AHolderThatLetsNothingBeMappedIsNamedWithTheReasonOnce) {
  const auto publisher = StartPublisher(MakeModelFolder("trainer", 1), "step-1",
                                        {"--ranks", "1", "--transports", "tcp"});
  publisher->AwaitLine("published");
  const ProgramRun run = RunTh({"attach"});
  EXPECT_EQ(run.status, kFailed);
  const std::string why = "it has no transport over which memory can be used in place";
  EXPECT_THAT(run.errors, HasSubstr("no holder of the version can be attached: trainer/0: " + why));
  EXPECT_EQ(run.errors.find(why), run.errors.rfind(why)) << run.errors;
}

// Its lease lasts, so the server counts it among the holders for a while.
TEST_F(AttachCommandTest, AVersionWhoseHolderWasJustKilledIsHeldByNobody) {
  const auto other = PublishOneShard(1, "step-1");
  const auto publisher = PublishOneShard(2, "step-2", "second");
  publisher->process().Signal(SIGKILL);
  EXPECT_EQ(publisher->Finish().status, -1);
  const ProgramRun run = RunTh({"attach", "--json"});
  EXPECT_EQ(run.status, kNotThere) << run.errors;
  EXPECT_EQ(run.json()["error"]["code"], "NOT_FOUND");
  EXPECT_THAT(run.errors,
              AllOf(HasSubstr("nobody holds version step-2"), HasSubstr("held is step-1")));
}

TEST_F(AttachCommandTest, OfSeveralShardsTheFlagThatNamesOneIsNamed) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  const ProgramRun run = RunTh({"attach"});
  EXPECT_EQ(run.status, kFailed);
  EXPECT_THAT(run.errors,
              AllOf(HasSubstr("has 2 shards in form hf"), HasSubstr("trainer (2 ranks)"),
                    HasSubstr("--shard GROUP/RANK, like --shard trainer/0")));
}

// A process that plays several ranks has their shards side by side in one arena, where the copy
// that one shard's readers cause would lose what is written into another.
TEST_F(AttachCommandTest, MemoryThatIsNoArenaOfItsOwnIsRefusedWithTheReason) {
  auto publisher = StartPublisher(MakeModelFolder("model", 1), "step-1");
  publisher->AwaitLine("published");
  RunningProgram follower(Against({Worker(), "follow", "--group", "follower", "--poll", "50ms"}));
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
