// `th bench scenario` and `th bench model` as they are run, small: the keys, and what holds on any
// machine. Skipped where there are no virtual hosts.
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/program_run/program_run.h"
#include "th/processes/virtual_hosts.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// Two readers in the trainer's site and two behind a link of a quarter of the rate.
constexpr char kTwoSites[] = R"(
let steps=2
site a
site b
link a b rate=100Mbps latency=10ms
hosts t site=a up=400Mbps down=400Mbps inside=10GB/s
hosts n site=a count=2 up=400Mbps down=400Mbps inside=10GB/s
hosts f site=b count=2 up=400Mbps down=400Mbps inside=10GB/s
weights rank_bytes=16MiB segment=256KiB copy=2GB/s
group trainer role=trainer ranks=1 on=t
group near role=rollout ranks=1 count=2 on=n
group far role=spot ranks=1 count=2 on=f
train trainer first=500ms step=5s write=200ms steps=$steps
update near after=publish
update far after=publish
at 2s join far 2
end 60s
)";

// Why this machine has no virtual hosts, as the command says; empty when it did not say so.
std::string Missing(const ProgramRun& run) {
  const nlohmann::json report = run.json();
  if (!report.is_object() || !report.contains("error")) return "";
  const std::string message = report["error"].value("message", "");
  return absl::StartsWith(message, kNoVirtualHosts) ? message : "";
}

std::string FileOf(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(BenchScenarioTest, RunsTheFileForRealBesideItsSimulationUnderEveryPolicy) {
  const ProgramRun run =
      RunProgram({Th(), "bench", "scenario", FileOf("two_sites", kTwoSites), "--policy",
                  "nearest,direct,broadcast,snapshot-broadcast", "--json"});
  if (const std::string missing = Missing(run); !missing.empty()) GTEST_SKIP() << missing;
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json report = run.json();
  ASSERT_THAT(report["runs"], SizeIs(4));
  for (const nlohmann::json& compared : report["runs"]) {
    const nlohmann::json& real = compared["real"];
    EXPECT_EQ(real["policy"], compared["policy"]);
    EXPECT_EQ(real["updates_failed"], 0) << compared["policy"];
    EXPECT_EQ(real["calls_open"], 0);
    EXPECT_THAT(real["ranks"], SizeIs(5));
    ASSERT_THAT(real["versions"], SizeIs(2));
    EXPECT_EQ(real["versions"][1]["groups_moved"], 4) << compared["policy"];
    // No link lets more pass than its rate, but for a first burst.
    EXPECT_GE(real["versions"][1]["last_reader_seconds"].get<double>(), 0.9 * 16.4e6 / 12.5e6);
    EXPECT_GT(compared["simulated"]["rollout_stall"]["seconds"], 0);
  }
  const auto trainer_stall = [&](int run) {
    return report["runs"][run]["real"]["trainer_stall"]["seconds"].get<double>();
  };
  EXPECT_GE(trainer_stall(2), 0.9 * 16.4e6 / 12.5e6) << "broadcast: it waits for the readers";
  EXPECT_LT(trainer_stall(0), trainer_stall(2));
  EXPECT_GT(report["runs"][3]["real"]["trainer_stall"]["by_cause"]["copy"], 0);
  EXPECT_GT(report["runs"][1]["real"]["trainer_copies_sent"], 2.9) << "direct: one a reader";
}

TEST(BenchScenarioTest, AStoppedRelayIsLeftAndHasTheVersionInTheEnd) {
  const ProgramRun run = RunProgram({Th(), "bench", "scenario", FileOf("stopped", R"(
site a
hosts t site=a up=100Mbps down=100Mbps inside=10GB/s
hosts r site=a count=3 up=100Mbps down=100Mbps inside=10GB/s
weights rank_bytes=16MiB segment=256KiB
group trainer role=trainer ranks=1 on=t
group reader role=rollout ranks=1 count=3 on=r
train trainer first=200ms
update reader after=publish stagger=30ms
at 800ms stop reader-2 for=3s
end 60s
)"),
                                     "--json"});
  if (const std::string missing = Missing(run); !missing.empty()) GTEST_SKIP() << missing;
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json real = run.json()["runs"][0]["real"];
  EXPECT_EQ(real["versions"][0]["groups_moved"], 3);
  for (const nlohmann::json& update : real["updates"]) {
    if (update["group"] == "reader-2") {
      EXPECT_GE(update["began_seconds"].get<double>() + update["seconds"].get<double>(), 3.8);
    }
  }
}

TEST(BenchScenarioTest, WhoSkipsWhileTheSiteIsSeededAsksAgainAndMovesWithinTheSite) {
  const ProgramRun run = RunProgram({Th(), "bench", "scenario", FileOf("seeded", R"(
site a
site b
link a b rate=50Mbps latency=10ms
hosts t site=a up=400Mbps down=400Mbps inside=10GB/s
hosts r site=b count=3 up=400Mbps down=400Mbps inside=10GB/s
weights rank_bytes=16MiB segment=256KiB
group trainer role=trainer ranks=1 on=t
group reader role=rollout ranks=1 count=3 on=r copies=1
train trainer first=200ms
update reader after=publish stagger=100ms when_seeding=skip retry=200ms
end 60s
)"),
                                     "--json"});
  if (const std::string missing = Missing(run); !missing.empty()) GTEST_SKIP() << missing;
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json compared = run.json()["runs"][0];
  for (const char* kind : {"real", "simulated"}) {
    const nlohmann::json& came = compared[kind];
    EXPECT_EQ(came["versions"][0]["groups_moved"], 3) << kind;
    EXPECT_GE(came["updates_not_available"], 2) << kind << ": the other two were told to ask later";
    // 2.7 s over the link between the sites: for the seed. Three that waited would stall for 8.
    EXPECT_LT(came["rollout_stall"]["seconds"], 6.5) << kind;
    EXPECT_NEAR(came["trainer_copies_sent"].get<double>(), 1, 0.1) << kind;
  }
}

TEST(BenchScenarioTest, AStagedVersionStallsItsReadersForTheApplyOnly) {
  const ProgramRun run = RunProgram({Th(), "bench", "scenario", FileOf("staged", R"(
site a
hosts t site=a count=2 up=50Mbps down=50Mbps inside=5GB/s
hosts r site=a count=4 up=50Mbps down=50Mbps inside=5GB/s
weights rank_bytes=16MiB shards=2 segment=256KiB
group trainer role=trainer ranks=2 on=t
group reader role=rollout ranks=2 count=2 on=r
train trainer first=200ms step=8s write=100ms steps=2
update reader after=publish stage=yes
end 60s
)"),
                                     "--json"});
  if (const std::string missing = Missing(run); !missing.empty()) GTEST_SKIP() << missing;
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json compared = run.json()["runs"][0];
  // A shard takes 2.7 s over a link.
  constexpr double kOverTheLink = 0.9 * 16.7e6 / 6.25e6;
  for (const char* kind : {"real", "simulated"}) {
    const nlohmann::json& came = compared[kind];
    EXPECT_EQ(came["updates_failed"], 0) << kind;
    ASSERT_THAT(came["updates"], SizeIs(4)) << kind;
    for (const nlohmann::json& update : came["updates"]) {
      EXPECT_GE(update["seconds"].get<double>(), kOverTheLink) << kind;
      EXPECT_GT(update["stall_seconds"].get<double>(), 0) << kind;
      EXPECT_LT(update["stall_seconds"].get<double>(), kOverTheLink / 2) << kind;
    }
    // Four ranks and two versions: without staging eight times that.
    EXPECT_LT(came["rollout_stall"]["seconds"].get<double>(), 4 * kOverTheLink) << kind;
    for (const nlohmann::json& rank : came["ranks"]) {
      if (rank["role"] == "trainer") continue;
      EXPECT_TRUE(rank["bytes_from"].contains(rank["rank"].get<std::string>()))
          << kind << ": from its own memory, " << rank.dump();
    }
  }
}

TEST(BenchScenarioTest, RefusesWhatOnlyTheSimulatorHas) {
  const std::string racks = absl::StrCat(kTwoSites, "rack_uplinks rate=1GB/s\n");
  const ProgramRun run = RunProgram({Th(), "bench", "scenario", FileOf("racks", racks), "--json"});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.errors, HasSubstr("rack_uplinks"));
}

TEST(BenchModelTest, ComparesEveryPointAndSaysWhatWasFitted) {
  const ProgramRun run = RunProgram({Th(), "bench", "model", "--rate", "200mbit", "--bytes",
                                     "16MiB", "--rounds", "1", "--hosts", "3", "--json"});
  if (const std::string missing = Missing(run); !missing.empty()) GTEST_SKIP() << missing;
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json report = run.json();
  ASSERT_THAT(report["points"], SizeIs(7));
  EXPECT_GT(report["fitted"]["goodput"], 0.5);
  EXPECT_LE(report["fitted"]["goodput"], 1.0);
  for (const nlohmann::json& point : report["points"]) {
    EXPECT_GE(point["real_seconds"], 0.9 * 16.7e6 / 25e6) << point.dump();
    EXPECT_GE(point["simulated_seconds"], 0.9 * 16.7e6 / 25e6) << point.dump();
  }
  EXPECT_LT(report["within"], 0.5) << report.dump(1);  // 0.1 on a machine that is not busy
}

}  // namespace
}  // namespace th
