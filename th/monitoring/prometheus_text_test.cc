#include "th/monitoring/prometheus_text.h"

#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/protocol/seconds_histogram.h"

namespace th {
namespace {

using ::testing::HasSubstr;

TEST(PrometheusLabelsTest, AnyTextIsAValue) {
  const PrometheusLabels run = PrometheusLabels().With("run", "a\"b\\c\nd");
  EXPECT_EQ(run.text(), R"(run="a\"b\\c\nd")");
  EXPECT_EQ(run.With("model", "m").text(), R"(run="a\"b\\c\nd",model="m")");
  EXPECT_EQ(PrometheusLabels().text(), "");
  EXPECT_EQ(PrometheusLabels().With("cut", "caf\xC3").text(), "cut=\"caf\xEF\xBF\xBD\"");
  EXPECT_EQ(PrometheusLabels().With("whole", "caf\xC3\xA9").text(), "whole=\"caf\xC3\xA9\"");
}

TEST(PrometheusTextTest, AFamilyIsFollowedByItsSamples) {
  PrometheusText out;
  out.Single("one", "gauge", "A number.", 7);
  out.Family("many", "counter", "Others.");
  out.Sample("many", PrometheusLabels().With("of", "x"), uint64_t{1} << 63);
  EXPECT_EQ(out.Take(),
            "# HELP one A number.\n# TYPE one gauge\none 7\n"
            "# HELP many Others.\n# TYPE many counter\nmany{of=\"x\"} 9223372036854775808\n");
}

TEST(PrometheusTextTest, ADoubleHasAllItsDigits) {
  PrometheusText out;
  out.Sample("seconds", {}, 12345678.5);
  out.Sample("small", {}, 1e-7);
  EXPECT_EQ(out.Take(), "seconds 12345678.5\nsmall 0.0000001\n");
}

TEST(PrometheusTextTest, BucketsOfAHistogramAreCumulative) {
  SecondsHistogram histogram;
  histogram.Record(absl::Milliseconds(20));
  histogram.Record(absl::Seconds(2));
  histogram.Record(absl::Hours(1));
  PrometheusText out;
  out.HistogramSamples("took", PrometheusLabels().With("of", "x"), histogram);
  const std::string text = out.Take();
  EXPECT_THAT(text, HasSubstr("took_bucket{of=\"x\",le=\"0.01\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("took_bucket{of=\"x\",le=\"0.05\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("took_bucket{of=\"x\",le=\"300\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("took_bucket{of=\"x\",le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("took_sum{of=\"x\"} 3602.02\n"));
  EXPECT_THAT(text, HasSubstr("took_count{of=\"x\"} 3\n"));
}

TEST(PrometheusTextTest, AProcessHasItsFigures) {
  PrometheusText out;
  WriteProcessFigures(out, {.cpu = absl::Seconds(1.5), .resident_bytes = 4096});
  const std::string text = out.Take();
  EXPECT_THAT(text, HasSubstr("\nprocess_cpu_seconds_total 1.5\n"));
  EXPECT_THAT(text, HasSubstr("\nprocess_resident_memory_bytes 4096\n"));
}

}  // namespace
}  // namespace th
