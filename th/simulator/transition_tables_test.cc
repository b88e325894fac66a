#include "th/simulator/transition_tables.h"

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/simulator/transition_coverage.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> NamesOf(TransitionTable table) {
  std::vector<std::string> names;
  for (const DrawnTransition& drawn : TransitionsOf(table)) names.push_back(drawn.name);
  return names;
}

// The cells of every row of the drawn tables that begin with this header.
std::vector<std::vector<std::string>> DrawnRows(const std::string& file, const char* header) {
  std::ifstream stream(absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"),
                                    "/docs/protocol/", file));
  std::vector<std::vector<std::string>> rows;
  bool inside = false;
  for (std::string line; std::getline(stream, line);) {
    if (absl::StartsWith(line, header)) {
      inside = true;
    } else if (!absl::StartsWith(line, "| ")) {
      inside = inside && absl::StartsWith(line, "|---");
    } else if (inside) {
      absl::string_view cells = line;
      absl::ConsumePrefix(&cells, "| ");
      absl::ConsumeSuffix(&cells, " |");
      rows.push_back(absl::StrSplit(cells, " | "));
    }
  }
  return rows;
}

TEST(TransitionTablesTest, TheSessionsAreThoseThatAreDrawn) {
  std::vector<std::string> drawn;
  for (const auto& row : DrawnRows("session.md", "| phase | event |")) {
    ASSERT_THAT(row, SizeIs(4));
    const std::string name = absl::StrCat(row[0], " | ", absl::StrReplaceAll(row[1], {{"`", ""}}));
    drawn.push_back(name);
    const std::vector<std::string> outputs = absl::StrSplit(row[3], ", ");
    EXPECT_EQ(FirstOutputOfSessionStep(name), row[2] == "same" ? outputs.front() : "") << name;
  }
  EXPECT_THAT(NamesOf(TransitionTable::kSession), ElementsAreArray(drawn));
}

TEST(TransitionTablesTest, TheReplicasAreThoseThatAreDrawn) {
  std::vector<std::string> drawn;
  for (const auto& row : DrawnRows("registry.md", "| event |")) {
    ASSERT_THAT(row, SizeIs(6));
    for (const char* phase : {"idle", "publishing", "holding", "filling", "draining"}) {
      drawn.push_back(absl::StrCat(row[0], " | ", phase));
    }
  }
  EXPECT_THAT(NamesOf(TransitionTable::kReplica), ElementsAreArray(drawn));
}

TEST(TransitionTablesTest, WhatIsSaidOfStepsIsSaidOfDrawnOnes) {
  size_t impossible = 0, rare = 0;
  for (TransitionTable table : kTransitionTables) {
    for (const DrawnTransition& drawn : TransitionsOf(table)) {
      EXPECT_FALSE(drawn.rare && !drawn.why_not_here.empty()) << drawn.name;
      impossible += drawn.why_not_here.empty() ? 0 : 1;
      rare += drawn.rare ? 1 : 0;
    }
  }
  EXPECT_EQ(impossible, ImpossibleTransitions());
  EXPECT_EQ(rare, RareTransitions());
}

TEST(TransitionTablesTest, NoNameStandsTwice) {
  for (TransitionTable table : kTransitionTables) {
    const std::vector<std::string> names = NamesOf(table);
    EXPECT_THAT(std::set<std::string>(names.begin(), names.end()), SizeIs(names.size()))
        << TransitionTableName(table);
  }
}

TEST(TransitionCoverageTest, SumsOverRunsAndNamesWhatIsMissing) {
  TransitionCoverage one, other;
  const std::vector<std::string> names = NamesOf(TransitionTable::kContract);
  EXPECT_THAT(one.NotTaken(TransitionTable::kContract), SizeIs(names.size()));
  one.Take(TransitionTable::kContract, names[0]);
  for (size_t i = 2; i < names.size(); ++i) other.Take(TransitionTable::kContract, names[i]);
  other.Take(TransitionTable::kContract, names[0]);
  one.Add(other);
  EXPECT_EQ(one.times(TransitionTable::kContract, names[0]), 2u);
  EXPECT_THAT(one.NotTaken(TransitionTable::kContract), ElementsAre(names[1]));
  EXPECT_EQ(one.taken(TransitionTable::kContract), names.size() - 1);
  EXPECT_THAT(one.Summary(), ::testing::StartsWith(absl::StrCat("contract ", names.size() - 1, "/",
                                                                names.size(), ", session 0/")));
}

TEST(TransitionCoverageTest, IgnoresWhatNoTableDraws) {
  TransitionCoverage coverage;
  coverage.Take(TransitionTable::kSession, "asleep | woken");
  EXPECT_EQ(coverage.times(TransitionTable::kSession, "asleep | woken"), 0u);
  EXPECT_EQ(coverage.taken(TransitionTable::kSession), 0u);
  EXPECT_THAT(coverage.TakenAgainstTheTable(TransitionTable::kSession), IsEmpty());
}

}  // namespace
}  // namespace th
