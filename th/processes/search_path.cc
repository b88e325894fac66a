#include "th/processes/search_path.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace th {
namespace {

constexpr char kDefaultPath[] = "/usr/bin:/bin";
constexpr char kAdministratorsFolders[] = "/usr/sbin:/sbin";

}  // namespace

absl::StatusOr<std::string> FindInPath(absl::string_view program, absl::string_view search_path) {
  for (absl::string_view folder : absl::StrSplit(search_path, ':', absl::SkipEmpty())) {
    const std::string path = absl::StrCat(folder, "/", program);
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return absl::NotFoundError(absl::StrCat(program, " is not installed"));
}

absl::StatusOr<std::string> FindTool(absl::string_view program) {
  const char* path = getenv("PATH");
  return FindInPath(
      program, absl::StrCat(path == nullptr ? kDefaultPath : path, ":", kAdministratorsFolders));
}

}  // namespace th
