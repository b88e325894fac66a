// Where the files are that were built beside this binary: the server, the worker, the demo's model.
//
// Bazel lays them in <binary>.runfiles; a test finds them under RUNFILES_DIR or TEST_SRCDIR;
// installed binaries lie in one folder. Thread-safe after main has begun.
#ifndef TH_PROCESSES_RUNFILES_H_
#define TH_PROCESSES_RUNFILES_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace th {

// The path of this very program.
std::string OwnPath();

// The folders to look in, best first. `environment` gives a variable's value or null.
std::vector<std::string> RunfilesRoots(const std::string& program,
                                       const std::function<const char*(const char*)>& environment);

// The first of the roots' "<repository>/<path>" that exists. NOT_FOUND naming where it was looked
// for.
absl::StatusOr<std::string> FindRunfile(absl::string_view repository, absl::string_view path);

// A program of this project, "th/server/tensorhub_server": from the runfiles, or from the folder
// that this program is in. NOT_FOUND.
absl::StatusOr<std::string> FindProgram(absl::string_view path);

}  // namespace th

#endif  // TH_PROCESSES_RUNFILES_H_
