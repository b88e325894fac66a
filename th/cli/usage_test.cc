// The binaries refuse flags and files that are wrong, without any server.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/program_run/program_run.h"

namespace th {
namespace {

using ::testing::HasSubstr;

constexpr int kOk = 0, kFailed = 1, kUsage = 2, kUnreachable = 3, kLocalFiles = 5,
              kInterrupted = 130;

struct Case {
  std::string what;
  std::vector<std::string> arguments;
  int status;
  std::string says;
};

void Expect(const std::string& program, const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    std::vector<std::string> arguments = {program};
    arguments.insert(arguments.end(), c.arguments.begin(), c.arguments.end());
    const ProgramRun run = RunProgram(arguments);
    EXPECT_EQ(run.status, c.status) << c.what << "\n" << run.errors;
    EXPECT_THAT(run.output() + run.errors, HasSubstr(c.says)) << c.what;
  }
}

TEST(UsageTest, EveryCommandHelps) {
  Expect(Th(), {{"th", {"--help"}, kOk, "Exit status"},
                {"list", {"list", "--help"}, kOk, "--server"},
                {"describe", {"describe", "--help"}, kOk, "--json"},
                {"pull", {"pull", "--help"}, kOk, "--version"},
                {"attach", {"attach", "--help"}, kOk, "--verify"},
                {"how a version is named", {"pull", "--help"}, kOk, "latest-K"},
                {"verify", {"verify", "--help"}, kOk, "--bytes"},
                {"demo", {"demo", "--help"}, kOk, "--rollout-ranks"},
                {"rollback", {"rollback", "--help"}, kOk, "--key"},
                {"pin", {"pin", "--help"}, kOk, "--owner"},
                {"release", {"release", "--help"}, kOk, "--owner"},
                {"retain", {"retain", "--help"}, kOk, "count"},
                {"forget", {"forget", "--help"}, kOk, "--model"},
                {"top", {"top", "--help"}, kOk, "--interval"},
                {"events", {"events", "--help"}, kOk, "--follow"},
                {"wait", {"wait", "--help"}, kOk, "--groups"},
                {"doctor", {"doctor", "--help"}, kOk, "--to"},
                {"doctor of a pair", {"doctor", "--help"}, kOk, "--listen"},
                {"bench", {"bench", "transfer", "--help"}, kOk, "--readers"},
                {"bench of a server", {"bench", "server", "--help"}, kOk, "--rate"},
                {"bench of the registry", {"bench", "registry", "--help"}, kOk, "--samples"},
                {"fanout", {"bench", "fanout", "--help"}, kOk, "--holder-rate"},
                {"fanout over unequal links", {"bench", "fanout", "--help"}, kOk, "1gbit*6"},
                {"a scenario for real", {"bench", "scenario", "--help"}, kOk, "--policy"},
                {"model", {"bench", "model", "--help"}, kOk, "--hosts"},
                {"simulate", {"simulate", "--help"}, kOk, "--first-seed"},
                {"help", {"help"}, kOk, "withdraw every version"},
                {"help of a command", {"help", "pull"}, kOk, "--version"},
                {"help below a command", {"help", "bench", "fanout"}, kOk, "--holder-rate"}});
  Expect(Worker(), {{"worker", {"--help"}, kOk, "Exit status"},
                    {"publish", {"publish", "--help"}, kOk, "--label"},
                    {"follow", {"follow", "--help"}, kOk, "--into"}});
}

TEST(UsageTest, SimulateRunsItsSeedsAndSaysHowItWent) {
  const ProgramRun run = RunProgram({Th(), "simulate", "--seeds", "3", "--json"});
  EXPECT_EQ(run.status, kOk) << run.errors;
  EXPECT_EQ(run.json()["seeds"], 3);
  EXPECT_EQ(run.json()["interrupted"], false);
  EXPECT_EQ(run.json()["violations"], 0);
  EXPECT_EQ(run.json()["failed_seeds"], 0);
  EXPECT_GE(run.json()["events"], 3'000);
  EXPECT_GE(run.json()["faults"], 9);
  for (const char* table : {"contract", "session", "replica"}) {
    const nlohmann::json covered = run.json()["coverage"][table];
    EXPECT_GT(covered["taken"], 0) << table;
    EXPECT_EQ(covered["taken"].get<size_t>() + covered["not_taken"].size(), covered["possible"])
        << table;
  }
}

// The findings depend on the machine; the exit status has to agree with them.
TEST(UsageTest, DoctorEndsAsItFindsTheHost) {
  const ProgramRun run = RunProgram({Th(), "doctor", "--json"});
  ASSERT_TRUE(run.json().is_object()) << run.output() << run.errors;
  EXPECT_EQ(run.status, run.json()["problems"] == 0 ? kOk : kFailed);
  EXPECT_GE(run.json()["checks"].size(), 10u);
}

TEST(UsageTest, DoctorNamesAPeerThatDoesNotAnswer) {
  const ProgramRun run = RunProgram({Th(), "doctor", "--to", "no-such-host.invalid:1"});
  EXPECT_EQ(run.status, kFailed);
  EXPECT_THAT(run.output(), HasSubstr("no-such-host.invalid:1"));
  Expect(Th(), {{"no port", {"doctor", "--to", "node7"}, kUsage, "expected HOST:PORT"},
                {"no time", {"doctor", "--connect-timeout", "0"}, kUsage, "--connect-timeout"}});
}

// The verdict of a check with --json; empty: there is no such check.
std::string VerdictOf(const ProgramRun& run, const std::string& check) {
  const nlohmann::json report = run.json();
  for (const nlohmann::json& each : report["checks"]) {
    if (each["check"] == check) return each["verdict"];
  }
  return "";
}

TEST(UsageTest, DoctorTellsAServerFromAnotherOpenPort) {
  RunningServer server;
  const std::string file = absl::StrCat(::testing::TempDir(), "/doctor-server");
  std::ofstream(file) << server.address() << "\n";
  for (const std::string& named : {server.address(), absl::StrCat("file:", file)}) {
    const ProgramRun run = RunProgram({Th(), "doctor", "--server", named, "--json"});
    EXPECT_EQ(VerdictOf(run, "connect"), "ok") << run.output();
    EXPECT_EQ(VerdictOf(run, "server"), "ok") << run.output();
  }
  RunningProgram other({Th(), "doctor", "--listen", "127.0.0.1:0"});
  const std::string line = other.AwaitLine("listening on 127.0.0.1:");
  const ProgramRun run =
      RunProgram({Th(), "doctor", "--server", line.substr(line.rfind(' ') + 1), "--json"});
  EXPECT_EQ(run.status, kFailed);
  EXPECT_EQ(VerdictOf(run, "connect"), "ok") << run.output();
  EXPECT_EQ(VerdictOf(run, "server"), "problem") << run.output();
  Expect(Th(), {{"no port", {"doctor", "--server", "node7"}, kUsage, "node7"},
                {"both", {"doctor", "--server", "a:1", "--to", "a:1"}, kUsage, "excludes"}});
}

TEST(UsageTest, DoctorExaminesTheHostWhereNoFileNamesTheServerYet) {
  for (const auto& [named, said] : std::vector<std::pair<std::string, std::string>>{
           {"file:/no/such", "no server has written its address to /no/such"},
           {"file:/", "/ is a folder; name the file in it"}}) {
    const ProgramRun run = RunProgram({Th(), "doctor", "--server", named, "--json"});
    EXPECT_EQ(run.status, kFailed);
    EXPECT_THAT(run.output(), HasSubstr(said));
    EXPECT_EQ(VerdictOf(run, "server"), "problem") << run.output();
    EXPECT_NE(VerdictOf(run, "open-files"), "") << run.output();
    EXPECT_EQ(VerdictOf(run, "connect"), "") << run.output();
  }
}

TEST(UsageTest, DoctorAsksTheServerThatIsConfigured) {
  RunningServer server;
  const auto doctor = [](const std::string& setting, const std::vector<std::string>& more) {
    std::vector<std::string> command = {"/usr/bin/env", "TH_CONFIG=", setting,
                                        Th(),           "doctor",     "--json"};
    command.insert(command.end(), more.begin(), more.end());
    return RunProgram(command);
  };
  const std::string set = absl::StrCat("TH_SERVER=", server.address());
  EXPECT_EQ(VerdictOf(doctor(set, {}), "server"), "ok");
  EXPECT_EQ(VerdictOf(doctor(set, {"--to", server.address()}), "server"), "");
  EXPECT_EQ(VerdictOf(doctor("TH_SERVER=", {}), "server"), "");
  const ProgramRun wrong = doctor("TH_SERVER=node7", {});
  EXPECT_EQ(wrong.status, kFailed);
  EXPECT_EQ(VerdictOf(wrong, "server"), "problem");
  EXPECT_THAT(wrong.output(), HasSubstr("node7"));
}

TEST(UsageTest, DoctorExaminesAPairUntilTheListenerIsStopped) {
  RunningProgram listener({Th(), "doctor", "--listen", "127.0.0.1:0"});
  const std::string line = listener.AwaitLine("listening on 127.0.0.1:");
  ASSERT_FALSE(line.empty());
  const std::string address = line.substr(line.rfind(' ') + 1);
  const ProgramRun run = RunProgram({Th(), "doctor", "--peer", address, "--json"});
  const nlohmann::json report = run.json();
  ASSERT_TRUE(report.is_object()) << run.output() << run.errors;
  for (const char* check : {"connect", "peer", "peer-version", "peer-clock", "peer-way-back",
                            "peer-large-packets", "peer-congestion-control"}) {
    EXPECT_EQ(VerdictOf(run, check), "ok") << check << "\n" << run.output();
  }
  EXPECT_EQ(run.status, report["problems"] == 0 ? kOk : kFailed);
  EXPECT_THAT(listener.AwaitLine("answered"), HasSubstr("(127.0.0.1), TensorHub "));
  listener.process().Signal(SIGTERM);
  EXPECT_EQ(listener.Finish().status, kOk);
}

TEST(UsageTest, DoctorNamesWhatIsNoListener) {
  RunningServer server;
  const ProgramRun run = RunProgram({Th(), "doctor", "--peer", server.address()});
  EXPECT_EQ(run.status, kFailed);
  EXPECT_THAT(run.output(), HasSubstr("what listens there is no th doctor --listen"));
  EXPECT_THAT(run.output(), HasSubstr("start there: th doctor --listen " + server.address()));
  Expect(Th(), {{"both", {"doctor", "--to", "a:1", "--peer", "a:1"}, kUsage, "excludes"},
                {"three", {"doctor", "--listen", ":0", "--peer", "a:1"}, kUsage, "excludes"},
                {"to", {"doctor", "--listen", ":0", "--to", "a:1"}, kUsage, "excludes"},
                {"back", {"doctor", "--back-port", "4711"}, kUsage, "--peer"},
                {"no port", {"doctor", "--listen", "10.0.0.2"}, kUsage, "expected [HOST]:PORT"},
                {"taken", {"doctor", "--listen", server.address()}, kFailed, "already in use"}});
}

// Stopped between two seeds, it reports those that have run.
TEST(UsageTest, SimulateReportsWhatHasRunWhenASignalComes) {
  for (const int signal : {SIGINT, SIGTERM}) {
    RunningProgram simulate({Th(), "simulate", "--seeds", "100000000", "--json"});
    ASSERT_TRUE(simulate.AwaitError("of 100000000 seeds"));
    simulate.process().Signal(signal);
    const ProgramRun run = simulate.Finish();
    EXPECT_EQ(run.status, kInterrupted) << run.errors;
    ASSERT_TRUE(run.json().is_object()) << run.output();
    EXPECT_EQ(run.json()["interrupted"], true);
    EXPECT_GT(run.json()["seeds"], 0);
    EXPECT_LT(run.json()["seeds"], 100'000'000);
  }
}

// Each slip would be taken for the flag itself.
TEST(UsageTest, AValueOfAFlagThatTakesNoneIsRefusedByName) {
  Expect(Th(),
         {{"seconds to hold", {"attach", "--hold=3"}, kUsage, "--hold: takes no value"},
          {"no verification", {"attach", "--verify=no"}, kUsage, "--verify: takes no value"},
          {"below bench", {"bench", "server", "--receives=4"}, kUsage, "--receives: takes no"},
          {"pages", {"top", "--once=2"}, kUsage, "--once: takes no value"}});
  Expect(Worker(), {{"in stages", {"follow", "--stage=2"}, kUsage, "--stage: takes no value"}});
}

std::string ScenarioFile(const std::string& name, const std::string& more) {
  const std::string file = ::testing::TempDir() + "/" + name;
  std::ofstream(file) << "let nic=1GB/s\nsite here\n"
                         "hosts t site=here up=$nic down=$nic inside=10GB/s\n"
                         "hosts r site=here count=2 up=$nic down=$nic inside=10GB/s\n"
                         "weights rank_bytes=1GB segment=100MB\n"
                         "group trainer role=trainer ranks=1 on=t\n"
                         "group reader role=rollout ranks=1 count=2 on=r\n"
                      << more;
  return file;
}
constexpr char kCourse[] = "train trainer first=1s\nupdate reader after=publish\nend 60s\n";

TEST(UsageTest, SimulateRunsAScenarioUnderEachPolicyAndSetting) {
  const std::string file = ScenarioFile("good.scenario", kCourse);
  const ProgramRun run = RunProgram({Th(), "simulate", "--policy", "nearest,direct", "--sweep",
                                     "nic=1GB/s,2GB/s", file, "--json"});
  EXPECT_EQ(run.status, kOk) << run.errors;
  const nlohmann::json runs = run.json()["runs"];
  ASSERT_EQ(runs.size(), 4u);
  EXPECT_NEAR(runs[0]["slowest_update_seconds"].get<double>(), 1.1, 0.01);
  EXPECT_NEAR(runs[1]["slowest_update_seconds"].get<double>(), 2, 0.01);
  EXPECT_NEAR(runs[3]["slowest_update_seconds"].get<double>(), 1, 0.01);
  EXPECT_EQ(runs[3]["variables"]["nic"], "2GB/s");
}

TEST(UsageTest, SimulateDrawsAPicture) {
  const std::string file = ScenarioFile("drawn.scenario", kCourse);
  const std::string picture = ::testing::TempDir() + "/drawn.svg";
  const ProgramRun run = RunProgram({Th(), "simulate", file, "--svg", picture});
  EXPECT_EQ(run.status, kOk) << run.errors;
  EXPECT_THAT(run.output(), HasSubstr("WAITS FOR"));
  std::string first;
  std::ifstream svg(picture);
  std::getline(svg, first);
  EXPECT_THAT(first, HasSubstr("<?xml"));
}

TEST(UsageTest, SimulateRefusesWhatIsNoScenario) {
  const std::string good = ScenarioFile("good.scenario", kCourse);
  const std::string bad = ScenarioFile("bad.scenario", "frobnicate 5\n");
  const std::string late =
      ScenarioFile("late.scenario", std::string(kCourse) + "at 70s kill reader-1\n");
  const std::string nobody = ScenarioFile("nobody.scenario", "end 5s\n");
  Expect(Th(),
         {{"a line", {"simulate", bad}, kUsage, "bad.scenario:8: the statement 'frobnicate'"},
          {"no publisher", {"simulate", nobody}, kUsage, "nobody publishes"},
          {"too late", {"simulate", late}, kUsage, "late.scenario:11: the event at 1m10s"},
          {"no file", {"simulate", "/nowhere"}, kLocalFiles, "read: No such file"},
          {"nor for real", {"bench", "scenario", "/nowhere"}, kLocalFiles, "No such file"},
          {"a folder", {"simulate", "/"}, kLocalFiles, "cannot be read"},
          {"policy", {"simulate", good, "--policy", "luck"}, kUsage, "no policy 'luck'"},
          {"no variable", {"simulate", good, "--set", "x=1"}, kUsage, "nothing is let be 'x'"},
          {"no value", {"simulate", good, "--sweep", "nic"}, kUsage, "name=value"},
          {"no copy", {"simulate", good, "--policy", "snapshot-broadcast"}, kUsage, "'copy'"},
          {"two pictures",
           {"simulate", good, "--policy", "all", "--svg", "x.svg"},
           kUsage,
           "--svg draws one run"},
          {"no place", {"simulate", good, "--svg", "/nowhere/x.svg"}, kLocalFiles, "written"},
          {"both", {"simulate", good, "--seeds", "3"}, kUsage, "excludes"},
          {"set twice",
           {"simulate", good, "--set", "nic=1GB/s", "--set", "nic=2GB/s"},
           kUsage,
           "set twice"},
          {"a fault that is none",
           {"simulate", "--seeds", "1", "--without", "0,999"},
           kUsage,
           "--without 999: seed 1 has "},
          {"a policy of nothing", {"simulate", "--policy", "direct"}, kUsage, "requires"}});
}

TEST(UsageTest, ARunWithoutAnUpdateSaysSoAndShowsNoTime) {
  const std::string file = ScenarioFile("failing.scenario",
                                        "train trainer first=1s\nupdate reader after=publish\n"
                                        "at 1500ms kill trainer\nend 20s\n");
  const ProgramRun run = RunProgram({Th(), "simulate", file, "--json"});
  EXPECT_EQ(run.status, kOk) << run.errors;
  EXPECT_THAT(run.errors, HasSubstr("no update moved"));
  EXPECT_TRUE(run.json()["runs"][0]["slowest_update_seconds"].is_null()) << run.output();
  EXPECT_THAT(RunProgram({Th(), "simulate", file}).output(), HasSubstr("  -  "));
}

TEST(UsageTest, EveryBinarySaysItsVersion) {
  Expect(Th(), {{"th", {"--version"}, kOk, "commit"}});
  Expect(Worker(), {{"worker", {"--version"}, kOk, "commit"}});
}

// `env` sets the variable for the command alone.
TEST(UsageTest, ConfigShowsWhatIsInForceAndWhatIsWrongWithIt) {
  const auto config = [](const std::string& server) {
    return RunProgram({"/usr/bin/env", absl::StrCat("TH_SERVER=", server), Th(), "config"});
  };
  const ProgramRun fine = config("file:/not/there/yet");
  EXPECT_EQ(fine.status, kOk) << fine.errors;
  EXPECT_THAT(fine.output(), HasSubstr("TH_SERVER"));
  const ProgramRun wrong = config("node7");
  EXPECT_EQ(wrong.status, kUsage);
  EXPECT_THAT(wrong.output(), HasSubstr("problem: server: "));
  EXPECT_THAT(wrong.output(), HasSubstr("node7"));
}

TEST(UsageTest, WhatIsUnknownOrMissingIsAUsageError) {
  Expect(Th(),
         {{"nothing", {}, kUsage, "subcommand"},
          {"unknown command", {"frobnicate"}, kUsage, "frobnicate"},
          {"mistyped command", {"lsit"}, kUsage, "not known here: lsit; did you mean list?"},
          {"help of nothing", {"help", "frobnicate"}, kUsage, "frobnicate"},
          {"help below", {"help", "bench", "x"}, kUsage, "th bench has no command x"},
          {"unknown flag",
           {"list", "--servr", "127.0.0.1:7177"},
           kUsage,
           "th list takes no --servr 127.0.0.1:7177; th list --help lists what it takes"},
          {"unknown flag below",
           {"bench", "fanout", "--frobnicate"},
           kUsage,
           "th bench fanout takes no --frobnicate"},
          {"no folder", {"pull"}, kUsage, "folder"},
          {"no version", {"rollback"}, kUsage, "version"},
          {"a bench of nothing", {"bench"}, kUsage, "subcommand"},
          {"a rate of nothing", {"bench", "server", "--rate", "0"}, kUsage, "--rate"},
          {"too many", {"bench", "server", "--workers", "10001"}, kUsage, "10000"},
          {"no time", {"bench", "server", "--seconds", "soon"}, kUsage, "--seconds"},
          {"a bench of nobody", {"bench", "registry", "--workers", "0"}, kUsage, "--workers"},
          {"no seeds", {"simulate", "--seeds", "0"}, kUsage, "--seeds"},
          {"a seed that is none", {"simulate", "--first-seed", "x"}, kUsage, "--first-seed"}});
  Expect(Worker(), {{"nothing", {}, kUsage, "subcommand"},
                    {"unknown flag", {"publish", "--frobnicate"}, kUsage, "--frobnicate"},
                    {"no folder", {"publish", "--label", "x"}, kUsage, "--dir"}});
}

TEST(UsageTest, AFanoutThatCannotBeIsAUsageError) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> refused = {
      {{"--hosts", "0"}, "--hosts: a fan-out has 1 to 64 readers, not 0"},
      {{"--hosts", "65"}, "--hosts: a fan-out has 1 to 64 readers, not 65"},
      {{"--rate", "0"}, "1mbit to 10gbit"},
      {{"--rate", "5"}, "1mbit to 10gbit"},
      {{"--rate", "none"}, "1mbit to 10gbit"},
      {{"--rate", "fast"}, "like 250mbit"},
      {{"--rate", "100gbit"}, "1mbit to 10gbit"},
      {{"--rates", "1gbit*2", "--rate", "1gbit"}, "excludes"},
      {{"--rates", "1gbit*2,250mbit*2", "--hosts", "5"}, "make them agree"},
      {{"--rates", "1gbit*60,250mbit*5"}, "--rates: a fan-out has 1 to 64 readers, not 65"},
      {{"--rates", "1gbit*100"}, "a fan-out has 1 to 64 readers, not 100"},
      {{"--rates", "1gbit*2,1000mbit*3"}, "all hosts of a rate"},
      {{"--rates", "1gbit*0"}, "1gbit*0"},
      {{"--rates", "100gbit*2"}, "1mbit to 10gbit"},
      {{"--rates", ""}, "--rates"},
      {{"--rates", "1gbit", "--disturb", "stop"}, "--rates"},
      {{"--holder-rate", "1kbit"}, "1mbit to 10gbit"},
      {{"--holders", "0"}, "--holders"},
      {{"--bytes", "1 apple"}, "4GiB"},
      {{"--bytes", "1MiB"}, "16MiB to 8TiB, and 1MiB were asked for"},
      {{"--bytes", "2TiB"}, "--bytes 2TiB is in memory 5 times at once"},
      {{"--rounds", "0"}, "--rounds"},
      {{"--policies", "magic"}, "magic"},
      {{"--policies", "direct"}, "begins with ours"},
      {{"--policies", "ours,direct,direct"}, "direct twice"},
      {{"--disturb", "explode"}, "explode"},
      {{"--disturb", "stop", "--hosts", "1"}, "--hosts"}};
  std::vector<Case> cases;
  for (const auto& [flags, says] : refused) {
    Case& c = cases.emplace_back(Case{says, {"bench", "fanout"}, kUsage, says});
    c.arguments.insert(c.arguments.end(), flags.begin(), flags.end());
  }
  Expect(Th(), cases);
}

TEST(UsageTest, AValueThatIsNoneIsAUsageErrorThatSaysHowToWriteIt) {
  Expect(Th(),
         {{"rate", {"demo", "--rate", "fast"}, kUsage, "1gbit"},
          {"rate of nothing", {"demo", "--rate", "0"}, kUsage, "lets nothing pass"},
          {"bytes", {"demo", "--bytes", "4 apples"}, kUsage, "4GiB"},
          {"shape", {"demo", "--synthetic", "cnn"}, kUsage, "cnn"},
          {"too few bytes",
           {"demo", "--synthetic", "moe", "--bytes", "1MiB"},
           kUsage,
           "and 1MiB were"},
          {"two models", {"demo", "--model", "x", "--synthetic", "llm"}, kUsage, "excludes"},
          {"no rollouts", {"demo", "--rollouts", "0"}, kUsage, "--rollouts"},
          {"more shards than ranks", {"demo", "--shards", "3"}, kUsage, "--rollout-ranks"},
          {"transport", {"bench", "transfer", "--transport", "pigeon"}, kUsage, "pigeon"},
          {"version", {"pull", "x", "--version", ""}, kUsage, "version"},
          {"size of nothing", {"demo", "--bytes", "1MiB"}, kUsage, "--synthetic"},
          {"two yardsticks", {"verify", "a", "b", "--bytes"}, kUsage, "excludes"},
          {"a version of a folder", {"verify", "a", "b", "--version", "v"}, kUsage, "excludes"},
          {"neither version nor group", {"describe", "two words"}, kUsage, "white space"},
          {"no sequence", {"describe", "#1.x"}, kUsage, "1.x"},
          {"bytes of nothing", {"bench", "transfer", "--bytes", "0"}, kUsage, "16MiB to 8TiB"},
          {"more than there is",
           {"bench", "transfer", "--bytes", "2TiB"},
           kUsage,
           "--bytes 2TiB is in memory 2 times at once, 4TiB in all, and this machine has"},
          {"no demo server", {"demo", "--server-binary", "/no/server"}, kUsage, "/no/server"},
          {"no server", {"bench", "server", "--server-binary", "/no/server"}, kUsage, "/no/server"},
          {"no bench server",
           {"bench", "transfer", "--server-binary", "/no/server"},
           kUsage,
           "/no/server"},
          {"a server without a port", {"list", "--server", "nowhere"}, kUsage, "host:port"},
          {"a port that is none", {"pull", "x", "--server", "h:x"}, kUsage, "host:port"},
          {"a run that is no name", {"list", "--run", "two words"}, kUsage, "white space"},
          {"no run", {"pull", "x", "--run", ""}, kUsage, "run"},
          {"a model that is no name", {"pin", "1", "--model", "a b"}, kUsage, "white space"},
          {"an owner that is no name", {"pin", "1", "--owner", "a b"}, kUsage, "white space"},
          {"a form that is no name", {"retain", "1", "--form", "a b"}, kUsage, "white space"},
          {"location", {"pull", "x", "--location", "moon"}, kUsage, "moon"},
          {"data address", {"pull", "x", "--data-address", "moon"}, kUsage, "10.0.0.7:4711"},
          {"no time", {"pull", "x", "--timeout", "-1"}, kUsage, "write it like 500ms, 30s"},
          {"all time", {"pull", "x", "--timeout", "inf"}, kUsage, "write it like 500ms, 30s"},
          {"too long", {"pull", "x", "--timeout", "200h"}, kUsage, "not between 1ms and 168h"},
          {"past", {"pin", "1", "--expires-after", "-1s"}, kUsage, "is no duration"},
          {"no such port", {"list", "--server", "h:99999"}, kUsage, "ports are 1 to 65535"},
          {"no effect", {"pull", "x", "--offload-limit", "1GiB"}, kUsage, "--offload-limit"},
          {"a version that is none", {"rollback", "two words"}, kUsage, "white space"}});
  Expect(Worker(),
         {{"rank outside its group",
           {"publish", "--dir", "x", "--label", "l", "--rank", "2", "--ranks", "2"},
           kUsage,
           "outside the group"},
          {"more shards than ranks",
           {"publish", "--dir", "x", "--label", "l", "--shards", "2"},
           kUsage,
           "--shards 2"},
          {"label", {"publish", "--dir", "x", "--label", "latest"}, kUsage, "latest"},
          {"attribute",
           {"publish", "--dir", "x", "--label", "l", "--attributes", "step"},
           kUsage,
           "key=value"},
          {"a server without a port", {"follow", "--server", "nowhere"}, kUsage, "host:port"},
          {"a group that is no name", {"follow", "--group", "a b"}, kUsage, "white space"},
          {"location", {"follow", "--location", "moon"}, kUsage, "moon"},
          {"copies without room",
           {"follow", "--when-seeding", "copy"},
           kUsage,
           "give --offload-limit"},
          {"copies of copies",
           {"follow", "--when-seeding", "copy", "--stage", "--staging-limit", "1GiB"},
           kUsage,
           "does nothing with --stage"},
          {"no effect",
           {"publish", "--dir", "x", "--label", "l", "--offload-limit", "1GiB"},
           kUsage,
           "--offload-limit"},
          {"drain",
           {"publish", "--dir", "x", "--label", "l", "--drain", "200h"},
           kUsage,
           "not between 0 and 168h"},
          {"rate", {"follow", "--rate", "0"}, kUsage, "--rate"},
          {"rate of nothing that is capped",
           {"follow", "--rate", "1MB/s", "--transports", "same_host"},
           kUsage,
           "--rate has no effect without tcp"},
          {"RDMA that is not used",
           {"follow", "--rdma-devices", "mlx5_0", "--transports", "tcp"},
           kUsage,
           "no effect without ibverbs"},
          {"transport", {"follow", "--transports", "pigeon"}, kUsage, "same_host"}});
}

// One reader of a bare number thinks of gigabytes and minutes, another of bytes and seconds.
TEST(UsageTest, ANumberWithoutItsUnitIsRefusedWithAnExample) {
  const std::string size = "has no unit; write it like 4GiB", rate = "write it like 250MB/s",
                    time = "has no unit; write it like 500ms, 30s";
  Expect(Th(), {{"rate", {"demo", "--rate", "5"}, kUsage, rate},
                {"rate of a reader", {"pull", "x", "--rate", "5"}, kUsage, rate},
                {"bytes", {"bench", "transfer", "--bytes", "1073741824"}, kUsage, size},
                {"bytes of a fan-out", {"bench", "fanout", "--bytes", "1000"}, kUsage, size},
                {"bytes of a check", {"bench", "model", "--bytes", "1000"}, kUsage, size},
                {"registered", {"pull", "x", "--rdma-registered-limit", "20"}, kUsage, size},
                {"attached", {"attach", "--attach-limit", "20"}, kUsage, size},
                {"timeout", {"pull", "x", "--timeout", "60"}, kUsage, time},
                {"connect timeout", {"list", "--connect-timeout", "5"}, kUsage, time},
                {"doctor's", {"doctor", "--connect-timeout", "5"}, kUsage, time},
                {"pin", {"pin", "1", "--expires-after", "3600"}, kUsage, time},
                {"top", {"top", "--interval", "1"}, kUsage, time},
                {"events", {"events", "--interval", "0.5"}, kUsage, time},
                {"soak", {"simulate", "--soak", "10"}, kUsage, "write 90s, 10m or 2h"}});
  Expect(Worker(),
         {{"offload", {"follow", "--offload-limit", "20"}, kUsage, size},
          {"staging", {"follow", "--staging-limit", "20"}, kUsage, size},
          {"poll", {"follow", "--poll", "1"}, kUsage, time},
          {"notice", {"follow", "--preempt-grace", "30"}, kUsage, time},
          {"drain", {"publish", "--dir", "x", "--label", "l", "--drain", "30"}, kUsage, time}});
}

// The server is not asked, nor is there one.
TEST(UsageTest, FlagsThatDoNothingTogetherAreAUsageErrorOfEveryCommand) {
  const std::string model = MakeModelFolder("together", 1);
  const std::vector<std::pair<std::vector<std::string>, std::string>> together = {
      {{"--rate", "1MB/s", "--transports", "same_host"}, "--rate has no effect without tcp"},
      {{"--rate", "1MB/s", "--transports", "same_host,rdma,tcp"},
       "leave ibverbs out of --transports, or give no --rate"},
      {{"--rdma-devices", "mlx5_0", "--transports", "same_host"},
       "--rdma-devices has no effect without ibverbs"},
      {{"--rdma-registered-limit", "1GiB", "--transports", "same-host,tcp"},
       "--rdma-registered-limit has no effect without ibverbs"},
      {{"--rdma-registered-limit", "0"}, "--rdma-registered-limit 0 lets ibverbs register nothing"},
      {{"--transports", "same_host,same-host"}, "--transports names same_host twice"}};
  std::vector<Case> of_th, of_worker;
  for (const auto& [flags, says] : together) {
    const std::vector<std::vector<std::string>> commands = {
        {"pull", "x"}, {"attach"}, {"verify", "--bytes", model}};
    for (const std::vector<std::string>& command : commands) {
      Case& c = of_th.emplace_back(Case{command[0] + ": " + says, command, kUsage, says});
      c.arguments.insert(c.arguments.end(), flags.begin(), flags.end());
    }
    const std::vector<std::vector<std::string>> holders = {
        {"follow"}, {"publish", "--dir", model, "--label", "l"}};
    for (const std::vector<std::string>& command : holders) {
      Case& c = of_worker.emplace_back(Case{command[0] + ": " + says, command, kUsage, says});
      c.arguments.insert(c.arguments.end(), flags.begin(), flags.end());
    }
  }
  Expect(Th(), of_th);
  Expect(Worker(), of_worker);
}

TEST(UsageTest, AttachWithoutTheTransportThatMapsIsAUsageError) {
  const ProgramRun run = RunProgram({Th(), "attach", "--transports", "tcp"});
  EXPECT_EQ(run.status, kUsage);
  EXPECT_EQ(run.errors,
            "th: --transports tcp leaves out same_host, over which alone memory can be used in "
            "place: name it too, or leave --transports out; th pull reads over the others\n");
}

TEST(UsageTest, AnEmptyValueIsRefusedWhicheverFlagHasIt) {
  const std::string says = "has an empty value: give one, or leave it out";
  Expect(Th(), {{"form", {"pull", "x", "--form", ""}, kUsage, "--form: " + says},
                {"form of pins", {"retain", "1", "--form", ""}, kUsage, says},
                {"all models", {"list", "--model", ""}, kUsage, says},
                {"group", {"pull", "x", "--group", ""}, kUsage, says},
                {"location", {"pull", "x", "--location", ""}, kUsage, says},
                {"folder", {"pull", ""}, kUsage, "folder: " + says},
                {"other folder", {"verify", "a", ""}, kUsage, says},
                {"count", {"retain", ""}, kUsage, says},
                {"event", {"events", "--id", ""}, kUsage, says},
                {"scenario", {"simulate", ""}, kUsage, says},
                {"picture", {"simulate", "x", "--svg", ""}, kUsage, says},
                {"faults", {"simulate", "--without", ""}, kUsage, says},
                {"logs", {"demo", "--keep", ""}, kUsage, says}});
  Expect(Worker(),
         {{"into", {"follow", "--into", ""}, kUsage, says},
          {"rank", {"publish", "--dir", "x", "--label", "l", "--rank", ""}, kUsage, says}});
}

TEST(UsageTest, AnIntegerIsDecimal) {
  const std::vector<std::string> publish = {"publish", "--dir", "x",       "--label", "l",
                                            "--rank",  "0010",  "--ranks", "010"};
  Expect(Worker(), {{"rank", publish, kUsage, "--rank 10 is outside the group: --ranks is 10"}});
  const ProgramRun run =
      RunProgram({Th(), "simulate", "--seeds", "01", "--first-seed", "010", "--json"});
  EXPECT_EQ(run.status, kOk) << run.errors;
  EXPECT_EQ(run.json()["first_seed"], 10);
  EXPECT_EQ(run.json()["seeds"], 1);
}

TEST(UsageTest, OutputThatCannotBeWrittenIsAnError) {
  const std::string model = MakeModelFolder("same", 1);
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{Th(), "--help"},
                                                    {Th(), "--version"},
                                                    {Th(), "help", "pull"},
                                                    {Th(), "verify", model, model},
                                                    {Th(), "simulate", "--seeds", "1", "--json"},
                                                    {Worker(), "--version"}}) {
    std::vector<std::string> full = {"/bin/sh", "-c", "exec \"$@\" > /dev/full", "sh"};
    full.insert(full.end(), arguments.begin(), arguments.end());
    const ProgramRun run = RunProgram(full);
    EXPECT_EQ(run.status, kLocalFiles) << arguments[1];
    EXPECT_THAT(run.errors, HasSubstr("stdout cannot be written")) << arguments[1];
  }
}

// Stopped in its first run, which has no report to make yet.
TEST(UsageTest, AnInterruptedFirstRunOfAScenarioIsAJsonObjectToo) {
  const std::string file = ScenarioFile("endless.scenario",
                                        "train trainer first=1s step=2s write=1s steps=100000\n"
                                        "update reader after=publish\nend 24h\n");
  RunningProgram simulate({Th(), "simulate", file, "--json", "--trace"});
  ASSERT_TRUE(simulate.AwaitError("reader"));
  simulate.process().Signal(SIGINT);
  const ProgramRun run = simulate.Finish();
  EXPECT_EQ(run.status, kInterrupted);
  ASSERT_TRUE(run.json().is_object()) << run.output();
  EXPECT_EQ(run.json()["error"]["code"], "CANCELLED");
}

TEST(UsageTest, AServerThatIsNotThereIsNamed) {
  const std::vector<std::string> nowhere = {"--server", "127.0.0.1:1", "--connect-timeout",
                                            "300ms"};
  const std::string model = MakeModelFolder("unreached", 1);
  std::vector<Case> of_th = {{"list", {"list"}, kUnreachable, "127.0.0.1:1"},
                             {"describe", {"describe"}, kUnreachable, "127.0.0.1:1"},
                             {"pull", {"pull", "/tmp/never-written"}, kUnreachable, "127.0.0.1:1"},
                             {"verify", {"verify", model}, kUnreachable, "127.0.0.1:1"},
                             {"rollback", {"rollback", "1"}, kUnreachable, "127.0.0.1:1"},
                             {"retain", {"retain", "1"}, kUnreachable, "127.0.0.1:1"},
                             {"pin", {"pin", "1"}, kUnreachable, "127.0.0.1:1"},
                             {"release", {"release", "1"}, kUnreachable, "127.0.0.1:1"},
                             {"forget", {"forget"}, kUnreachable, "127.0.0.1:1"}};
  std::vector<Case> of_worker = {
      {"publish", {"publish", "--dir", model, "--label", "1"}, kUnreachable, "127.0.0.1:1"},
      {"follow", {"follow"}, kUnreachable, "127.0.0.1:1"}};
  for (std::vector<Case>* cases : {&of_th, &of_worker}) {
    for (Case& c : *cases) c.arguments.insert(c.arguments.end(), nowhere.begin(), nowhere.end());
  }
  Expect(Th(), of_th);
  Expect(Worker(), of_worker);
}

TEST(UsageTest, AServerThatIsNotThereIsToldOfOnce) {
  const std::string model = MakeModelFolder("once", 1);
  for (std::vector<std::string> arguments :
       {std::vector<std::string>{Th(), "attach"},
        {Worker(), "publish", "--dir", model, "--label", "1"}}) {
    arguments.insert(arguments.end(), {"--server", "127.0.0.1:1", "--connect-timeout", "300ms"});
    const ProgramRun run = RunProgram(arguments);
    EXPECT_EQ(run.status, kUnreachable) << run.errors;
    EXPECT_THAT(run.errors, HasSubstr("no reference server at 127.0.0.1:1 within 300ms: nothing "
                                      "listens there (connection refused)"));
    const size_t first = run.errors.find("onnection refused");
    EXPECT_EQ(run.errors.find("onnection refused", first + 1), std::string::npos) << run.errors;
  }
}

TEST(UsageTest, AFailureIsAJsonObjectToo) {
  const ProgramRun run =
      RunProgram({Th(), "list", "--json", "--server", "127.0.0.1:1", "--connect-timeout", "300ms"});
  ASSERT_TRUE(run.json().is_object()) << run.output();
  EXPECT_EQ(run.json()["error"]["code"], "UNAVAILABLE");
  EXPECT_THAT(run.json()["error"]["message"].get<std::string>(), HasSubstr("127.0.0.1:1"));
}

TEST(UsageTest, AUsageErrorIsAJsonObjectToo) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"list", "--frobnicate", "--json"},
        {"bench", "server", "--json", "--rate", "0"},
        {"pull", "--json"},
        {"frobnicate", "--json"}}) {
    std::vector<std::string> command = {Th()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const ProgramRun run = RunProgram(command);
    EXPECT_EQ(run.status, kUsage);
    ASSERT_TRUE(run.json().is_object()) << arguments[0] << ": " << run.output();
    EXPECT_EQ(run.json()["error"]["code"], "INVALID_ARGUMENT");
    EXPECT_NE(run.json()["error"]["message"], "") << arguments[0];
  }
}

TEST(FoldersTest, AFolderThatIsWrongOrMissingIsNamed) {
  const std::string empty = FreshFolder("empty");
  const std::string truncated = MakeModelFolder("truncated", 1);
  for (const auto& entry : std::filesystem::directory_iterator(truncated)) {
    std::filesystem::resize_file(entry.path(), 1000);
  }
  const std::string hostile = FreshFolder("hostile");
  std::ofstream(hostile + "/model.safetensors") << std::string(8, '\xff') << "{}";
  for (const std::string& folder : {std::string("/no/such/folder"), empty, truncated, hostile}) {
    const bool damaged = folder == truncated || folder == hostile;
    const std::string to_do = damaged ? "fetch it again, or name another folder" : folder;
    Expect(Th(), {{"what to do about " + folder, {"verify", folder}, kLocalFiles, to_do},
                  {"verify " + folder, {"verify", folder}, kLocalFiles, folder},
                  {"demo " + folder, {"demo", "--model", folder}, kLocalFiles, folder}});
    Expect(
        Worker(),
        {{"publish " + folder, {"publish", "--dir", folder, "--label", "1"}, kLocalFiles, folder}});
  }
}

TEST(FoldersTest, TwoFoldersAreComparedTensorByTensor) {
  const std::string one = MakeModelFolder("one", 1), same = MakeModelFolder("same", 1),
                    two = MakeModelFolder("two", 2);
  Expect(Th(), {{"same", {"verify", one, same}, kOk, "SAME"},
                {"different", {"verify", one, two}, kFailed, "tensor \"tensor.0\" differs"},
                {"missing", {"verify", one, "/no/such/folder"}, kLocalFiles, "/no/such/folder"}});
  const ProgramRun run = RunProgram({Th(), "verify", "--json", one, two});
  EXPECT_EQ(run.json()["same"], false);
  EXPECT_EQ(run.json()["differences"].size(), 4u);
}

}  // namespace
}  // namespace th
