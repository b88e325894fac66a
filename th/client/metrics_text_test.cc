#include "th/client/metrics_text.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::HasSubstr;

constexpr char kLabels[] = "{run=\"r1\",model=\"m\",group=\"rollout\",rank=\"3\"";

MembershipFigures Figures() {
  MembershipFigures figures{.key = {"r1", "m"},
                            .name = {"rollout", Rank(3)},
                            .connected = true,
                            .served = {.now = 2, .admitted = 7, .refused = 1, .bytes_sent = 900}};
  OperationDone done{.kind = OperationKind::kUpdate, .outcome = UpdateOutcome::kMoved};
  done.transfer = absl::Milliseconds(1500);
  figures.Count(Verb::kUpdate, done,
                {.received = {{"tcp", Distance::kSameRack, false, 4096}}, .reroutes = 2}, 1);
  return figures;
}

TEST(WorkerMetricsTest, AMembershipIsNamedByModelGroupAndRank) {
  const std::string text = RenderMetrics({Figures()}, {}, {});
  const std::string labels = kLabels;
  for (const std::string& sample : {
           "tensorhub_worker_connected" + labels + "} 1\n",
           "tensorhub_worker_calls_total" + labels + ",verb=\"update\",outcome=\"moved\"} 1\n",
           "tensorhub_worker_stall_seconds_total" + labels + ",phase=\"transfer\"} 1.5\n",
           "tensorhub_worker_update_seconds_count" + labels + "} 1\n",
           "tensorhub_worker_received_bytes_total" + labels +
               ",transport=\"tcp\",distance=\"same rack\",source=\"relay\"} 4096\n",
           "tensorhub_worker_reroutes_total" + labels + "} 2\n",
           "tensorhub_worker_corrupt_segments_total" + labels + "} 1\n",
           "tensorhub_worker_readers" + labels + "} 2\n",
           "tensorhub_worker_readers_admitted_total" + labels + "} 7\n",
           "tensorhub_worker_readers_refused_total" + labels + "} 1\n",
           "tensorhub_worker_sent_bytes_total" + labels + "} 900\n",
       }) {
    EXPECT_THAT(text, HasSubstr(sample));
  }
}

TEST(WorkerMetricsTest, TheSamplesOfAMembershipAreBounded) {
  MembershipFigures figures = Figures();
  for (size_t i = 0; i < 200; ++i) {
    const std::string name = absl::StrCat("transport-", i);
    const OperationDone failed{.kind = OperationKind::kUpdate,
                               .status = absl::UnavailableError("no source")};
    for (const Verb verb :
         {Verb::kPublish, Verb::kUnpublish, Verb::kUpdate, Verb::kStage, Verb::kReceive}) {
      figures.Count(
          verb, failed,
          {.received = {{name, Distance::kSameRack, true, 1}}, .passed_over = {{name, name}}}, 0);
    }
  }
  const std::string text = RenderMetrics({figures}, {}, {});
  size_t samples = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    samples += absl::StartsWith(line, "tensorhub_worker_") ? 1 : 0;
  }
  EXPECT_LE(samples, kMaxSamplesOfMembership);
}

TEST(WorkerMetricsTest, TransportsAreOfTheProcess) {
  const std::string text = RenderMetrics({}, {{"tcp", {1, 2, 3, 4}}}, {.resident_bytes = 5});
  for (const char* sample : {"tensorhub_transport_sent_bytes_total{transport=\"tcp\"} 1\n",
                             "tensorhub_transport_received_bytes_total{transport=\"tcp\"} 2\n",
                             "tensorhub_transport_transfers_served_total{transport=\"tcp\"} 3\n",
                             "tensorhub_transport_transfers_refused_total{transport=\"tcp\"} 4\n",
                             "process_resident_memory_bytes 5\n"}) {
    EXPECT_THAT(text, HasSubstr(sample));
  }
}

TEST(WorkerMetricsTest, EachFamilyHasOneHeadHoweverManyMemberships) {
  MembershipFigures other = Figures();
  other.name.rank = Rank(4);
  const std::string text = RenderMetrics({Figures(), other}, {}, {});
  size_t heads = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    heads += absl::StartsWith(line, "# TYPE tensorhub_worker_stall_seconds_total ") ? 1 : 0;
  }
  EXPECT_EQ(heads, 1u);
  EXPECT_THAT(text, HasSubstr("tensorhub_worker_connected{run=\"r1\",model=\"m\","
                              "group=\"rollout\",rank=\"4\"} 1\n"));
}

}  // namespace
}  // namespace th
