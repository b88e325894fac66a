#include "th/command_line/text_table.h"

#include "gtest/gtest.h"

namespace th {
namespace {

TEST(TextTableTest, AlignsColumnsToTheirWidestCell) {
  TextTable table({{"READER"}, {"BYTES", Align::kRight}, {"SOURCE"}});
  table.AddRow({"rollout-1/0", "45.4 MB", "trainer/0"});
  table.AddRow({"r/1", "9 B", "x"});
  EXPECT_EQ(table.ToString(),
            "READER         BYTES  SOURCE\n"
            "rollout-1/0  45.4 MB  trainer/0\n"
            "r/1              9 B  x\n");
}

TEST(TextTableTest, ShowsTheTitlesOfAnEmptyTable) {
  const TextTable table({{"A"}, {"B"}});
  EXPECT_TRUE(table.empty());
  EXPECT_EQ(table.ToString(), "A  B\n");
}

TEST(TextTableTest, TakesRowsThatAreTooShortOrTooLong) {
  TextTable table({{"A"}, {"B"}});
  table.AddRow({"1"});
  table.AddRow({"1", "2", "3"});
  EXPECT_EQ(table.ToString(), "A  B\n1\n1  2\n");
}

TEST(TextTableTest, CountsCodePointsNotBytes) {
  TextTable table({{"MODEL"}, {"N"}});
  table.AddRow({"müller", "1"});
  EXPECT_EQ(table.ToString(), "MODEL   N\nmüller  1\n");
}

TEST(FitWidthTest, CutsBetweenCodePointsAndSaysSo) {
  EXPECT_EQ(FitWidth("rollout", 7), "rollout");
  EXPECT_EQ(FitWidth("rollout", 4), "rol…");
  EXPECT_EQ(FitWidth("äöüß", 3), "äö…");
  EXPECT_EQ(FitWidth("ab", 1), "…");
  EXPECT_EQ(FitWidth("ab", 0), "");
}

}  // namespace
}  // namespace th
