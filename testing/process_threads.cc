#include "testing/process_threads.h"

#include <dirent.h>

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace th::testing {

std::map<int, ThreadInfo> ThreadsOfThisProcess() {
  std::map<int, ThreadInfo> threads;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks)) {
    int id = 0;
    if (!absl::SimpleAtoi(entry->d_name, &id)) continue;
    std::ifstream status(absl::StrCat("/proc/self/task/", id, "/status"));
    ThreadInfo& info = threads[id];
    for (std::string line; std::getline(status, line);) {
      if (absl::StartsWith(line, "Name:\t")) info.name = line.substr(6);
      if (absl::StartsWith(line, "SigBlk:\t")) {
        (void)absl::SimpleHexAtoi(line.substr(8), &info.blocked_signals);
      }
    }
  }
  closedir(tasks);
  return threads;
}

}  // namespace th::testing
