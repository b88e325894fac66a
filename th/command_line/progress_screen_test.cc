#include "th/command_line/progress_screen.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Time kStart = absl::UnixEpoch();

// A stream whose text can be read back.
class Paper {
 public:
  Paper() : stream_(open_memstream(&text_, &bytes_)) {}
  ~Paper() {
    fclose(stream_);
    free(text_);
  }
  FILE* stream() { return stream_; }
  std::string Take() {
    fflush(stream_);
    const std::string all(text_, bytes_);
    const std::string news = all.substr(taken_);
    taken_ = all.size();
    return news;
  }

 private:
  char* text_ = nullptr;
  size_t bytes_ = 0;
  size_t taken_ = 0;
  FILE* stream_;
};

ReaderProgress At(uint64_t bytes, std::string outcome = "") {
  return {.name = "r/0", .bytes = bytes, .total = 1000, .source = "t/0", .outcome = outcome};
}

TEST(RenderReaderTest, ShowsBarBytesRateSourceAndOutcome) {
  EXPECT_EQ(RenderReader(At(500), 250, 5),
            "r/0    ██████████░░░░░░░░░░  50 %  500 B of 1.00 kB  250 B/s  from t/0");
  EXPECT_THAT(RenderReader(At(1000, "done"), 0, 3),
              EndsWith("100 %  1.00 kB of 1.00 kB  from t/0  done"));
}

TEST(RenderReaderTest, BearsATotalOfNothingAndMoreThanAll) {
  EXPECT_THAT(RenderReader({.name = "r"}, 0, 0), HasSubstr("  0 %"));
  EXPECT_THAT(RenderReader({.name = "r", .outcome = "done"}, 0, 0), HasSubstr("100 %"));
  EXPECT_THAT(RenderReader({.name = "r", .bytes = 7, .total = 5}, 0, 0), HasSubstr("100 %"));
}

TEST(ProgressScreenTest, SaysAReaderInAPipeOnceASecondAndAtItsEnd) {
  Paper paper;
  ProgressScreen screen(paper.stream(), 0);
  screen.Show(At(100), kStart);
  EXPECT_THAT(paper.Take(), HasSubstr("100 B of"));
  screen.Show(At(200), kStart + absl::Milliseconds(900));
  EXPECT_EQ(paper.Take(), "");
  screen.Show(At(300), kStart + absl::Milliseconds(1000));
  EXPECT_THAT(paper.Take(), HasSubstr("300 B of"));
  screen.Show(At(1000, "done"), kStart + absl::Milliseconds(1100));
  EXPECT_THAT(paper.Take(), HasSubstr("done"));
  screen.Show(At(1000, "done"), kStart + absl::Milliseconds(1200));
  EXPECT_EQ(paper.Take(), "");
}

TEST(ProgressScreenTest, WritesNoControlCharactersInAPipe) {
  Paper paper;
  ProgressScreen screen(paper.stream(), 0);
  screen.Show(At(100), kStart);
  screen.ShowLine("a line");
  screen.Clear();
  EXPECT_THAT(paper.Take(), Not(HasSubstr("\x1b")));
}

TEST(ProgressScreenTest, RedrawsReadersInPlaceOnATerminal) {
  Paper paper;
  ProgressScreen screen(paper.stream(), 100);
  screen.Show(At(100), kStart);
  EXPECT_THAT(paper.Take(), Not(HasSubstr("\x1b")));
  screen.Show(At(200), kStart + absl::Milliseconds(50));
  EXPECT_EQ(paper.Take(), "");
  screen.Show(At(300), kStart + absl::Milliseconds(100));
  const std::string redrawn = paper.Take();
  EXPECT_EQ(redrawn.find("\x1b[1A\x1b[2K"), 0u);
  EXPECT_THAT(redrawn, HasSubstr("300 B of"));
}

TEST(ProgressScreenTest, KeepsTheStoryAboveTheReaders) {
  Paper paper;
  ProgressScreen screen(paper.stream(), 100);
  screen.Show(At(100), kStart);
  paper.Take();
  screen.ShowLine("version 2 is published");
  const std::string text = paper.Take();
  EXPECT_LT(text.find("version 2"), text.find("r/0"));
  EXPECT_EQ(text.find("\x1b[1A\x1b[2K"), 0u);
}

TEST(ProgressScreenTest, CutsLinesThatWouldWrap) {
  Paper paper;
  ProgressScreen screen(paper.stream(), 30);
  screen.Show(At(100), kStart);
  EXPECT_THAT(paper.Take(), EndsWith("…\n"));
}

TEST(ProgressScreenTest, LeavesWhatWasDrawnAfterClear) {
  Paper paper;
  ProgressScreen screen(paper.stream(), 100);
  screen.Show(At(1000, "done"), kStart);
  screen.Clear();
  paper.Take();
  screen.ShowLine("next");
  EXPECT_EQ(paper.Take(), "next\n");
}

TEST(ProgressScreenTest, ShowsTheRateOfTheLastSecondUntilTheEnd) {
  Paper paper;
  ProgressScreen screen(paper.stream(), 0);
  screen.Show(At(0), kStart);
  screen.Show(At(800), kStart + absl::Seconds(1));
  EXPECT_THAT(paper.Take(), HasSubstr("800 B/s"));
  screen.Show(At(900), kStart + absl::Seconds(2));
  EXPECT_THAT(paper.Take(), HasSubstr("  100 B/s"));
  screen.Show(At(1000, "done"), kStart + absl::Seconds(4));
  EXPECT_THAT(paper.Take(), HasSubstr("250 B/s"));
}

TEST(ProgressScreenTest, MeasuresTheRateFromTheFirstByteToTheEnd) {
  Paper paper;
  ProgressScreen screen(paper.stream(), 0);
  screen.Show(At(0), kStart);
  screen.Show(At(1000, "done"), kStart + absl::Seconds(2));
  EXPECT_THAT(paper.Take(), HasSubstr("500 B/s"));
}

}  // namespace
}  // namespace th
