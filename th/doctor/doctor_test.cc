#include "th/doctor/doctor.h"

#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th::doctor {
namespace {

using ::testing::Contains;
using ::testing::Not;

std::vector<Finding> ThreeFindings() {
  return {{.check = "open-files", .found = "at most 65536", .means = "enough"},
          {.check = "gpus",
           .verdict = Verdict::kProblem,
           .found = "8 GPUs, but no library",
           .means = "no GPU memory",
           .advice = "install it"},
          {.check = "huge-pages",
           .verdict = Verdict::kNote,
           .found = "never",
           .means = "slower",
           .advice = "enable them"}};
}

TEST(DoctorTest, TheTextShowsWhatWasFoundWhatItMeansAndWhatToDo) {
  EXPECT_EQ(FindingsAsText(ThreeFindings()),
            "ok       open-files at most 65536\n"
            "                    enough\n"
            "problem  gpus       8 GPUs, but no library\n"
            "                    no GPU memory\n"
            "                    To do: install it\n"
            "note     huge-pages never\n"
            "                    slower\n"
            "                    To do: enable them\n"
            "1 ok, 1 note, 1 problem\n");
}

TEST(DoctorTest, TheJsonHasOneObjectACheck) {
  const nlohmann::json json = FindingsAsJson(ThreeFindings());
  EXPECT_EQ(json["problems"], 1);
  EXPECT_EQ(json["notes"], 1);
  ASSERT_EQ(json["checks"].size(), 3u);
  EXPECT_EQ(json["checks"][0], (nlohmann::json{{"check", "open-files"},
                                               {"verdict", "ok"},
                                               {"found", "at most 65536"},
                                               {"means", "enough"}}));
  EXPECT_EQ(json["checks"][1]["verdict"], "problem");
  EXPECT_EQ(json["checks"][1]["advice"], "install it");
}

std::set<std::string> ChecksOf(const std::vector<Finding>& findings) {
  std::set<std::string> checks;
  for (const Finding& finding : findings) {
    EXPECT_TRUE(checks.insert(finding.check).second) << finding.check << " comes twice";
  }
  return checks;
}

// Whatever is unknown, each check says something, and what to do unless all is well.
TEST(DoctorTest, AHostOfWhichNothingIsKnownIsJudged) {
  HostFacts facts;
  facts.route = RouteFacts{.target = "x:1"};
  facts.peer = PeerFacts{.target = "x:1"};
  const std::vector<Finding> findings = Judge(facts);
  EXPECT_EQ(
      ChecksOf(findings),
      (std::set<std::string>{"rdma-devices", "gpus", "process-memory", "shared-memory",
                             "huge-pages", "open-files", "congestion-control", "socket-buffers",
                             "clock-source", "clock-synchronisation", "connect", "peer"}));
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.advice.empty(), finding.verdict == Verdict::kOk) << finding.check;
    EXPECT_FALSE(finding.found.empty() || finding.means.empty()) << finding.check;
  }
}

TEST(DoctorTest, ThisHostIsExamined) {
  const std::vector<Finding> findings = Examine({});
  const std::set<std::string> checks = ChecksOf(findings);
  EXPECT_THAT(checks, Contains("rdma-devices"));
  EXPECT_THAT(checks, Contains("open-files"));
  EXPECT_THAT(checks, Not(Contains("connect")));
  EXPECT_EQ(CountOf(findings, Verdict::kOk) + CountOf(findings, Verdict::kNote) +
                CountOf(findings, Verdict::kProblem),
            findings.size());
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.advice.empty(), finding.verdict == Verdict::kOk) << finding.check;
  }
}

TEST(DoctorTest, ThisHostAnswersItself) {
  ListenOptions listen = {.at = {"127.0.0.1", "0"}, .version = "0.1.0"};
  const auto answers = ListenForPeers(listen);
  ASSERT_TRUE(answers.ok()) << answers.status();
  ExamineOptions options = {
      .to = HostAndPort{"127.0.0.1", std::to_string((*answers)->port())},
      .peer = PeerProbeOptions{.version = "0.1.0", .bulk = {.duration = absl::Milliseconds(20)}}};
  const std::vector<Finding> findings = Examine(options);
  const std::set<std::string> checks = ChecksOf(findings);
  for (const char* check : {"connect", "peer", "peer-version", "peer-way-back", "peer-rate"}) {
    EXPECT_THAT(checks, Contains(check));
  }
  for (const Finding& each : findings) {
    if (each.check == "peer") {
      EXPECT_EQ(each.verdict, Verdict::kOk) << each.found;
    }
    // The peer is this host too, and finds the same.
    if (each.verdict == Verdict::kProblem && each.check.find("peer") != 0) {
      EXPECT_THAT(checks, Contains("peer:" + each.check));
    }
  }
}

}  // namespace
}  // namespace th::doctor
