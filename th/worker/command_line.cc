#include "th/worker/command_line.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace th {
namespace {

// An empty value is a slip of a script.
std::string RefuseEmpty(std::string& text) {
  return text.empty() ? "has an empty value: give one, or leave it out" : "";
}

// strtoull would take 010 for 8, which nobody means who counts ranks.
std::string DropLeadingZeros(std::string& text) {
  const bool decimal = std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (decimal) text.erase(0, std::min(text.find_first_not_of('0'), text.size() - 1));
  return "";
}

// What holds for every option, before its own checks.
void CheckEveryValue(CLI::App* app) {
  for (CLI::Option* option : app->get_options()) {
    const bool takes_a_value = option->get_items_expected_max() > 0;
    if (!takes_a_value) continue;
    const std::string type = option->get_type_name();
    const bool integer = type.starts_with("INT") || type.starts_with("UINT");
    if (integer) option->transform(CLI::Validator(DropLeadingZeros, ""));
    option->transform(CLI::Validator(RefuseEmpty, ""));  // the last one added looks first
  }
  for (CLI::App* command : app->get_subcommands([](const CLI::App*) { return true; })) {
    CheckEveryValue(command);
  }
}

int ParseAndRun(CLI::App* app, int argc, char** argv, const ExitStatus* exit,
                const OnUsageError& on_usage_error) {
  try {
    app->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11 prints help and version for its own "errors", and what is wrong for the others.
    if (app->exit(error) == 0) return 0;
    // It may have complained of what is missing first; what it does not know is the likelier slip.
    const std::vector<std::string> unknown = app->remaining(/*recurse=*/true);
    std::string why = error.what();
    if (!unknown.empty()) {
      const std::string names = absl::StrCat("not known here: ", absl::StrJoin(unknown, " "));
      std::cerr << names << "\n";
      absl::StrAppend(&why, "; ", names);
    }
    if (on_usage_error) on_usage_error(why);
    return static_cast<int>(ExitStatus::kUsage);
  }
  return static_cast<int>(*exit);
}

// Who reads it has gone: `th events --follow | head` has seen enough.
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
  CheckEveryValue(app);
  const int status = ParseAndRun(app, argc, argv, exit, on_usage_error);
  if (OutputIsWritten()) return status;
  std::cerr << app->get_name()
            << ": stdout cannot be written (its disk is full, or it is closed); what was to be "
               "said there is lost\n";
  return status == 0 ? static_cast<int>(ExitStatus::kLocalFiles) : status;
}

}  // namespace th
