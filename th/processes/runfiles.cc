#include "th/processes/runfiles.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace th {
namespace {

namespace fs = std::filesystem;

constexpr char kOwnRepository[] = "tensorhub";

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

}  // namespace

std::string OwnPath() {
  std::error_code error;
  const fs::path path = fs::read_symlink("/proc/self/exe", error);
  return error ? "" : path.string();
}

std::vector<std::string> RunfilesRoots(const std::string& program,
                                       const std::function<const char*(const char*)>& environment) {
  std::vector<std::string> roots;
  for (const char* variable : {"RUNFILES_DIR", "TEST_SRCDIR"}) {
    const char* value = environment(variable);
    if (value != nullptr && *value != '\0') roots.push_back(value);
  }
  roots.push_back(absl::StrCat(program, ".runfiles"));
  return roots;
}

absl::StatusOr<std::string> FindRunfile(absl::string_view repository, absl::string_view path) {
  std::vector<std::string> tried;
  for (const std::string& root :
       RunfilesRoots(OwnPath(), [](const char* v) { return getenv(v); })) {
    tried.push_back(absl::StrCat(root, "/", repository, "/", path));
    if (Exists(tried.back())) return tried.back();
  }
  return absl::NotFoundError(
      absl::StrCat("there is no ", path, "; looked at ", absl::StrJoin(tried, ", ")));
}

absl::StatusOr<std::string> FindProgram(absl::string_view path) {
  absl::StatusOr<std::string> found = FindRunfile(kOwnRepository, path);
  if (found.ok()) return found;
  const std::string beside =
      (fs::path(OwnPath()).parent_path() / fs::path(std::string(path)).filename()).string();
  if (Exists(beside)) return beside;
  return absl::NotFoundError(absl::StrCat(found.status().message(), ", ", beside));
}

}  // namespace th
