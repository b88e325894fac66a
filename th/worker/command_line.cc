#include "th/worker/command_line.h"

#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace th {

int RunCommandLine(CLI::App* app, int argc, char** argv, const ExitStatus* exit,
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

}  // namespace th
