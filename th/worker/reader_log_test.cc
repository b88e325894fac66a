#include "th/worker/reader_log.h"

#include "gtest/gtest.h"

namespace th {
namespace {

ReaderReport AReport(ReaderReport::What what) {
  return {.what = what,
          .event = EventId::Of(Epoch(7), 12),
          .reader = WorkerId(9),
          .version = VersionSequence::Of(Epoch(7), 2),
          .bytes_sent = 4'540'000,
          .refusal = absl::UnavailableError("it left")};
}

TEST(DescribeReaderTest, NamesSourceReaderVersionAndEvent) {
  EXPECT_EQ(DescribeReader("trainer/0", AReport(ReaderReport::What::kAdmitted)),
            "trainer/0: reader 9 of #7.2 admitted event=7-12");
  EXPECT_EQ(DescribeReader("trainer/0", AReport(ReaderReport::What::kRefused)),
            "trainer/0: reader 9 of #7.2 refused: it left event=7-12");
  EXPECT_EQ(DescribeReader("trainer/0", AReport(ReaderReport::What::kReleased)),
            "trainer/0: reader 9 of #7.2 let go after 4.54 MB event=7-12");
}

TEST(DescribeReaderTest, SaysWhyAReaderWasCut) {
  ReaderReport cut = AReport(ReaderReport::What::kReleased);
  cut.why_ended = "the reader took no bytes for 1.5s";
  EXPECT_EQ(DescribeReader("trainer/0", cut),
            "trainer/0: reader 9 of #7.2 let go after 4.54 MB: the reader took no bytes for 1.5s "
            "event=7-12");
}

}  // namespace
}  // namespace th
