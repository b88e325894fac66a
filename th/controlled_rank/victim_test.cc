#include "th/controlled_rank/victim.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(FindVictimTest, TakesAGroupThatIsPartWayAndReadFrom) {
  const std::optional<Victim> victim =
      FindVictim({{.group = "r1", .rank = 0, .bytes = 60, .total = 100, .sources = {"trainer/0"}},
                  {.group = "r1", .rank = 1, .bytes = 40, .total = 100, .sources = {"trainer/1"}},
                  {.group = "r2", .rank = 0, .bytes = 30, .total = 100, .sources = {"r1/0"}},
                  {.group = "r2", .rank = 1, .bytes = 30, .total = 100, .sources = {"trainer/1"}}});
  ASSERT_TRUE(victim);
  EXPECT_EQ(victim->group, "r1");
  EXPECT_DOUBLE_EQ(victim->fraction, 0.5);
}

struct Case {
  std::string what;
  std::vector<ObservedFill> fills;
};

TEST(FindVictimTest, KillsNobodyElse) {
  const ObservedFill reader = {.group = "r2", .bytes = 10, .total = 100, .sources = {"r1/0"}};
  const std::vector<Case> cases = {
      {"nobody is there", {}},
      {"nobody reads from it", {{.group = "r1", .bytes = 50, .total = 100}}},
      {"too early", {{.group = "r1", .bytes = 24, .total = 100}, reader}},
      {"too late", {{.group = "r1", .bytes = 76, .total = 100}, reader}},
      {"a rank of it was not heard yet",
       {{.group = "r1", .rank = 0, .bytes = 90, .total = 100}, {.group = "r1", .rank = 1}, reader}},
      {"only itself reads from it",
       {{.group = "r1", .rank = 0, .bytes = 50, .total = 100, .sources = {"r1/1"}}}},
      {"another of a similar name is read from",
       {{.group = "r", .bytes = 50, .total = 100}, reader}},
  };
  for (const Case& c : cases) EXPECT_FALSE(FindVictim(c.fills)) << c.what;
}

TEST(FindVictimTest, TakesWhoHoldsWhatTheRangeSays) {
  const std::vector<ObservedFill> fills = {
      {.group = "r1", .bytes = 30, .total = 100},
      {.group = "r2", .bytes = 10, .total = 100, .sources = {"r1/0"}}};
  EXPECT_TRUE(FindVictim(fills));
  EXPECT_FALSE(FindVictim(fills, {.from = 0.4, .to = 0.75}));
  EXPECT_TRUE(FindVictim(fills, {.from = 0.1, .to = 0.3}));
}

TEST(SplitSourcesTest, TakesOneSeveralOrNone) {
  EXPECT_THAT(SplitSources(""), IsEmpty());
  EXPECT_THAT(SplitSources("trainer/0"), ElementsAre("trainer/0"));
  EXPECT_THAT(SplitSources("trainer/0, r1/1,r2/0"), ElementsAre("trainer/0", "r1/1", "r2/0"));
}

}  // namespace
}  // namespace th
