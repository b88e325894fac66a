// The screen of a command while it runs: lines that tell the story, and one line a reader with its
// bytes, rate and source. On a terminal the readers' lines stay at the bottom and are redrawn; in a
// pipe a reader gets a plain line now and then.
//
//   ProgressScreen screen(stderr, IsTerminal(stderr) ? 100 : 0);
//   screen.ShowLine("version 1 is published");
//   screen.Show({.name = "rollout-1/0", .bytes = 10, .total = 100, .source = "trainer/0"}, now);
//   screen.Clear();                          // the readers' lines stay as they are
//
// `now` is any clock that only moves forward. Not thread-safe.
#ifndef TH_COMMAND_LINE_PROGRESS_SCREEN_H_
#define TH_COMMAND_LINE_PROGRESS_SCREEN_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace th {

struct ReaderProgress {
  std::string name;
  uint64_t bytes = 0;
  uint64_t total = 0;
  std::string source;   // "trainer/0, rollout-1/0"
  std::string outcome;  // set at the end: "done", "killed"
};

// Redrawn or said again no sooner than this.
inline constexpr absl::Duration kRedrawInterval = absl::Milliseconds(100);
inline constexpr absl::Duration kPlainInterval = absl::Seconds(1);

// The rate shown is that of the last so long, and in the end that of all.
inline constexpr absl::Duration kRateWindow = absl::Seconds(1);

// "rollout-1/0  ██████████░░░░░░░░░░   50 %  22.7 MB of 45.4 MB  15.0 MB/s  from trainer/0".
std::string RenderReader(const ReaderProgress& reader, uint64_t bytes_per_second,
                         size_t name_width);

class ProgressScreen {
 public:
  // `columns` of the terminal; 0: plain lines. `out` outlives the screen.
  ProgressScreen(FILE* out, size_t columns);

  void ShowLine(absl::string_view text);
  void Show(const ReaderProgress& reader, absl::Time now);
  // Forgets the readers; what is drawn of them stays.
  void Clear();

 private:
  struct Line {
    ReaderProgress reader;
    absl::Time started;
    absl::Time ended = absl::InfiniteFuture();
    absl::Time said = absl::InfinitePast();
    // The window before, and what came since.
    double rate = 0;
    absl::Time window_began;
    uint64_t bytes_at_window = 0;
  };
  static double RateOf(const Line& line, absl::Time now);
  std::string Render(const Line& line, absl::Time now) const;
  void EraseReaders();
  void DrawReaders(absl::Time now);

  FILE* const out_;
  const size_t columns_;
  std::map<std::string, Line> lines_;
  size_t name_width_ = 0;
  size_t drawn_ = 0;  // lines at the bottom of the terminal
  absl::Time drawn_at_ = absl::InfinitePast();
};

// Its width; 0 when `out` is no terminal.
size_t TerminalColumns(FILE* out);

}  // namespace th

#endif  // TH_COMMAND_LINE_PROGRESS_SCREEN_H_
