// How a subcommand reports: its result, what went wrong, and that a signal ended it.
#ifndef TH_COMMAND_LINE_REPORTER_H_
#define TH_COMMAND_LINE_REPORTER_H_

#include <atomic>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "th/command_line/exit_status.h"
#include "th/command_line/run_command_line.h"
#include "th/command_line/stop_signals.h"

namespace th {

// For RunCommandLine: whoever asked for --json reads a slip of the line as {"error": {"code",
// "message"}} on a line of stdout too. `argv` outlives the parse.
OnUsageError UsageErrorAsJson(int argc, char** argv);

// How a command tells its result: for people, or as one JSON object on the last line of stdout.
class Reporter {
 public:
  // --json. The reporter outlives the parse.
  void AddFlag(CLI::App* app);
  bool json() const { return json_; }

  // Prints `object` with --json, else `text`.
  void Report(const nlohmann::json& object, const std::string& text) const;
  // Says what went wrong on stderr, with --json as {"error": {"code", "message"}} on stdout too.
  ExitStatus Fail(const absl::Status& status) const { return Fail(status, ExitStatusOf(status)); }
  ExitStatus Fail(const absl::Status& status, ExitStatus exit) const;

  // The signals of a command, whose end at once is reported as CANCELLED, with kInterrupted.
  StopSignals TakeSignals() const;

 private:
  bool json_ = false;
  mutable std::atomic<bool> reported_ = false;  // by whichever thread
};

}  // namespace th

#endif  // TH_COMMAND_LINE_REPORTER_H_
