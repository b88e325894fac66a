#include "th/command_line/progress_screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "th/command_line/quantity.h"
#include "th/command_line/text_table.h"

namespace th {
namespace {

constexpr size_t kBarCells = 20;
constexpr size_t kColumnsOfUnknownTerminal = 100;
constexpr char kEraseLineAndUp[] = "\x1b[1A\x1b[2K";

std::string Bar(double fraction) {
  const size_t full = static_cast<size_t>(fraction * kBarCells);
  std::string bar;
  for (size_t i = 0; i < kBarCells; ++i) absl::StrAppend(&bar, i < full ? "█" : "░");
  return bar;
}

double BytesPerSecond(uint64_t bytes, absl::Duration time) {
  const double seconds = absl::ToDoubleSeconds(time);
  return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
}

double Fraction(const ReaderProgress& reader) {
  if (reader.total == 0) return reader.outcome.empty() ? 0 : 1;
  return std::min(1.0, static_cast<double>(reader.bytes) / static_cast<double>(reader.total));
}

}  // namespace

std::string RenderReader(const ReaderProgress& reader, uint64_t bytes_per_second,
                         size_t name_width) {
  const std::string padding(name_width - std::min(name_width, DisplayWidth(reader.name)), ' ');
  std::string line =
      absl::StrFormat("%s%s  %s %3.0f %%  %s of %s", reader.name, padding, Bar(Fraction(reader)),
                      Fraction(reader) * 100, FormatBytes(reader.bytes), FormatBytes(reader.total));
  if (bytes_per_second > 0) absl::StrAppend(&line, "  ", FormatRate(bytes_per_second));
  if (!reader.source.empty()) absl::StrAppend(&line, "  from ", reader.source);
  if (!reader.outcome.empty()) absl::StrAppend(&line, "  ", reader.outcome);
  return line;
}

ProgressScreen::ProgressScreen(FILE* out, size_t columns) : out_(out), columns_(columns) {}

void ProgressScreen::ShowLine(absl::string_view text) {
  EraseReaders();
  absl::FPrintF(out_, "%s\n", text);
  if (columns_ > 0) DrawReaders(drawn_at_);
  fflush(out_);
}

void ProgressScreen::Show(const ReaderProgress& reader, absl::Time now) {
  auto [found, added] = lines_.try_emplace(reader.name);
  Line& line = found->second;
  const bool ends = !reader.outcome.empty() && line.reader.outcome.empty();
  if (added || reader.bytes < line.reader.bytes) {
    line = {.started = now, .window_began = now, .bytes_at_window = reader.bytes};
  }
  if (ends) line.ended = now;
  line.reader = reader;
  if (now - line.window_began >= kRateWindow) {
    line.rate = RateOf(line, now);
    line.window_began = now;
    line.bytes_at_window = reader.bytes;
  }
  name_width_ = std::max(name_width_, DisplayWidth(reader.name));
  if (columns_ > 0) {
    if (!ends && now - drawn_at_ < kRedrawInterval) return;
    EraseReaders();
    DrawReaders(now);
  } else {
    if (!ends && now - line.said < kPlainInterval) return;
    line.said = now;
    absl::FPrintF(out_, "  %s\n", Render(line, now));
  }
  fflush(out_);
}

void ProgressScreen::Clear() {
  if (columns_ > 0 && !lines_.empty()) {
    EraseReaders();
    DrawReaders(drawn_at_);
    fflush(out_);
  }
  lines_.clear();
  drawn_ = 0;
}

double ProgressScreen::RateOf(const Line& line, absl::Time now) {
  return BytesPerSecond(line.reader.bytes - line.bytes_at_window, now - line.window_began);
}

std::string ProgressScreen::Render(const Line& line, absl::Time now) const {
  double rate = line.rate;
  if (line.ended != absl::InfiniteFuture()) {
    rate = BytesPerSecond(line.reader.bytes, line.ended - line.started);
  } else if (rate == 0) {  // its first window is not over
    rate = RateOf(line, now);
  }
  return RenderReader(line.reader, static_cast<uint64_t>(rate), name_width_);
}

void ProgressScreen::EraseReaders() {
  for (; drawn_ > 0; --drawn_) absl::FPrintF(out_, "%s", kEraseLineAndUp);
}

void ProgressScreen::DrawReaders(absl::Time now) {
  drawn_at_ = now;
  for (const auto& [name, line] : lines_) {
    // A line that wraps would break the erasing.
    absl::FPrintF(out_, "%s\n", FitWidth(absl::StrCat("  ", Render(line, now)), columns_ - 1));
    ++drawn_;
  }
}

size_t TerminalColumns(FILE* out) {
  const int fd = fileno(out);
  if (isatty(fd) == 0) return 0;
  winsize size = {};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kColumnsOfUnknownTerminal;
  return size.ws_col;
}

}  // namespace th
