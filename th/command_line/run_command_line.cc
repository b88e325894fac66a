#include "th/command_line/run_command_line.h"

#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "th/command_line/flag_values.h"
#include "th/command_line/similar_name.h"

namespace th {
namespace {

// The innermost command that was called.
const CLI::App& CalledApp(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

// "--rate" of "--rate=5".
std::string FlagOf(const std::string& word) { return word.substr(0, word.find('=')); }

// "; did you mean list?" of a command or a flag; empty: nothing is like `word`.
std::string DidYouMean(const CLI::App& app, const std::string& word) {
  const CLI::App& command = CalledApp(app);
  std::vector<std::string> names;
  for (const CLI::App* each : command.get_subcommands(/*filter=*/{})) {
    names.push_back(each->get_name());
  }
  for (const CLI::Option* each : command.get_options()) {
    for (const std::string& name : each->get_lnames()) names.push_back(absl::StrCat("--", name));
  }
  const std::string similar = SimilarName(FlagOf(word), names);
  return similar.empty() ? "" : absl::StrCat("; did you mean ", similar, "?");
}

// The command as it was called: "th bench fanout".
std::string CalledCommand(const CLI::App& app) {
  std::string called = app.get_name();
  for (const CLI::App* command = &app; !command->get_subcommands().empty();) {
    command = command->get_subcommands().front();
    absl::StrAppend(&called, " ", command->get_name());
  }
  return called;
}

// True when the command that was called takes such a flag, which then stood before its name.
bool IsFlagOfCommand(const CLI::App& app, const std::string& word) {
  const CLI::App& command = CalledApp(app);
  return &command != &app && command.get_option_no_throw(FlagOf(word)) != nullptr;
}

std::string WhatIsUnknown(const CLI::App& app) {
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  const std::string called = CalledCommand(app);
  if (IsFlagOfCommand(app, unknown.front())) {
    return absl::StrCat(unknown.front(),
                        " stands before the command; it belongs behind it: ", called, " ",
                        unknown.front(), " ...");
  }
  return absl::StrCat(called, " takes no ", absl::StrJoin(unknown, " "), "; ", called,
                      " --help lists what it takes", DidYouMean(app, unknown.front()));
}

int ParseAndRun(CLI::App* app, int argc, char** argv, const ExitStatus* exit,
                const OnUsageError& on_usage_error) {
  try {
    app->parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    // The library names them from the last to the first.
    const std::string why = WhatIsUnknown(*app);
    std::cerr << why << "\n";
    if (on_usage_error) on_usage_error(why);
    return static_cast<int>(ExitStatus::kUsage);
  } catch (const CLI::ParseError& error) {
    // CLI11 prints help and version for its own "errors", and what is wrong for the others.
    if (app->exit(error) == 0) return 0;
    // It may have complained of what is missing first; what it does not know is the likelier slip.
    const std::vector<std::string> unknown = app->remaining(/*recurse=*/true);
    std::string why = error.what();
    if (!unknown.empty()) {
      const std::string names = absl::StrCat("not known here: ", absl::StrJoin(unknown, " "),
                                             DidYouMean(*app, unknown.front()));
      std::cerr << names << "\n";
      absl::StrAppend(&why, "; ", names);
    }
    if (on_usage_error) on_usage_error(why);
    return static_cast<int>(ExitStatus::kUsage);
  }
  return static_cast<int>(*exit);
}

// True when the reader of the output has gone: `th events --follow | head` has seen enough.
bool NobodyReadsOutput() {
  pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&output, 1, 0) > 0 && (output.revents & POLLERR) != 0;
}

bool OutputIsWritten() {
  std::cout.flush();
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  return written || NobodyReadsOutput();
}

}  // namespace

int RunCommandLine(CLI::App* app, int argc, char** argv, const ExitStatus* exit,
                   const OnUsageError& on_usage_error) {
  CheckEveryValue(*app);
  const int status = ParseAndRun(app, argc, argv, exit, on_usage_error);
  if (OutputIsWritten()) return status;
  std::cerr << app->get_name()
            << ": stdout cannot be written (its disk is full, or it is closed); what was to be "
               "said there is lost\n";
  return status == 0 ? static_cast<int>(ExitStatus::kLocalFiles) : status;
}

}  // namespace th
