#include "th/cli/live/top_page.h"

#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/command_line/text_table.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

CatalogReplica AReplica(const std::string& group, std::string state, uint64_t held) {
  return {.group = group,
          .buffer_name = "weights",
          .form = "hf",
          .state = std::move(state),
          .ranks = {{.name = {group, Rank(0)},
                     .worker = WorkerId(held),
                     .buffer_name = "weights",
                     .bytes = 2'000'000,
                     .bytes_held = held}}};
}

Catalog ACatalog(uint64_t held) {
  CatalogVersion version{.published = true, .sealed = true, .bytes = 2'000'000};
  version.info = {.sequence = VersionSequence::Of(Epoch(7), 2), .label = VersionLabel::FromStep(5)};
  CatalogReplica trainer = AReplica("trainer", "published", 2'000'000);
  trainer.ranks[0].readers = 1;
  CatalogReplica rollout = AReplica("rollout", "filling", held);
  rollout.ranks[0].worker = WorkerId(9);
  rollout.ranks[0].sources = {{"trainer", Rank(0)}};
  rollout.event = EventId::Of(Epoch(7), 12);
  rollout.operation = OperationKind::kUpdate;
  rollout.operation_since = absl::Milliseconds(1234);
  version.replicas = {trainer, rollout};
  CatalogModel model{.key = {"r1", "qwen"}, .versions = {version}};
  model.idle = {AReplica("late", "idle", 0)};
  model.totals.stall[static_cast<size_t>(StallPhase::kTransfer)] = absl::Seconds(3);
  model.totals.fill = {.received = {{"tcp", Distance::kSameRack, true, 4'000'000}}, .reroutes = 2};
  model.totals.copies_published = 2;
  model.totals.failures = {{.kind = 3, .code = 4, .count = 5}};
  return {.epoch = Epoch(7), .models = {model}};
}

FillRates Rates() {
  FillRates rates;
  rates.Observe(ACatalog(500'000), absl::FromUnixSeconds(0));
  rates.Observe(ACatalog(1'500'000), absl::FromUnixSeconds(1));
  return rates;
}

TEST(TopLinesTest, AnEmptyServerHasAHeadLine) {
  EXPECT_THAT(TopLines({.epoch = Epoch(3)}, {}), ElementsAre("TensorHub, epoch 3, 0 models"));
}

TEST(TopLinesTest, ThePageAsDrawn) {
  EXPECT_EQ("\n" + absl::StrJoin(TopLines(ACatalog(1'500'000), Rates()), "\n"),
            R"(
TensorHub, epoch 7, 1 model

run=r1 model=qwen: latest 5 (#7.2)
stall 3.0 s (transfer 3.0 s); received 4.00 MB, unchanged 0 B, copies 2.00 from publishers and 0.00 from relays; 2 re-routes, 0 readers cut
VERSION   GROUP    STATE      RANKS   HELD       RATE  FROM       READERS  OPERATION     EVENT
5 (#7.2)  rollout  filling        1   75 %  1.00 MB/s  trainer/0        0  update 1.2 s  7-12
5 (#7.2)  trainer  published      1  100 %          -  -                1  -             -
-         late     idle           1      -          -  -                0  -             -)");
}

TEST(TopLinesTest, ManySourcesAreCountedAndNotAllNamed) {
  Catalog catalog = ACatalog(1);
  auto& sources = catalog.models[0].versions[0].replicas[1].ranks[0].sources;
  for (uint32_t rank = 1; rank < 5; ++rank) sources.push_back({"trainer", Rank(rank)});
  EXPECT_THAT(absl::StrJoin(TopLines(catalog, {}), "\n"),
              HasSubstr("trainer/0, trainer/1, trainer/2 and 2 more"));
}

TEST(AwayLinesTest, TheLastPictureStaysBelowSinceWhen) {
  const absl::Time since = absl::FromUnixSeconds(1'700'000'000);
  const auto lines = AwayLines({"TensorHub, epoch 7, 0 models"}, since, since + absl::Seconds(75.7),
                               "connection refused");
  EXPECT_THAT(lines, ElementsAre(AllOf(HasSubstr("does not answer since "),
                                       HasSubstr(", for 1m15s: connection refused")),
                                 HasSubstr("last picture"), "", "TensorHub, epoch 7, 0 models"));
}

TEST(FitPageTest, LongLinesAreCutAndNeverWrapped) {
  for (const std::string& line : FitPage(TopLines(ACatalog(1), {}), {.columns = 20})) {
    EXPECT_LE(DisplayWidth(line), 20u) << line;
  }
}

TEST(FitPageTest, WhatIsLeftOutIsCounted) {
  const auto page = FitPage({"a", "b", "c", "d"}, {.rows = 3});
  EXPECT_THAT(page, ElementsAre("a", "b", HasSubstr("and 2 more lines")));
  EXPECT_THAT(FitPage({"a", "b"}, {.rows = 2}), ElementsAre("a", "b"));
  EXPECT_THAT(FitPage({"a", "b"}, {.rows = 1}), SizeIs(1));
}

TEST(FitPageTest, WithoutATerminalNothingIsCut) {
  const std::vector<std::string> lines = TopLines(ACatalog(1), {});
  EXPECT_EQ(FitPage(lines, {}), lines);
}

TEST(TopToJsonTest, HasWhatThePageShows) {
  const nlohmann::json top = TopToJson(ACatalog(1'500'000), Rates());
  EXPECT_EQ(top["epoch"], 7);
  const nlohmann::json& model = top["models"][0];
  EXPECT_EQ(model["latest"], "5 (#7.2)");
  EXPECT_EQ(model["totals"]["stall_seconds"]["transfer"], 3.0);
  EXPECT_EQ(model["totals"]["received"][0]["bytes"], 4'000'000);
  EXPECT_EQ(model["totals"]["failures"][0]["cause"], "DEADLINE_EXCEEDED");
  const nlohmann::json& rollout = model["replicas"][0];
  EXPECT_EQ(rollout["group"], "rollout");
  EXPECT_EQ(rollout["bytes_per_second"], 1'000'000.0);
  EXPECT_EQ(rollout["from"], nlohmann::json({"trainer/0"}));
  EXPECT_EQ(rollout["operation"], "update");
  EXPECT_EQ(rollout["event"], "7-12");
  EXPECT_FALSE(model["replicas"][1].contains("event"));
}

}  // namespace
}  // namespace th
