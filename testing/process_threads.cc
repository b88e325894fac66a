#include "testing/process_threads.h"

#include <dirent.h>

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace th::testing {
namespace {

// PF_EXITING of the kernel, in the flags of proc(5)'s stat. It is set before whoever joins the
// thread is woken.
constexpr uint64_t kExiting = 0x4;

// True also for a thread that has gone.
bool IsExiting(int id) {
  std::ifstream file(absl::StrCat("/proc/self/task/", id, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return true;
  // "ID (NAME) STATE PARENT GROUP SESSION TERMINAL FOREGROUND FLAGS ...", with any NAME.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < 6; ++i) fields >> skipped;
  uint64_t flags = 0;
  return !(fields >> flags) || (flags & kExiting) != 0;
}

}  // namespace

std::map<int, ThreadInfo> ThreadsOfThisProcess() {
  std::map<int, ThreadInfo> threads;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks)) {
    int id = 0;
    if (!absl::SimpleAtoi(entry->d_name, &id) || IsExiting(id)) continue;
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
