// th top: versions, replicas, who fills from whom, rates and stalls, refreshed.
#include <cstdio>
#include <memory>
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

// One JSON object a line; false when nobody reads any more.
bool PrintJson(const Catalog& catalog, const FillRates& rates) {
  const std::string line = TopToJson(catalog, rates).dump() + "\n";
  return std::fwrite(line.data(), 1, line.size(), stdout) == line.size() &&
         std::fflush(stdout) == 0;
}

std::vector<std::string> AwayLines(const absl::Status& status) {
  return {absl::StrCat("the server does not answer: ", std::string(status.message()))};
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

// Until a signal, or until nobody reads.
void Refresh(Controller& controller, const TopFlags& flags, StopSignals& stop) {
  const StopSignals::Unbroken whole(&stop);  // the terminal is restored first
  const std::unique_ptr<TerminalPage> page =
      flags.reporter.json() ? nullptr : std::make_unique<TerminalPage>(stdout);
  FillRates rates;
  do {
    const absl::StatusOr<Catalog> catalog = controller.List(kListTimeout);
    bool read = true;
    if (catalog.ok()) {
      rates.Observe(*catalog, absl::Now());
      read = page == nullptr ? PrintJson(*catalog, rates)
                             : page->Show(FitPage(TopLines(*catalog, rates), page->size()));
    } else if (page != nullptr) {
      read = page->Show(FitPage(AwayLines(catalog.status()), page->size()));
    } else {
      LOG(WARNING) << AwayLines(catalog.status()).front();
    }
    if (!read) return;
  } while (!stop.WaitFor(flags.interval));
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
  Refresh(**controller, flags, stop);
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
  top->add_flag("--once", flags->once, "one page, without rates, and the end");
  flags->reporter.AddFlag(top);
  top->callback([flags, exit] { *exit = RunTop(*flags); });
}

}  // namespace th
