#include "th/worker/retention_losses.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::ElementsAre;

RecentEvent Happened(EventKind kind, std::string who, std::string what) {
  return {.kind = kind, .who = std::move(who), .what = std::move(what)};
}

TEST(RetentionLossesTest, ThoseOfTheGroupAndItsRanksCount) {
  const RecentEvents events{
      .events = {Happened(EventKind::kRetainedVersionLost, "trainer", "step-1"),
                 Happened(EventKind::kUnpublished, "trainer", "step-1"),
                 Happened(EventKind::kRetainedVersionLost, "trainer-2", "step-2"),
                 Happened(EventKind::kRetainedVersionLost, "trainer-2/0", "step-3"),
                 Happened(EventKind::kRetainedVersionLost, "trainer/1", "step-4")}};
  EXPECT_THAT(LossesOf(events, "trainer"), ElementsAre("step-1", "step-4"));
}

}  // namespace
}  // namespace th
