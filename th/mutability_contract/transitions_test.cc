#include "th/mutability_contract/transitions.h"

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

std::string RowText(const BufferTransition& row) {
  return absl::StrCat(
      std::string(BufferStateName(row.from)), " | ", std::string(BufferEventName(row.event)), " | ",
      std::string(BufferConditionName(row.condition)), " | ", std::string(BufferStateName(row.to)),
      " | ", row.new_generation ? "rises" : "same");
}

std::vector<std::string> RowsOfTheDrawnTable() {
  const std::string path =
      absl::StrCat(getenv("TEST_SRCDIR"), "/tensorhub", "/docs/protocol/contract.md");
  std::ifstream file(path);
  std::vector<std::string> rows;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> cells = absl::StrSplit(line, " | ");
    if (cells.size() != 5 || absl::StrContains(line, "event")) continue;
    rows.emplace_back(absl::StripPrefix(absl::StripSuffix(line, " |"), "| "));
  }
  return rows;
}

TEST(TransitionsTest, TheDrawnTableListsExactlyTheTransitionsOfTheCode) {
  std::vector<std::string> coded;
  for (const BufferTransition& row : BufferTransitions()) coded.push_back(RowText(row));
  EXPECT_THAT(RowsOfTheDrawnTable(), UnorderedElementsAreArray(coded));
}

TEST(TransitionsTest, EveryStateCanBeReachedAndLeft) {
  std::set<BufferState> reached = {BufferState::kWritable};
  std::set<BufferState> left;
  for (const BufferTransition& row : BufferTransitions()) {
    reached.insert(row.to);
    if (row.to != row.from) left.insert(row.from);
  }
  EXPECT_EQ(reached.size(), std::size(kAllBufferStates));
  EXPECT_EQ(left.size(), std::size(kAllBufferStates));
}

TEST(TransitionsTest, TheGenerationRisesOnEveryWayIntoWritingAfterServing) {
  std::vector<std::string> silent;
  for (const BufferTransition& row : BufferTransitions()) {
    const bool may_be_written = row.to == BufferState::kFilling || row.to == BufferState::kWritable;
    const bool was_served = row.from != BufferState::kWritable && row.from != BufferState::kFilling;
    if (may_be_written && was_served && !row.new_generation) silent.push_back(RowText(row));
  }
  EXPECT_THAT(silent, IsEmpty());
}

TEST(TransitionsTest, NamesAreDistinct) {
  std::set<absl::string_view> names;
  for (BufferState state : kAllBufferStates) names.insert(BufferStateName(state));
  for (BufferEvent event : kAllBufferEvents) names.insert(BufferEventName(event));
  EXPECT_EQ(names.size(), std::size(kAllBufferStates) + std::size(kAllBufferEvents));
}

TEST(TransitionsTest, FindsNothingForARefusedStep) {
  EXPECT_EQ(FindBufferTransition(BufferState::kUndefined, BufferEvent::kPublish,
                                 BufferCondition::kNoReader),
            nullptr);
  EXPECT_FALSE(BufferEventAllowed(BufferState::kDraining, BufferEvent::kBeginUpdate));
  EXPECT_TRUE(BufferEventAllowed(BufferState::kDraining, BufferEvent::kDrained));
}

}  // namespace
}  // namespace th
