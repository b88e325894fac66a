#include "th/cli/live/terminal_page.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A terminal of 40 x 10 whose far end the test reads.
class PseudoTerminal {
 public:
  PseudoTerminal() : far_(posix_openpt(O_RDWR | O_NOCTTY)) {
    grantpt(far_);
    unlockpt(far_);
    near_ = fdopen(open(ptsname(far_), O_RDWR | O_NOCTTY), "w");
    const winsize window{.ws_row = 10, .ws_col = 40, .ws_xpixel = 0, .ws_ypixel = 0};
    ioctl(far_, TIOCSWINSZ, &window);
  }
  ~PseudoTerminal() {
    fclose(near_);
    close(far_);
  }
  FILE* out() { return near_; }
  // All that was written by now.
  std::string Take() {
    std::string text;
    std::array<char, 4096> buffer;
    for (pollfd waited{.fd = far_, .events = POLLIN, .revents = 0}; poll(&waited, 1, 0) == 1;) {
      const ssize_t count = read(far_, buffer.data(), buffer.size());
      if (count <= 0) break;
      text.append(buffer.data(), static_cast<size_t>(count));
    }
    return text;
  }

 private:
  const int far_;
  FILE* near_ = nullptr;
};

TEST(TerminalPageTest, ATerminalIsLeftAsItWas) {
  PseudoTerminal terminal;
  ASSERT_NE(terminal.out(), nullptr);
  {
    TerminalPage page(terminal.out());
    EXPECT_EQ(page.size().columns, 40u);
    EXPECT_EQ(page.size().rows, 10u);
    EXPECT_TRUE(page.Show({"one", "two"}));
    const std::string shown = terminal.Take();
    EXPECT_THAT(shown, StartsWith("\x1b[?1049h"));
    EXPECT_THAT(shown, HasSubstr("one"));
    EXPECT_THAT(shown, EndsWith("two\x1b[K\x1b[J"));  // no line break: a full page must not scroll
  }
  EXPECT_EQ(terminal.Take(), "\x1b[?25h\x1b[?1049l");
}

TEST(TerminalPageTest, APipeGetsPagesWithoutControlCodes) {
  FILE* const file = tmpfile();
  ASSERT_NE(file, nullptr);
  {
    TerminalPage page(file);
    EXPECT_EQ(page.size().columns, 0u);
    EXPECT_TRUE(page.Show({"one"}));
    EXPECT_TRUE(page.Show({"two"}));
  }
  rewind(file);
  std::array<char, 100> text;
  const size_t count = fread(text.data(), 1, text.size(), file);
  fclose(file);
  EXPECT_EQ(std::string(text.data(), count), "one\n\ntwo\n");
}

}  // namespace
}  // namespace th
