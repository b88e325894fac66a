// Pages on a terminal, each over the one before; in a pipe, one after the other.
//
//   TerminalPage page(stdout);               // a terminal: the alternate screen, without a cursor
//   page.Show(FitPage(lines, page.size()));
//                                            // destroyed: the terminal is as it was
//
// Not thread-safe. A process that is killed leaves the terminal as it is: hold off signals first.
#ifndef TH_CLI_LIVE_TERMINAL_PAGE_H_
#define TH_CLI_LIVE_TERMINAL_PAGE_H_

#include <cstdio>
#include <string>
#include <vector>

#include "th/cli/live/top_page.h"

namespace th {

class TerminalPage {
 public:
  // `out` outlives the page.
  explicit TerminalPage(FILE* out);
  ~TerminalPage();
  TerminalPage(const TerminalPage&) = delete;
  TerminalPage& operator=(const TerminalPage&) = delete;

  // The size of the terminal now; zeros in a pipe.
  PageSize size() const;
  // False: nobody reads any more.
  bool Show(const std::vector<std::string>& lines);

 private:
  FILE* const out_;
  const bool terminal_;
  bool shown_ = false;
};

}  // namespace th

#endif  // TH_CLI_LIVE_TERMINAL_PAGE_H_
