// th top: versions, replicas, who fills from whom, rates and stalls, refreshed.
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "th/cli/catalog_view.h"
#include "th/cli/live/fill_rates.h"
#include "th/cli/live/live_commands.h"
#include "th/cli/live/terminal_page.h"
#include "th/cli/live/top_page.h"
#include "th/client_flags/connection_flags.h"
#include "th/command_line/reporter.h"
#include "th/command_line/stop_signals.h"

namespace th {
namespace {

// A server that is away is asked again at the next refresh.
constexpr absl::Duration kListTimeout = absl::Seconds(2);
constexpr DurationRange kIntervals = {absl::Milliseconds(100), absl::Hours(1)};

struct TopFlags {
  ConnectionFlags connection{.run = "", .model = ""};
  Reporter reporter;
  absl::Duration interval = absl::Seconds(1);
  bool once = false;
};

// Prints one JSON object a line; false when the output is closed.
bool PrintJson(const Catalog& catalog, const FillRates& rates) {
  const std::string line = TopToJson(catalog, rates).dump() + "\n";
  return std::fwrite(line.data(), 1, line.size(), stdout) == line.size() &&
         std::fflush(stdout) == 0;
}

void ShowOnce(const Catalog& catalog, const TopFlags& flags) {
  FillRates rates;
  rates.Observe(catalog, absl::Now());
  if (flags.reporter.json()) {
    PrintJson(catalog, rates);
  } else {
    for (const std::string& line : TopLines(catalog, rates)) std::puts(line.c_str());
  }
}

// The pages, one a refresh. While the server does not answer, the last page stays below a line that
// says since when.
class LivePage {
 public:
  // On the terminal, or as JSON lines on stdout.
  explicit LivePage(bool json) {
    if (!json) terminal_.emplace(stdout);
  }
  // Each returns false when the output is closed.
  bool ShowAnswer(const Catalog& catalog) {
    LOG_IF(INFO, !terminal_ && away_since_) << "the server answers again";
    away_since_.reset();
    rates_.Observe(catalog, absl::Now());
    if (!terminal_) return PrintJson(catalog, rates_);
    last_ = TopLines(catalog, rates_);
    return terminal_->Show(FitPage(last_, terminal_->size()));
  }
  bool ShowAway(absl::Time asked, absl::string_view why) {
    LOG_IF(WARNING, !terminal_ && !away_since_) << "the server does not answer: " << why;
    if (!away_since_) away_since_ = asked;
    if (!terminal_) return true;
    const auto lines = AwayLines(last_, *away_since_, absl::Now(), why);
    return terminal_->Show(FitPage(lines, terminal_->size()));
  }

 private:
  std::optional<TerminalPage> terminal_;
  FillRates rates_;
  std::vector<std::string> last_;
  std::optional<absl::Time> away_since_;
};

// Refreshes until a signal, or until the output is closed.
void Refresh(Controller& controller, const Catalog& first, const TopFlags& flags,
             StopSignals& stop) {
  const StopSignals::Unbroken whole(&stop);  // the terminal is restored first
  LivePage page(flags.reporter.json());
  bool output_open = page.ShowAnswer(first);
  while (output_open && !stop.WaitFor(flags.interval)) {
    const absl::Time asked = absl::Now();
    const absl::StatusOr<Catalog> catalog = controller.List(kListTimeout);
    output_open =
        catalog.ok() ? page.ShowAnswer(*catalog) : page.ShowAway(asked, catalog.status().message());
  }
}

ExitStatus RunTop(const TopFlags& flags) {
  StopSignals stop = flags.reporter.TakeSignals();
  auto controller = flags.connection.Connect();
  if (!controller.ok()) return flags.reporter.Fail(controller.status());
  // A name that is mistaken would show an empty page for ever.
  const absl::StatusOr<Catalog> catalog = (*controller)->List();
  if (!catalog.ok()) return flags.reporter.Fail(catalog.status());
  const absl::Status named = CheckNamed(*catalog, flags.connection.key());
  if (!named.ok()) return flags.reporter.Fail(named);
  if (flags.once) {
    ShowOnce(*catalog, flags);
    return ExitStatus::kOk;
  }
  stop.HoldOff();
  Refresh(**controller, *catalog, flags, stop);
  return ExitStatus::kOk;
}

}  // namespace

void AddTopCommand(CLI::App* app, ExitStatus* exit) {
  auto flags = std::make_shared<TopFlags>();
  CLI::App* top = app->add_subcommand(
      "top", "live: who holds and fills what, from whom, how fast, and what stalls cost so far");
  AddConnectionFlags(top, &flags->connection);
  AddDurationFlag(top, "--interval", &flags->interval, kIntervals,
                  "the time between two refreshes, like 500ms");
  top->add_flag("--once", flags->once, "print one page and exit; without rates, which need two");
  flags->reporter.AddFlag(top);
  top->callback([flags, exit] { *exit = RunTop(*flags); });
}

}  // namespace th
