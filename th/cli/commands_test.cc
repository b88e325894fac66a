// The commands against a real server and real workers.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/program_run/program_run.h"
#include "th/cli/commands_fixture.h"
#include "th/command_line/json_lines.h"

namespace th {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kOk = 0, kFailed = 1, kUnreachable = 3, kNotThere = 4, kLocalFiles = 5;

TEST_F(CommandsTest, AnEmptyServerListsNothing) {
  const ProgramRun run = RunProgram({Th(), "list", "--server", server_.address()});
  EXPECT_EQ(run.status, kOk) << run.errors;
  EXPECT_THAT(run.output(), HasSubstr("nothing is published"));
}

TEST_F(CommandsTest, AModelThatNobodyKnowsIsNotThere) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"list"}, {"list", "--json"}, {"top", "--once"}, {"top"}}) {
    const ProgramRun run = RunTh(arguments);
    EXPECT_EQ(run.status, kNotThere) << arguments[0];
    EXPECT_THAT(run.errors, HasSubstr("knows no run=r1 model=m")) << arguments[0];
  }
  EXPECT_EQ(RunTh({"list", "--json"}).json()["error"]["code"], "NOT_FOUND");
}

TEST_F(CommandsTest, WhatIsNotThereIsNamed) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"describe"},
                                                    {"pull", FreshFolder("none")},
                                                    {"rollback", "step-9"},
                                                    {"pin", "step-9"},
                                                    {"verify", MakeModelFolder("none", 1)}}) {
    const ProgramRun run = RunTh(arguments);
    EXPECT_EQ(run.status, kNotThere) << arguments[0] << ": " << run.errors;
    EXPECT_THAT(run.errors, HasSubstr("model=m")) << arguments[0];
  }
}

TEST_F(CommandsTest, APublishedFolderIsListedDescribedPulledAndVerified) {
  const std::string model = MakeModelFolder("model", 1), other = MakeModelFolder("other", 2);
  const auto publisher = Publish(model, "step-1");

  EXPECT_THAT(RunTh({"list"}).output(), HasSubstr("step-1 (#"));
  const nlohmann::json described = RunTh({"describe", "step-1", "--json"}).json();
  EXPECT_EQ(described["label"], "step-1");
  EXPECT_EQ(described["replicas"][0]["ranks"].size(), 2u);
  EXPECT_THAT(RunTh({"describe", "trainer"}).output(), HasSubstr("trainer/1"));

  const std::string pulled = FreshFolder("pulled") + "/here";
  const ProgramRun pull = RunTh({"pull", pulled, "--json"});
  ASSERT_EQ(pull.status, kOk) << pull.errors;
  EXPECT_EQ(pull.json()["bytes"], 400'072);
  EXPECT_EQ(pull.json()["version"], "step-1");
  EXPECT_EQ(RunProgram({Th(), "verify", model, pulled}).status, kOk);

  for (const std::vector<std::string>& how : {std::vector<std::string>{}, {"--bytes"}}) {
    std::vector<std::string> right = {"verify", pulled}, wrong = {"verify", other};
    right.insert(right.end(), how.begin(), how.end());
    wrong.insert(wrong.end(), how.begin(), how.end());
    const ProgramRun same = RunTh(right), different = RunTh(wrong);
    EXPECT_EQ(same.status, kOk) << same.output() << same.errors;
    EXPECT_EQ(different.status, kFailed) << different.output();
    EXPECT_THAT(different.output(), HasSubstr("DIFFERENT"));
  }
}

// Its process ends: who counted on it would let go of the copy that outlives it.
TEST_F(CommandsTest, APullIsNoHolderOfWhatIsRetained) {
  RunningProgram follower(
      Against({Worker(), "follow", "--poll", "50ms", "--offload-limit", "1MiB"}));
  auto first = Publish(MakeModelFolder("model", 1), "step-1");
  follower.AwaitLine("version=step-1");
  ASSERT_EQ(RunTh({"pin", "step-1"}).status, kOk);
  first->process().Signal(SIGTERM);
  EXPECT_EQ(first->Finish().status, kOk);
  const std::string model = MakeModelFolder("model", 1);
  const auto second = Publish(MakeModelFolder("other", 2), "step-2");
  follower.AwaitLine("version=step-2");
  for (const std::string into : {"once", "twice"}) {
    const ProgramRun pull = RunTh({"pull", FreshFolder(into) + "/here", "--version", "step-1"});
    EXPECT_EQ(pull.status, kOk) << into << ": " << pull.errors;
  }
  const ProgramRun verify = RunTh({"verify", model, "--bytes", "--version", "step-1"});
  EXPECT_EQ(verify.status, kOk) << verify.errors;
  EXPECT_EQ(RunTh({"pull", FreshFolder("last") + "/here", "--version", "step-1"}).status, kOk);
}

TEST_F(CommandsTest, PullOverwritesNothing) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  const std::string precious = MakeModelFolder("precious", 2);
  const ProgramRun run = RunTh({"pull", precious});
  EXPECT_EQ(run.status, kLocalFiles);
  EXPECT_THAT(run.errors, HasSubstr(precious));
  EXPECT_EQ(RunProgram({Th(), "verify", precious, MakeModelFolder("again", 2)}).status, kOk);
}

TEST_F(CommandsTest, WhatTheNodeNamesStandsInNobodysWay) {
  const std::string model = MakeModelFolder("model", 1);
  const auto publisher = Publish(model, "step-1");
  setenv("TH_RUN", "another", /*overwrite=*/1);
  EXPECT_EQ(RunProgram({Th(), "verify", model, model}).status, kOk);
  const ProgramRun named = RunProgram({Th(), "list", "--server", server_.address()});
  EXPECT_EQ(named.status, kNotThere);
  EXPECT_THAT(named.errors, HasSubstr("th list --all"));
  EXPECT_THAT(RunProgram({Th(), "list", "--all", "--server", server_.address()}).output(),
              HasSubstr("step-1"));
  unsetenv("TH_RUN");
}

TEST_F(CommandsTest, ARollBackWithdrawsLaterVersions) {
  const std::string first = MakeModelFolder("first", 1);
  auto publisher = Publish(first, "step-1");
  publisher->process().Signal(SIGTERM);
  EXPECT_EQ(publisher->Finish().status, kOk);
  publisher = Publish(MakeModelFolder("second", 2), "step-2");
  const ProgramRun back = RunTh({"rollback", "step-1"});
  EXPECT_EQ(back.status, kOk) << back.errors;
  EXPECT_THAT(back.output(), HasSubstr("back at version step-1"));
  EXPECT_THAT(back.output(), HasSubstr("withdrawn: step-2"));
  EXPECT_THAT(RunTh({"pull", FreshFolder("withdrawn"), "--version", "step-2"}).errors,
              HasSubstr("step-2"));
  EXPECT_THAT(RunTh({"describe", "step-2"}).output(), HasSubstr("a roll-back withdrew it"));
  EXPECT_EQ(RunTh({"describe", "step-2", "--json"}).json()["withdrawn"], true);
  EXPECT_THAT(RunTh({"rollback", "step-1"}).output(), HasSubstr("nothing was withdrawn"));
  EXPECT_THAT(RunTh({"events"}).output(),
              ContainsRegex("controller at 127\\.0\\.0\\.1  rolled back: to step-1"));
}

TEST_F(CommandsTest, ARollBacksKeyIsGoodForOneVersion) {
  const auto first = Publish(MakeModelFolder("first", 1), "step-1");
  const auto publish_second = [&] {
    auto second =
        StartPublisher(MakeModelFolder("second", 2), "step-2", {"--ranks", "2", "--group", "b"});
    second->AwaitLine("published");
    return second;
  };
  auto second = publish_second();
  EXPECT_EQ(RunTh({"rollback", "step-1", "--key", "k", "--json"}).json()["withdrawn"].size(), 1u);
  second.reset();
  second = publish_second();
  const ProgramRun other = RunTh({"rollback", "step-2", "--key", "k"});
  EXPECT_EQ(other.status, kFailed) << other.output();
  EXPECT_THAT(other.errors, HasSubstr("--key k is that of an earlier roll-back, to step-1"));
  const ProgramRun again = RunTh({"rollback", "step-1", "--key", "k"});
  EXPECT_EQ(again.status, kOk) << again.errors;
  EXPECT_THAT(again.output(), HasSubstr("nothing was done"));
  EXPECT_EQ(RunTh({"pull", FreshFolder("pulled") + "/here", "--version", "step-2"}).status, kOk);
}

TEST_F(CommandsTest, APinOfWhatNobodyHoldsIsShownAsLostAfterARestart) {
  auto first = Publish(MakeModelFolder("first", 1), "step-1");
  EXPECT_EQ(RunTh({"pin", "step-1", "--owner", "eval"}).status, kOk);
  const std::string lost = "#" + SequenceOf("step-1");
  const auto second =
      StartPublisher(MakeModelFolder("second", 2), "step-2", {"--ranks", "2", "--group", "b"});
  second->AwaitLine("published");
  server_.Kill();
  ASSERT_TRUE(second->AwaitError("the server is away"));
  first.reset();
  server_.Start();
  ASSERT_TRUE(second->AwaitError("the server is back"));
  RunningProgram follower(Against({Worker(), "follow", "--poll", "50ms"}));
  follower.AwaitLine("version=step-2");  // the recovery is over
  ProgramRun listed = RunTh({"list"});
  while (absl::StrContains(listed.output(), "ranks may still come back")) {
    EXPECT_THAT(listed.output(), Not(HasSubstr("LOST")));
    listed = RunTh({"list"});
  }
  EXPECT_THAT(listed.output(), HasSubstr("LOST, pinned"));
  EXPECT_THAT(RunTh({"describe", lost}).output(), HasSubstr("eval"));
  EXPECT_EQ(RunTh({"release", lost, "--owner", "eval"}).status, kOk);
  EXPECT_THAT(RunTh({"list"}).output(), Not(HasSubstr("LOST")));
}

TEST_F(CommandsTest, APinIsShownUntilItIsReleased) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  EXPECT_EQ(RunTh({"pin", "step-1", "--owner", "eval"}).status, kOk);
  EXPECT_THAT(RunTh({"describe", "step-1"}).output(), HasSubstr("eval"));
  EXPECT_EQ(RunTh({"release", "step-1", "--owner", "eval"}).status, kOk);
  EXPECT_THAT(RunTh({"describe", "step-1"}).output(), Not(HasSubstr("eval")));
}

TEST_F(CommandsTest, WhatIsPinnedAndReleasedIsNamedWhateverItWasAskedBy) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  const std::string sequence = SequenceOf("step-1");
  EXPECT_THAT(RunTh({"pin", "latest", "--expires-after", "1h"}).output(),
              HasSubstr("version step-1 (#" + sequence + ") is pinned by th for 1h"));
  EXPECT_THAT(RunTh({"release", "latest"}).output(),
              HasSubstr("version step-1 (#" + sequence + ") is no longer pinned"));
  EXPECT_TRUE(RunTh({"pin", "latest", "--json"}).json()["expires_after_seconds"].is_null());
  const nlohmann::json released = RunTh({"release", "latest", "--json"}).json();
  EXPECT_EQ(released["version"], "step-1");
  EXPECT_EQ(released["sequence"], sequence);
}

TEST_F(CommandsTest, RetentionAndPinsMayBeOfOneForm) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  EXPECT_EQ(RunTh({"retain", "2"}).status, kOk);
  EXPECT_THAT(RunTh({"retain", "5", "--form", "fused"}).output(),
              HasSubstr("nobody holds a version in form fused (held: hf)"));
  const nlohmann::json model = RunTh({"list", "--json"}).json()["models"][0];
  EXPECT_EQ(model["keep_latest"], 2);
  EXPECT_EQ(model["keep_latest_of_form"], nlohmann::json({{"fused", 5}}));
  EXPECT_EQ(RunTh({"pin", "step-1", "--owner", "eval", "--form", "hf"}).status, kOk);
  EXPECT_THAT(RunTh({"describe", "step-1"}).output(), HasSubstr("eval"));
  EXPECT_EQ(RunTh({"pin", "step-1", "--owner", "slip", "--form", "fp8", "--json"}).json()["note"],
            "nobody holds it in form fp8 (held: hf)");
  EXPECT_EQ(RunTh({"release", "step-1", "--owner", "eval", "--form", "hf"}).status, kOk);
  EXPECT_THAT(RunTh({"describe", "step-1"}).output(), Not(HasSubstr("eval")));
}

TEST_F(CommandsTest, OtherContentUnderAUsedLabelIsRefused) {
  auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  const ProgramRun run =
      StartPublisher(MakeModelFolder("other", 2), "step-1", {"--ranks", "2", "--group", "second"})
          ->Finish();
  EXPECT_EQ(run.status, kFailed) << run.errors;
  EXPECT_THAT(run.errors, HasSubstr("step-1"));
}

TEST_F(CommandsTest, AFurtherGroupMayPublishTheSameContent) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  const auto second =
      StartPublisher(MakeModelFolder("copy", 1), "step-1", {"--ranks", "2", "--group", "second"});
  EXPECT_THAT(second->AwaitLine("published"), HasSubstr("step-1"));
}

TEST_F(CommandsTest, TwoWorkersThatClaimOneRankAreToldApart) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  const ProgramRun run = StartPublisher(MakeModelFolder("copy", 1), "step-2")->Finish();
  EXPECT_EQ(run.status, kFailed) << run.errors;
  EXPECT_THAT(run.errors, HasSubstr("trainer/0"));
  EXPECT_THAT(run.errors, HasSubstr("--group NAME"));
}

TEST_F(CommandsTest, WhatNobodyHoldsNamesTheWaysOut) {
  const auto first = Publish(MakeModelFolder("first", 1), "step-1");
  auto second =
      StartPublisher(MakeModelFolder("second", 2), "step-2", {"--ranks", "2", "--group", "other"});
  second->AwaitLine("published");
  second->process().Signal(SIGTERM);
  EXPECT_EQ(second->Finish().status, kOk);
  const ProgramRun pull = RunTh({"pull", FreshFolder("none")});
  EXPECT_EQ(pull.status, kNotThere);
  EXPECT_THAT(pull.errors, HasSubstr("the newest that is held in it is step-1"));
  EXPECT_THAT(pull.errors, HasSubstr("--version"));
  EXPECT_THAT(pull.errors, HasSubstr("th rollback"));
  EXPECT_THAT(pull.errors, HasSubstr("have version 'step-2' published again"));
}

TEST_F(CommandsTest, AFollowerWritesEachVersionAndServesItOn) {
  const std::string model = MakeModelFolder("model", 1), into = FreshFolder("followed");
  RunningProgram follower(Against({Worker(), "follow", "--into", into, "--poll", "50ms"}));
  ASSERT_TRUE(follower.AwaitError("waiting for a version"));
  auto publisher = Publish(model, "step-1");
  const std::string line = follower.AwaitLine("version=step-1");
  const std::string folder = line.substr(line.find("folder=") + 7);
  EXPECT_EQ(RunProgram({Th(), "verify", model, folder}).status, kOk);

  publisher->process().Signal(SIGTERM);
  EXPECT_EQ(publisher->Finish().status, kOk);
  const ProgramRun served = RunTh({"verify", model, "--bytes"});
  EXPECT_EQ(served.status, kOk) << served.errors;

  follower.process().Signal(SIGTERM);
  EXPECT_EQ(follower.Finish().status, kOk);
}

TEST_F(CommandsTest, AFollowerServesOnWhenTheLatestHasOtherShards) {
  const std::string model = MakeModelFolder("model", 1);
  RunningProgram follower(Against({Worker(), "follow", "--poll", "50ms"}));
  auto publisher = Publish(model, "step-1");
  follower.AwaitLine("version=step-1");
  auto other =
      StartPublisher(MakeModelFolder("other", 2), "step-2", {"--ranks", "1", "--group", "other"});
  other->AwaitLine("published");
  ASSERT_TRUE(follower.AwaitError("a follower that is started again takes the others"));
  publisher->process().Signal(SIGTERM);
  EXPECT_EQ(publisher->Finish().status, kOk);
  const ProgramRun served = RunTh({"verify", model, "--bytes", "--version", "step-1"});
  EXPECT_EQ(served.status, kOk) << served.errors;
  const auto third =
      StartPublisher(MakeModelFolder("third", 3), "step-3", {"--ranks", "2", "--group", "third"});
  follower.AwaitLine("version=step-3");
  size_t failed = 0;
  for (const auto line : absl::StrSplit(RunTh({"events"}).output(), '\n')) {
    failed += absl::StrContains(line, "operation failed") ? 1 : 0;
  }
  EXPECT_LE(failed, 2u) << "a version that does not fit is not tried again and again";
  // One that fits is taken after a roll-back to it, whatever was refused since.
  const auto fourth =
      StartPublisher(MakeModelFolder("fourth", 4), "step-4", {"--ranks", "2", "--group", "fourth"});
  follower.AwaitLine("version=step-4");
  const auto fifth =
      StartPublisher(MakeModelFolder("fifth", 5), "step-5", {"--ranks", "1", "--group", "fifth"});
  fifth->AwaitLine("published");
  ASSERT_TRUE(follower.AwaitError("nobody holds its shard of step-5"));
  EXPECT_EQ(RunTh({"rollback", "step-3"}).status, kOk);
  EXPECT_NE(follower.AwaitLine("version=step-3"), "");
  follower.process().Signal(SIGTERM);
  EXPECT_EQ(follower.Finish().status, kOk);
}

TEST_F(CommandsTest, APullWhoseOnlySourceDiesSaysThatNobodyHoldsIt) {
  const auto publisher = StartPublisher(MakeModelFolder("model", 1), "step-1",
                                        {"--rate", "100KB/s", "--transports", "tcp"});  // some 4 s
  publisher->AwaitLine("published");
  RunningProgram pull(Against({Th(), "pull", FreshFolder("pulled") + "/here"}));
  ASSERT_TRUE(pull.AwaitError("from trainer/0"));
  publisher->process().Signal(SIGKILL);
  const ProgramRun run = pull.Finish();
  EXPECT_EQ(run.status, kNotThere) << run.errors;
  EXPECT_THAT(run.errors, AllOf(HasSubstr("nobody holds version step-1"),
                                HasSubstr("have version 'step-1' published again")));
}

TEST_F(CommandsTest, APullWhoseSourceIsStoppedSaysThatItIsHeldAndSilent) {
  // Whoever is silent stays a holder.
  RunningProgram server({Server(), "--listen=127.0.0.1:0", "--json", "--lease=1h",
                         "--state-dir=" + FreshFolder("state")});
  const std::string address = ParseLine(server.AwaitLine("address"))["address"];
  RunningProgram publisher({Worker(), "publish", "--dir", MakeModelFolder("model", 1), "--label",
                            "step-1", "--rate", "50KB/s", "--transports", "tcp",  // some 8 s
                            "--server", address});
  publisher.AwaitLine("published");
  RunningProgram pull({Th(), "pull", FreshFolder("pulled") + "/here", "--server", address});
  ASSERT_TRUE(pull.AwaitError("from trainer/0"));
  publisher.process().Signal(SIGSTOP);
  const ProgramRun run = pull.Finish();
  EXPECT_EQ(run.status, kFailed) << run.errors;
  EXPECT_THAT(run.errors, AllOf(HasSubstr("UPDATE_STALLED"), HasSubstr("SIGSTOP"),
                                Not(HasSubstr("nobody holds"))));
}

TEST_F(CommandsTest, APullWithoutATransportInCommonNamesThoseOfTheHolder) {
  const auto publisher = StartPublisher(MakeModelFolder("model", 1), "step-1",
                                        {"--ranks", "2", "--transports", "tcp"});
  publisher->AwaitLine("published");
  const ProgramRun run =
      RunTh({"pull", FreshFolder("pulled") + "/here", "--transports", "same-host", "--json"});
  EXPECT_EQ(run.status, kFailed) << run.errors;
  EXPECT_EQ(run.json()["error"]["code"], "FAILED_PRECONDITION");
  EXPECT_THAT(run.errors,
              AllOf(HasSubstr("no transport in common"),
                    HasSubstr("trainer holds it and can be read over tcp: leave --transports out"),
                    Not(HasSubstr("nobody holds"))));
}

TEST_F(CommandsTest, AnUnknownLabelIsRefusedWithThoseThatAreHeld) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  const ProgramRun run = RunTh({"pull", FreshFolder("none"), "--version", "step-9"});
  EXPECT_EQ(run.status, kNotThere);
  EXPECT_THAT(run.errors, HasSubstr("held is step-1"));
}

// The process would not do without adapters that it names, as a machine without any does.
TEST_F(CommandsTest, RdmaThatIsNamedAndNotThereIsRefusedWithTheFlag) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  const ProgramRun run =
      RunTh({"pull", FreshFolder("pulled") + "/here", "--transports", "rdma,tcp"});
  if (run.status == kOk) GTEST_SKIP() << "this machine has an RDMA device";
  EXPECT_EQ(run.status, kFailed);
  EXPECT_THAT(run.errors, HasSubstr("leave ibverbs out of --transports to do without it"));
}

TEST_F(CommandsTest, TheLastHolderOfWhatIsRetainedSaysWhatItsEndLoses) {
  auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  RunningProgram follower(Against({Worker(), "follow", "--poll", "50ms"}));
  follower.AwaitLine("version=step-1");
  EXPECT_EQ(RunTh({"retain", "1"}).status, kOk);
  publisher->process().Signal(SIGTERM);
  EXPECT_THAT(publisher->Finish().errors, Not(HasSubstr("LOST")));  // the follower has it
  follower.process().Signal(SIGTERM);
  const ProgramRun last = follower.Finish();
  EXPECT_EQ(last.status, kOk);
  EXPECT_THAT(last.errors, HasSubstr("RETAINED VERSION LOST: step-1"));

  publisher = Publish(MakeModelFolder("other", 2), "step-2");
  publisher->process().Signal(SIGTERM);
  EXPECT_THAT(publisher->Finish().errors, HasSubstr("RETAINED VERSION LOST: step-2"));
  EXPECT_THAT(RunTh({"events"}).output(), HasSubstr("retained version lost: step-2"));
}

TEST_F(CommandsTest, AFollowerServesOnWhatItMayNotLetGo) {
  const std::string model = MakeModelFolder("model", 1);
  auto publisher = Publish(model, "step-1");
  EXPECT_EQ(RunTh({"retain", "2"}).status, kOk);
  RunningProgram follower(
      Against({Worker(), "follow", "--poll", "20ms", "--offload-limit", "10B"}));
  ASSERT_TRUE(follower.AwaitError("too small for any copy"));
  follower.AwaitLine("version=step-1");
  publisher->process().Signal(SIGTERM);
  EXPECT_EQ(publisher->Finish().status, kOk);
  const auto next =
      StartPublisher(MakeModelFolder("next", 2), "step-2", {"--ranks", "2", "--group", "other"});
  next->AwaitLine("published");
  ASSERT_TRUE(follower.AwaitError("serves what it holds"));
  const ProgramRun served = RunTh({"verify", model, "--bytes", "--version", "step-1"});
  EXPECT_EQ(served.status, kOk) << served.errors;
  EXPECT_EQ(RunTh({"retain", "0"}).status, kOk);
  follower.AwaitLine("version=step-2");
  follower.process().Signal(SIGTERM);
  EXPECT_EQ(follower.Finish().status, kOk);
}

TEST_F(CommandsTest, AStagingLimitWithoutRoomForAShardIsSaidAtOnce) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--stage"}}) {
    std::vector<std::string> follow = {Worker(), "follow", "--staging-limit", "1000B"};
    follow.insert(follow.end(), more.begin(), more.end());
    const ProgramRun run = RunProgram(Against(std::move(follow)));
    EXPECT_EQ(run.status, kFailed) << run.errors;
    EXPECT_THAT(run.errors, HasSubstr("--staging-limit is 1000B for each rank"));
    EXPECT_THAT(RunTh({"events"}).output(), Not(HasSubstr("follower")));
  }
}

TEST_F(CommandsTest, AFollowerSaysWhenTheServerGoesAndComesBack) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  RunningProgram follower(Against({Worker(), "follow", "--poll", "50ms"}));
  follower.AwaitLine("version=step-1");
  server_.Kill();
  ASSERT_TRUE(follower.AwaitError("the server is away"));
  server_.Start();
  ASSERT_TRUE(follower.AwaitError("the server is back"));
  follower.process().Signal(SIGTERM);
  EXPECT_EQ(follower.Finish().status, kOk);
}

TEST_F(CommandsTest, AFollowerSaysThatWhatItHoldsWasWithdrawn) {
  auto first = Publish(MakeModelFolder("first", 1), "step-1");
  first->process().Signal(SIGTERM);
  EXPECT_EQ(first->Finish().status, kOk);
  const auto second = Publish(MakeModelFolder("second", 2), "step-2");
  RunningProgram follower(Against({Worker(), "follow", "--poll", "50ms"}));
  follower.AwaitLine("version=step-2");
  const std::string withdrawn = "step-2 (#" + SequenceOf("step-2") + ")";
  EXPECT_EQ(RunTh({"rollback", "step-1"}).status, kOk);
  ASSERT_TRUE(follower.AwaitError(withdrawn + ", which is held, was withdrawn by a roll-back"));
  ASSERT_TRUE(follower.AwaitError("nobody holds the latest version"));
  follower.process().Signal(SIGTERM);
  EXPECT_EQ(follower.Finish().status, kOk);
}

TEST_F(CommandsTest, APullSaysThatItWaitsForTheServer) {
  const auto publisher = StartPublisher(MakeModelFolder("model", 1), "step-1",
                                        {"--rate", "50KB/s", "--transports", "tcp"});  // some 8 s
  publisher->AwaitLine("published");
  RunningProgram pull(Against({Th(), "pull", FreshFolder("pulled") + "/here", "--timeout", "1h"}));
  ASSERT_TRUE(pull.AwaitError("from trainer/0"));
  server_.Kill();
  ASSERT_TRUE(pull.AwaitError("is away since"));
  ASSERT_TRUE(pull.AwaitError("waiting for it until"));
  server_.Start();
  ASSERT_TRUE(pull.AwaitError("is back"));
  pull.process().Signal(SIGINT);
  EXPECT_EQ(pull.Finish().status, 130);
}

TEST_F(CommandsTest, RetentionOfAModelWithoutVersionsSaysSo) {
  const ProgramRun mistaken = RunTh({"retain", "2"});
  EXPECT_EQ(mistaken.status, kNotThere);
  EXPECT_THAT(mistaken.errors, HasSubstr("--create"));
  EXPECT_EQ(RunTh({"list"}).status, kNotThere);
  EXPECT_THAT(RunTh({"retain", "2", "--create"}).output(), HasSubstr("no version yet"));
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  EXPECT_THAT(RunTh({"retain", "2"}).output(), Not(HasSubstr("no version yet")));
  EXPECT_THAT(RunTh({"describe", "step-1"}).output(), HasSubstr("the 2 newest versions"));
}

TEST_F(CommandsTest, AModelIsForgottenOnceItsWorkersHaveLeft) {
  EXPECT_EQ(RunTh({"forget"}).status, kNotThere);
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  EXPECT_EQ(RunTh({"pin", "step-1", "--owner", "eval"}).status, kOk);
  const ProgramRun used = RunTh({"forget"});
  EXPECT_EQ(used.status, kFailed);
  EXPECT_THAT(used.errors, HasSubstr("in use by trainer: it can be forgotten once"));
  publisher->process().Signal(SIGTERM);
  EXPECT_EQ(publisher->Finish().status, kOk);
  const ProgramRun forgotten = RunTh({"forget"});
  EXPECT_EQ(forgotten.status, kOk);
  EXPECT_THAT(forgotten.output(), HasSubstr("with the record of 1 version and 1 pin"));
  EXPECT_EQ(RunTh({"list"}).status, kNotThere);
  EXPECT_THAT(RunTh({"events"}).output(), HasSubstr("model forgotten"));
}

TEST_F(CommandsTest, AFollowerKnowsTheFoldersThatItWroteBefore) {
  const std::string into = FreshFolder("followed");
  const std::vector<std::string> follow =
      Against({Worker(), "follow", "--into", into, "--poll", "50ms"});
  const auto first = Publish(MakeModelFolder("first", 1), "step-1");
  {
    RunningProgram follower(follow);
    follower.AwaitLine("version=step-1");
    follower.process().Signal(SIGTERM);
    EXPECT_EQ(follower.Finish().status, kOk);
  }
  RunningProgram again(follow);
  again.AwaitLine("version=step-1");
  const auto second =
      StartPublisher(MakeModelFolder("second", 2), "step-2", {"--ranks", "2", "--group", "other"});
  again.AwaitLine("version=step-2");
  EXPECT_EQ(RunTh({"rollback", "step-1"}).status, kOk);
  const std::string line = again.AwaitLine("version=step-1");
  EXPECT_EQ(RunProgram({Th(), "verify", line.substr(line.find("folder=") + 7),
                        MakeModelFolder("expected", 1)})
                .status,
            kOk);
  again.process().Signal(SIGTERM);
  EXPECT_EQ(again.Finish().status, kOk);
}

TEST_F(CommandsTest, AFollowerKeepsTheNewestFoldersAndRemovesLeftovers) {
  const std::string into = FreshFolder("followed");
  const std::string left = into + "/1.1-step-0.unfinished-a1b2c3";
  fs::create_directory(left);
  RunningProgram follower(
      Against({Worker(), "follow", "--into", into, "--poll", "50ms", "--keep", "2"}));
  ASSERT_TRUE(follower.AwaitError("removed " + left));
  std::unique_ptr<RunningProgram> publisher;
  for (const std::string label : {"step-1", "step-2", "step-3"}) {
    const std::string model = MakeModelFolder("model-" + label, label.back() - '0');
    publisher = StartPublisher(model, label, {"--ranks", "2", "--group", "of-" + label});
    publisher->AwaitLine("published");
    follower.AwaitLine("version=" + label);
  }
  EXPECT_TRUE(fs::exists(into + "/" + SequenceOf("step-3") + "-step-3"));
  EXPECT_TRUE(fs::exists(into + "/" + SequenceOf("step-2") + "-step-2"));
  EXPECT_EQ(std::distance(fs::directory_iterator(into), fs::directory_iterator()), 2);
  follower.process().Signal(SIGTERM);
  EXPECT_EQ(follower.Finish().status, kOk);
}

TEST_F(CommandsTest, AFollowerRemovesWhatWasRolledBackBeforeWhatIsOlder) {
  const std::string into = FreshFolder("followed");
  RunningProgram follower(
      Against({Worker(), "follow", "--into", into, "--poll", "50ms", "--keep", "2"}));
  std::vector<std::unique_ptr<RunningProgram>> publishers;
  const auto publish = [&](const std::string& label) {
    const std::string model = MakeModelFolder("model-" + label, label.back() - '0');
    publishers.push_back(StartPublisher(model, label, {"--ranks", "2", "--group", "of-" + label}));
    publishers.back()->AwaitLine("published");
    follower.AwaitLine("version=" + label);
  };
  publish("step-1");
  const std::string first = SequenceOf("step-1") + "-step-1";
  publish("step-2");
  ASSERT_EQ(RunTh({"rollback", "step-1"}).status, kOk);
  follower.AwaitLine("version=step-1");
  publish("step-3");
  ASSERT_TRUE(follower.AwaitError("withdrawn ones go first"));
  EXPECT_TRUE(fs::exists(into + "/" + first));
  EXPECT_TRUE(fs::exists(into + "/" + SequenceOf("step-3") + "-step-3"));
  EXPECT_EQ(std::distance(fs::directory_iterator(into), fs::directory_iterator()), 2);
  follower.process().Signal(SIGTERM);
  EXPECT_EQ(follower.Finish().status, kOk);
}

TEST_F(CommandsTest, AFollowerOnAFullDiskServesOnAndTakesTheNextVersion) {
  const std::string into = FreshFolder("full"), second_model = MakeModelFolder("second", 2);
  auto first = Publish(MakeModelFolder("first", 1), "step-1");
  // A limit on the size of files is a disk that is full after so many blocks of 512 bytes.
  RunningProgram follower({"/bin/sh", "-c", "ulimit -f 200; exec \"$@\"", "sh", Worker(), "follow",
                           "--into", into, "--poll", "50ms", "--server", server_.address(), "--run",
                           "r1", "--model", "m"});
  ASSERT_TRUE(follower.AwaitError("step-1"));
  ASSERT_TRUE(follower.AwaitError("is served from memory and is in no folder"));
  EXPECT_THAT(follower.AwaitLine("version=step-1"), Not(HasSubstr("folder=")));
  first->process().Signal(SIGTERM);
  EXPECT_EQ(first->Finish().status, kOk);
  auto second = StartPublisher(second_model, "step-2", {"--ranks", "2", "--group", "b"});
  second->AwaitLine("published");
  follower.AwaitLine("version=step-2");
  second->process().Signal(SIGTERM);
  EXPECT_EQ(second->Finish().status, kOk);
  const ProgramRun served = RunTh({"verify", second_model, "--bytes"});
  EXPECT_EQ(served.status, kOk) << served.errors;
  EXPECT_TRUE(fs::is_empty(into));
  follower.process().Signal(SIGTERM);
  EXPECT_EQ(follower.Finish().status, kOk);
}

TEST_F(CommandsTest, AFollowerOverwritesNoOtherModelsFolder) {
  const std::string into = FreshFolder("followed");
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  const std::string folder = SequenceOf("step-1") + "-step-1";
  fs::rename(MakeModelFolder("other", 2), into + "/" + folder);
  const ProgramRun run = RunProgram(Against({Worker(), "follow", "--into", into}));
  EXPECT_EQ(run.status, kLocalFiles) << run.errors;
  EXPECT_THAT(run.errors, HasSubstr(folder + " is there already and is not version step-1"));
}

TEST_F(CommandsTest, AFollowerSaysInWhichFormsThereIsAVersion) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  RunningProgram follower(Against({Worker(), "follow", "--form", "fused", "--poll", "50ms"}));
  ASSERT_TRUE(follower.AwaitError("in form fused"));
  ASSERT_TRUE(follower.AwaitError("hf"));
  follower.process().Signal(SIGTERM);
  EXPECT_EQ(follower.Finish().status, kOk);
}

TEST_F(CommandsTest, APublisherHoldsOnWhileTheServerIsAway) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  server_.Kill();
  ASSERT_TRUE(publisher->AwaitError("trainer/1: the server is away"));
  server_.Start();
  ASSERT_TRUE(publisher->AwaitError("trainer/1: the server is back"));
  RunningProgram follower(Against({Worker(), "follow"}));
  follower.AwaitLine("version=step-1");
  publisher->process().Signal(SIGTERM);
  EXPECT_EQ(publisher->Finish().status, kOk);
}

TEST_F(CommandsTest, OneWaitsForAVersionAndForGroupsThatHoldIt) {
  RunningProgram published(Against({Th(), "wait", "step-1", "--json"}));
  RunningProgram pulled(Against(
      {Th(), "pull", FreshFolder("pulled") + "/here", "--wait", "--version", "step-1", "--json"}));
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  EXPECT_EQ(published.Finish().status, kOk);
  const ProgramRun pull = pulled.Finish();
  EXPECT_EQ(pull.status, kOk) << pull.errors;

  const ProgramRun lacking =
      RunTh({"wait", "step-1", "--groups", "trainer,rollout", "--timeout", "10ms"});
  EXPECT_EQ(lacking.status, kFailed);
  EXPECT_THAT(lacking.output(), AllOf(HasSubstr("is held by trainer"), HasSubstr("rollout ")));
  RunningProgram held(Against({Th(), "wait", "step-1", "--groups", "trainer,rollout", "--json"}));
  RunningProgram follower(Against({Worker(), "follow", "--group", "rollout", "--poll", "50ms"}));
  const ProgramRun run = held.Finish();
  EXPECT_EQ(run.status, kOk) << run.errors;
  EXPECT_EQ(run.json()["applied"], nlohmann::json({"trainer", "rollout"}));
  EXPECT_EQ(RunTh({"wait", "step-9", "--timeout", "10ms"}).status, kFailed);
}

TEST_F(CommandsTest, TheListIsLimitedToTheNewestVersions) {
  const auto first = Publish(MakeModelFolder("first", 1), "step-1");
  const auto second =
      StartPublisher(MakeModelFolder("second", 2), "step-2", {"--ranks", "2", "--group", "b"});
  second->AwaitLine("published");
  const ProgramRun run = RunTh({"list", "--limit", "1"});
  EXPECT_THAT(run.output(), AllOf(HasSubstr("step-2"), Not(HasSubstr("step-1")),
                                  HasSubstr("1 older versions are left out (--limit)")));
  EXPECT_EQ(RunTh({"list", "--limit", "1", "--json"}).json()["left_out"], 1);
  EXPECT_THAT(RunTh({"list"}).output(), HasSubstr("step-1"));
}

TEST_F(CommandsTest, AFollowerWithoutAnyVersionEndsOnASignal) {
  RunningProgram follower(Against({Worker(), "follow"}));
  ASSERT_TRUE(follower.AwaitError("waiting for a version"));
  follower.process().Signal(SIGINT);
  EXPECT_EQ(follower.Finish().status, kOk);
}

TEST_F(CommandsTest, AFollowerThatFindsItsRankTakenSaysByWhom) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  RunningProgram first(Against({Worker(), "follow", "--group", "follower"}));
  first.AwaitLine("version=step-1");
  const ProgramRun second = RunProgram(Against({Worker(), "follow", "--group", "follower"}));
  EXPECT_EQ(second.status, kFailed) << second.errors;
  EXPECT_THAT(second.errors, HasSubstr("follower/0"));
}

// As one command line starts them on many nodes.
TEST_F(CommandsTest, FollowersWithoutAGroupAreGroupsOfTheirOwnAndSaySo) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  RunningProgram first(Against({Worker(), "follow"})), second(Against({Worker(), "follow"}));
  ASSERT_TRUE(first.AwaitError("as group follower-"));
  first.AwaitLine("version=step-1");
  second.AwaitLine("version=step-1");
  for (RunningProgram* follower : {&first, &second}) {
    follower->process().Signal(SIGTERM);
    EXPECT_EQ(follower->Finish().status, kOk);
  }
}

// A server that takes whoever says nothing for a millisecond for perhaps gone, and asks who wants
// its rank to come again.
TEST_F(CommandsTest, ARankThatLivesIsNamedToWhoWantsItHoweverLongItIsSilent) {
  RunningProgram server({Server(), "--listen=127.0.0.1:0", "--json", "--suspect-after=1ms",
                         "--state-dir=" + FreshFolder("state")});
  const std::string address = ParseLine(server.AwaitLine("address"))["address"];
  const std::string model = MakeModelFolder("model", 1);
  const std::vector<std::string> publish = {Worker(),  "publish", "--dir",    model,
                                            "--label", "1",       "--server", address,
                                            "--group", "g",       "--model",  "m"};
  RunningProgram holder(publish);
  holder.AwaitLine("published");
  for (std::vector<std::string> second : {publish,
                                          {Th(), "pull", FreshFolder("taken") + "/here", "--server",
                                           address, "--group", "g", "--model", "m"}}) {
    second.insert(second.end(), {"--connect-timeout", "500ms"});
    const ProgramRun run = RunProgram(second);
    EXPECT_EQ(run.status, kFailed) << run.errors;
    EXPECT_THAT(run.errors, HasSubstr("rank g/0 is held by worker"));
    EXPECT_THAT(run.errors, HasSubstr("start this one as another rank"));
  }
}

TEST_F(CommandsTest, WhatAnswersWhereNoServerDoesIsNamed) {
  RunningProgram server({Server(), "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--json",
                         "--state-dir=" + FreshFolder("state")});
  const std::string http = ParseLine(server.AwaitLine("address"))["http"];
  const std::string model = MakeModelFolder("model", 1);
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{Th(), "list"},
        {Worker(), "publish", "--dir", model, "--label", "1"}}) {
    std::vector<std::string> command = arguments;
    command.insert(command.end(), {"--connect-timeout", "300ms", "--server", http});
    const ProgramRun run = RunProgram(command);
    EXPECT_EQ(run.status, kUnreachable) << run.errors;
    EXPECT_THAT(run.errors, HasSubstr(http));
    EXPECT_THAT(run.errors, HasSubstr("speaks HTTP, not gRPC")) << run.errors;
    command.back() = "no-such-host.invalid:7077";
    EXPECT_THAT(RunProgram(command).errors, HasSubstr("no-such-host.invalid"));
  }
}

TEST_F(CommandsTest, AFollowerThatCannotWriteNamesTheFolder) {
  const std::string file = FreshFolder("in-the-way") + "/file";
  std::ofstream(file) << "precious";
  const ProgramRun run = RunProgram(Against({Worker(), "follow", "--into", file}));
  EXPECT_EQ(run.status, kLocalFiles) << run.errors;
  EXPECT_THAT(run.errors, HasSubstr(file));
}

TEST_F(CommandsTest, ADataAddressThatIsTakenIsNoServerThatIsAway) {
  const std::string model = MakeModelFolder("model", 1);
  const auto publisher = Publish(model, "step-1");
  // The server listens there.
  const ProgramRun taken =
      StartPublisher(model, "step-2", {"--group", "other", "--data-address", server_.address()})
          ->Finish();
  EXPECT_EQ(taken.status, kFailed) << taken.errors;
  EXPECT_THAT(taken.errors, HasSubstr("--data-address: cannot listen on"));
  const ProgramRun pull =
      RunTh({"pull", FreshFolder("taken"), "--data-address", server_.address()});
  EXPECT_EQ(pull.status, kFailed) << pull.errors;
}

TEST_F(CommandsTest, AFullDiskInTheMiddleOfAPullLeavesNothingBehind) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  const std::string parent = FreshFolder("full");
  // A limit on the size of files is a disk that is full after so many blocks of 512 bytes.
  const ProgramRun run =
      RunProgram({"/bin/sh", "-c", "ulimit -f 200; exec \"$@\"", "sh", Th(), "pull",
                  parent + "/here", "--server", server_.address(), "--run", "r1", "--model", "m"});
  EXPECT_EQ(run.status, kLocalFiles) << run.errors;
  EXPECT_THAT(run.errors, HasSubstr(parent + "/here"));
  EXPECT_THAT(run.errors, HasSubstr("make room"));
  EXPECT_TRUE(fs::is_empty(parent));
}

}  // namespace
}  // namespace th
