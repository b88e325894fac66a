#include "th/cli/live/terminal_page.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace th {
namespace {

constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";  // the alternate screen, no cursor
constexpr char kLeave[] = "\x1b[?25h\x1b[?1049l";
constexpr char kHome[] = "\x1b[H";
constexpr char kEraseLine[] = "\x1b[K";
constexpr char kErasePage[] = "\x1b[J";

bool Write(FILE* out, const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0;
}

}  // namespace

TerminalPage::TerminalPage(FILE* out) : out_(out), terminal_(isatty(fileno(out)) != 0) {
  if (terminal_) Write(out_, kEnter);
}

TerminalPage::~TerminalPage() {
  if (terminal_) Write(out_, kLeave);
}

PageSize TerminalPage::size() const {
  winsize window{};
  if (!terminal_ || ioctl(fileno(out_), TIOCGWINSZ, &window) != 0) return {};
  return {.columns = window.ws_col, .rows = window.ws_row};
}

bool TerminalPage::Show(const std::vector<std::string>& lines) {
  if (!terminal_) {
    const char* gap = shown_ ? "\n" : "";
    shown_ = true;
    return Write(out_, absl::StrCat(gap, absl::StrJoin(lines, "\n"), "\n"));
  }
  // Without a line break at the end, which would scroll a full page.
  return Write(out_, absl::StrCat(kHome, absl::StrJoin(lines, absl::StrCat(kEraseLine, "\r\n")),
                                  kEraseLine, kErasePage));
}

}  // namespace th
