#include "th/server/metrics_text.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ModelTotals SampleTotals() {
  ModelTotals totals{.fill = {.received = {{"tcp", Distance::kSameRack, true, 4096},
                                           {"t\"x", Distance::kOtherSite, false, 12}},
                              .passed_over = {{"same_host", "on another \"host\"", 9}},
                              .unchanged_bytes = 8,
                              .rerouted_bytes = 5,
                              .reread_bytes = 6,
                              .reroutes = 7},
                     .copies_published = 1.25,
                     .copies_relayed = 6.5,
                     .readers_cut = 2};
  totals.stall[static_cast<size_t>(StallPhase::kTransfer)] = absl::Milliseconds(1500);
  totals.failures.push_back({.kind = static_cast<uint8_t>(OperationKind::kUpdate),
                             .code = static_cast<int>(absl::StatusCode::kDeadlineExceeded),
                             .count = 3});
  return totals;
}

StatusSnapshot Sample() {
  StatusSnapshot snapshot{
      .workers = 5, .uptime = absl::Seconds(90.5), .address = "127.0.0.1:7077", .version = "0.1"};
  snapshot.counters.joins = 6;
  snapshot.epoch = Epoch(3);
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
  snapshot.events.events.push_back({.number = 1,
                                    .id = EventId::Of(Epoch(3), 17),
                                    .kind = EventKind::kUpdateMoved,
                                    .age = absl::Seconds(4.2),
                                    .at = absl::FromUnixMillis(1'700'000'000'125),
                                    .key = model.key,
                                    .who = "rollout",
                                    .what = "<b>8</b>"});
  snapshot.figures.push_back({.key = model.key,
                              .versions = 1,
                              .retained_lost = 2,
                              .latest_lost = 1,
                              .replicas = {{"filling", 1}, {"idle", 1}, {"published", 1}},
                              .totals = SampleTotals()});
  return snapshot;
}

TEST(MetricsTest, GaugesAndCountersAreThere) {
  const std::string text = RenderMetrics(Sample(), ServerMetrics());
  EXPECT_THAT(
      text, AllOf(HasSubstr("\ntensorhub_epoch 3\n"), HasSubstr("\ntensorhub_workers 5\n"),
                  HasSubstr("\ntensorhub_joins_total 6\n"),
                  HasSubstr("\ntensorhub_retained_versions_lost{run=\"r\\\"1\",model=\"<m>\"} 2\n"),
                  HasSubstr("\ntensorhub_latest_version_lost{run=\"r\\\"1\",model=\"<m>\"} 1\n"),
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

TEST(MetricsTest, CostsAreSplitByCauseTransportAndDistance) {
  EXPECT_THAT(
      RenderMetrics(Sample(), ServerMetrics()),
      AllOf(HasSubstr("# TYPE tensorhub_stall_seconds_total counter\n"),
            HasSubstr(
                "tensorhub_stall_seconds_total{run=\"r\\\"1\",model=\"<m>\",phase=\"transfer\"} "
                "1.5\n"),
            HasSubstr(",phase=\"drain\"} 0\n"),
            HasSubstr(",transport=\"tcp\",distance=\"" +
                      std::string(DistanceName(Distance::kSameRack)) +
                      "\",source=\"publisher\"} 4096\n"),
            HasSubstr(",transport=\"t\\\"x\","), HasSubstr(",source=\"publisher\"} 1.25\n"),
            HasSubstr(",source=\"relay\"} 6.5\n"),
            HasSubstr(",operation=\"update\",cause=\"DEADLINE_EXCEEDED\"} 3\n")));
}

TEST(MetricsTest, EachCountOfAModelIsASampleOfItsOwnFamily) {
  const std::string text = RenderMetrics(Sample(), ServerMetrics());
  for (const char* sample : {"tensorhub_reread_bytes_total{run=\"r\\\"1\",model=\"<m>\"} 6\n",
                             "tensorhub_rerouted_bytes_total{run=\"r\\\"1\",model=\"<m>\"} 5\n",
                             "tensorhub_unchanged_bytes_total{run=\"r\\\"1\",model=\"<m>\"} 8\n",
                             "tensorhub_reroutes_total{run=\"r\\\"1\",model=\"<m>\"} 7\n",
                             "tensorhub_readers_cut_total{run=\"r\\\"1\",model=\"<m>\"} 2\n"}) {
    EXPECT_THAT(text, HasSubstr(sample));
  }
}

TEST(MetricsTest, DoublesHaveAllTheirDigits) {
  StatusSnapshot snapshot = Sample();
  snapshot.figures[0].totals.stall[static_cast<size_t>(StallPhase::kQueue)] =
      absl::Milliseconds(12'345'678'125);
  EXPECT_THAT(RenderMetrics(snapshot, ServerMetrics()),
              HasSubstr(",phase=\"queue\"} 12345678.125\n"));
}

TEST(MetricsTest, UpdatesAndStallsOfAModelAreHistograms) {
  StatusSnapshot snapshot = Sample();
  snapshot.figures[0].update_seconds.Record(absl::Seconds(3));
  snapshot.figures[0].stall_seconds.Record(absl::Milliseconds(20));
  snapshot.figures[0].stall_seconds.Record(absl::Minutes(10));
  constexpr char kModel[] = "{run=\"r\\\"1\",model=\"<m>\"";
  EXPECT_THAT(
      RenderMetrics(snapshot, ServerMetrics()),
      AllOf(HasSubstr("# TYPE tensorhub_update_seconds histogram\n"),
            HasSubstr(absl::StrCat("tensorhub_update_seconds_bucket", kModel, ",le=\"2.5\"} 0\n")),
            HasSubstr(absl::StrCat("tensorhub_update_seconds_bucket", kModel, ",le=\"5\"} 1\n")),
            HasSubstr(absl::StrCat("tensorhub_update_seconds_sum", kModel, "} 3\n")),
            HasSubstr(
                absl::StrCat("tensorhub_rank_stall_seconds_bucket", kModel, ",le=\"300\"} 1\n")),
            HasSubstr(
                absl::StrCat("tensorhub_rank_stall_seconds_bucket", kModel, ",le=\"+Inf\"} 2\n")),
            HasSubstr(absl::StrCat("tensorhub_rank_stall_seconds_count", kModel, "} 2\n"))));
}

TEST(MetricsTest, GroupsSayHowFarTheyAreBehind) {
  StatusSnapshot snapshot = Sample();
  snapshot.now = absl::FromUnixSeconds(100);
  snapshot.figures[0].groups = {{"rollout", 3}, {"trainer", 0, absl::FromUnixSeconds(90)}};
  snapshot.figures[0].groups_left_out = 7;
  snapshot.figures[0].most_versions_behind = 4;
  const std::string text = RenderMetrics(snapshot, ServerMetrics());
  EXPECT_THAT(
      text,
      AllOf(HasSubstr(
                "tensorhub_group_versions_behind{run=\"r\\\"1\",model=\"<m>\",group=\"rollout\"} "
                "3\n"),
            HasSubstr("tensorhub_group_since_publish_seconds{run=\"r\\\"1\",model=\"<m>\",group="
                      "\"trainer\"} 10\n"),
            HasSubstr("tensorhub_versions_behind_max{run=\"r\\\"1\",model=\"<m>\"} 4\n"),
            HasSubstr("tensorhub_groups_left_out{run=\"r\\\"1\",model=\"<m>\"} 7\n")));
  EXPECT_THAT(text,
              Not(HasSubstr("since_publish_seconds{run=\"r\\\"1\",model=\"<m>\",group=\"rollout")));
}

TEST(MetricsTest, TheProcessIsMeasured) {
  StatusSnapshot snapshot;
  snapshot.process = {.cpu = absl::Milliseconds(1250),
                      .resident_bytes = 4096,
                      .open_descriptors = 12,
                      .max_descriptors = 1024,
                      .started = absl::FromUnixSeconds(1'700'000'000)};
  EXPECT_THAT(RenderMetrics(snapshot, ServerMetrics()),
              AllOf(HasSubstr("\nprocess_cpu_seconds_total 1.25\n"),
                    HasSubstr("\nprocess_resident_memory_bytes 4096\n"),
                    HasSubstr("\nprocess_open_fds 12\n"), HasSubstr("\nprocess_max_fds 1024\n"),
                    HasSubstr("\ntensorhub_connections_max 768\n"),
                    HasSubstr("\nprocess_start_time_seconds 1700000000\n")));
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

}  // namespace
}  // namespace th
