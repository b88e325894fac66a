#include "th/bench/transfer_bench.h"

#include <string>

#include "gtest/gtest.h"

namespace th {
namespace {

TransferMeasurement Measured() {
  TransferMeasurement measured{.bytes = 1'000'000'000,
                               .tensors = 7,
                               .readers = 2,
                               .verified = true,
                               .congestion_control = "cubic"};
  measured.rounds = {
      {.update_seconds = 0.5,
       .probe_seconds = 0.2,
       .publish_seconds = 0.0001,
       .holder_bytes_sent = 1'000'000'000,
       .peak_extra_bytes = 5,
       .packing_overhead_bytes = 70,
       .control_bytes = 900,
       .holder_cpu_seconds = 0.2,
       .readers_cpu_seconds = 0.8,
       .rss_growth_bytes = 3 << 19},
      {.update_seconds = 0.25,
       .probe_seconds = 0.2,
       .publish_seconds = 0.0003,
       .holder_bytes_sent = 1'200'000'000,
       .peak_extra_bytes = 0,
       .control_bytes = 1000,
       .holder_cpu_seconds = 0.4,
       .readers_cpu_seconds = 0.4},
      {.update_seconds = 0.2, .probe_seconds = 0.1, .holder_bytes_sent = 1'000'000'000}};
  return measured;
}

TEST(MedianTest, IsTheMiddleOrTheMeanOfTheMiddleTwo) {
  EXPECT_DOUBLE_EQ(Median({}), 0);
  EXPECT_DOUBLE_EQ(Median({3}), 3);
  EXPECT_DOUBLE_EQ(Median({9, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(Median({4, 1, 2, 9}), 3);
}

TEST(TransferFiguresTest, TakeMediansOfTimesAndTheWorstOfCosts) {
  const TransferFigures figures = FiguresOf(Measured());
  EXPECT_DOUBLE_EQ(figures.last_reader_seconds, 0.25);
  EXPECT_DOUBLE_EQ(figures.gbytes_per_s, 4);
  EXPECT_DOUBLE_EQ(figures.baseline_gbytes_per_s, 5);
  EXPECT_DOUBLE_EQ(figures.ratio, 0.8);
  EXPECT_DOUBLE_EQ(figures.holder_copies_sent, 1.2);
  EXPECT_DOUBLE_EQ(figures.publish_seconds, 0.0003);
  EXPECT_EQ(figures.peak_extra_bytes, 5u);
  EXPECT_EQ(figures.packing_overhead_bytes, 70u);
  EXPECT_EQ(figures.control_bytes, 1000u);
  EXPECT_EQ(figures.rss_growth_bytes, 3u << 19);
}

TEST(TransferFiguresTest, WithoutABaselineThereIsNoRatio) {
  TransferMeasurement measured = Measured();
  EXPECT_DOUBLE_EQ(ToJson(measured)["ratio"], 0.8);
  EXPECT_FALSE(ToJson(measured).contains("baseline_missing"));
  measured.baseline_missing = "ib_read_bw is not installed";
  EXPECT_DOUBLE_EQ(FiguresOf(measured).baseline_gbytes_per_s, 0);
  EXPECT_DOUBLE_EQ(FiguresOf(measured).ratio, 0);
  const nlohmann::json report = ToJson(measured);
  EXPECT_TRUE(report["baseline"].is_null());
  EXPECT_TRUE(report["ratio"].is_null());
  EXPECT_TRUE(report["baseline_seconds_of_rounds"].empty());
  EXPECT_EQ(report["baseline_missing"], "ib_read_bw is not installed");
  EXPECT_GT(report["gbytes_per_s"], 0);
}

TEST(TransferFiguresTest, ProcessorTimeIsOfAGigabyteThatAReaderReceived) {
  const TransferFigures figures = FiguresOf(Measured());  // two readers of 1 GB
  EXPECT_DOUBLE_EQ(figures.holder_cpu_seconds_per_gb, 0.1);
  EXPECT_DOUBLE_EQ(figures.readers_cpu_seconds_per_gb, 0.2);
}

TEST(TransferFiguresTest, BearNoRoundAtAll) {
  const TransferFigures figures = FiguresOf({.bytes = 10});
  EXPECT_DOUBLE_EQ(figures.gbytes_per_s, 0);
  EXPECT_DOUBLE_EQ(figures.ratio, 0);
  EXPECT_DOUBLE_EQ(figures.readers_cpu_seconds_per_gb, 0);
}

TEST(TransferJsonTest, HasTheDocumentedKeys) {
  const nlohmann::json json = ToJson(Measured());
  for (const char* key :
       {"gbytes_per_s", "peak_extra_bytes", "baseline", "ratio", "last_reader_seconds",
        "holder_copies_sent", "control_bytes", "verified", "publish_seconds", "rss_growth_mib",
        "cpu_seconds_per_gb", "holder_cpu_seconds_per_gb", "readers_cpu_seconds_per_gb",
        "packing_overhead_bytes"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["last_reader_seconds_of_rounds"].size(), 3u);
  EXPECT_EQ(json["baseline"], 5.0);
  EXPECT_EQ(json["rss_growth_mib"], 1.5);
  EXPECT_EQ(json["packing_overhead_bytes"], 70u);
  EXPECT_NEAR(json["cpu_seconds_per_gb"].get<double>(), 0.3, 1e-9);
}

TEST(DefaultEvictBytesTest, IsMoreThanASmallCacheAndNotAllMemory) {
  EXPECT_GE(DefaultEvictBytes(), uint64_t{64} << 20);
  EXPECT_LE(DefaultEvictBytes(), uint64_t{512} << 20);
}

}  // namespace
}  // namespace th
