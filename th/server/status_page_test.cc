#include "th/server/status_page.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

StatusSnapshot Sample() {
  StatusSnapshot snapshot{
      .workers = 5, .uptime = absl::Seconds(90.5), .address = "127.0.0.1:7077", .version = "0.1"};
  snapshot.counters.joins = 6;
  snapshot.catalog.epoch = Epoch(3);
  CatalogModel model{.key = {"r\"1", "<m>"}};
  model.versions.push_back(
      {.info = {.sequence = VersionSequence::Of(Epoch(3), 2), .label = VersionLabel::FromStep(8)},
       .published = true,
       .sealed = true,
       .bytes = 4096,
       .replicas = {{.group = "trainer", .state = "published"},
                    {.group = "rollout", .state = "filling"}}});
  model.versions.push_back({.info = {.sequence = VersionSequence::Of(Epoch(3), 1)},
                            .published = true,
                            .withdrawn = true});
  model.idle.push_back({.group = "late", .state = "idle"});
  snapshot.catalog.models.push_back(model);
  return snapshot;
}

TEST(MetricsTest, GaugesAndCountersAreThere) {
  const std::string text = RenderMetrics(Sample(), ServerMetrics());
  EXPECT_THAT(text, AllOf(HasSubstr("\ntensorhub_epoch 3\n"), HasSubstr("\ntensorhub_workers 5\n"),
                          HasSubstr("\ntensorhub_joins_total 6\n"),
                          HasSubstr("\ntensorhub_uptime_seconds 90.5\n")));
}

TEST(MetricsTest, LabelsAreEscapedAndWithdrawnVersionsLeftOut) {
  EXPECT_THAT(RenderMetrics(Sample(), ServerMetrics()),
              HasSubstr("tensorhub_versions{run=\"r\\\"1\",model=\"<m>\"} 1\n"));
}

TEST(MetricsTest, ReplicasAreCountedByState) {
  EXPECT_THAT(RenderMetrics(Sample(), ServerMetrics()),
              AllOf(HasSubstr(",state=\"filling\"} 1\n"), HasSubstr(",state=\"published\"} 1\n"),
                    HasSubstr(",state=\"idle\"} 1\n")));
}

TEST(MetricsTest, HistogramsAreCumulative) {
  ServerMetrics metrics;
  metrics.turn_seconds.Record(absl::Microseconds(50));
  metrics.turn_seconds.Record(absl::Milliseconds(2));
  metrics.turn_seconds.Record(absl::Seconds(60));
  EXPECT_THAT(RenderMetrics({}, metrics),
              AllOf(HasSubstr("tensorhub_turn_seconds_bucket{le=\"0.0001\"} 1\n"),
                    HasSubstr("tensorhub_turn_seconds_bucket{le=\"0.0025\"} 2\n"),
                    HasSubstr("tensorhub_turn_seconds_bucket{le=\"2.5\"} 2\n"),
                    HasSubstr("tensorhub_turn_seconds_bucket{le=\"+Inf\"} 3\n"),
                    HasSubstr("tensorhub_turn_seconds_count 3\n")));
}

TEST(MetricsTest, EveryFamilyIsDeclaredOnce) {
  const std::string text = RenderMetrics(Sample(), ServerMetrics());
  size_t declared = 0;
  for (size_t at = text.find("# TYPE "); at != std::string::npos; ++declared) {
    const std::string line = text.substr(at, text.find('\n', at) + 1 - at);
    EXPECT_EQ(text.find(line, at + 1), std::string::npos) << line;
    at = text.find("# TYPE ", at + 1);
  }
  EXPECT_GT(declared, 20u);
}

TEST(StatusPageTest, ShowsVersionsWithStateAndHolders) {
  EXPECT_THAT(RenderStatusPage(Sample()),
              AllOf(HasSubstr("8 (#3.2)"), HasSubstr("sealed"), HasSubstr("withdrawn"),
                    HasSubstr("trainer (published), rollout (filling)"), HasSubstr("nobody")));
}

TEST(StatusPageTest, NamesCannotBreakOut) {
  EXPECT_THAT(RenderStatusPage(Sample()),
              AllOf(HasSubstr("&lt;m&gt;"), HasSubstr("r&quot;1"), Not(HasSubstr("<m>"))));
}

}  // namespace
}  // namespace th
