// What the subcommands share: how they are registered, and how they report.
//
// A subcommand is a file with one function that adds it to the application; its callback leaves how
// it ended in `*exit`.
#ifndef TH_CLI_COMMAND_H_
#define TH_CLI_COMMAND_H_

#include <atomic>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "th/worker/exit_status.h"
#include "th/worker/stop_signals.h"

namespace th {

void AddListCommand(CLI::App* app, ExitStatus* exit);
void AddDescribeCommand(CLI::App* app, ExitStatus* exit);
void AddPullCommand(CLI::App* app, ExitStatus* exit);
void AddAttachCommand(CLI::App* app, ExitStatus* exit);
void AddVerifyCommand(CLI::App* app, ExitStatus* exit);
void AddRollBackCommand(CLI::App* app, ExitStatus* exit);
void AddRetentionCommands(CLI::App* app, ExitStatus* exit);  // retain, pin, release
void AddDoctorCommand(CLI::App* app, ExitStatus* exit);
void AddBenchCommand(CLI::App* app, ExitStatus* exit);
void AddBenchRegistryCommand(CLI::App* bench, ExitStatus* exit);  // below `th bench`
void AddBenchServerCommand(CLI::App* bench, ExitStatus* exit);    // likewise
void AddBenchFanoutCommand(CLI::App* bench, ExitStatus* exit);    // likewise
void AddBenchScenarioCommand(CLI::App* bench, ExitStatus* exit);  // likewise
void AddBenchModelCommand(CLI::App* bench, ExitStatus* exit);     // likewise
void AddSimulateCommand(CLI::App* app, ExitStatus* exit);
void AddDemoCommand(CLI::App* app, ExitStatus* exit);
void AddControlledRankCommand(CLI::App* app,
                              ExitStatus* exit);  // hidden: a process of demo and bench

// How a user names a version (ParseVersionSelector).
inline constexpr char kVersionHelp[] = "a label, latest, latest-K (K before it) or #E.N";

// Prints {"error": {"code", "message"}} on a line of stdout.
void PrintErrorObject(const absl::Status& status);

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

#endif  // TH_CLI_COMMAND_H_
