#include "th/processes/scratch_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace th {

namespace fs = std::filesystem;

absl::StatusOr<ScratchFolder> ScratchFolder::Make(const std::string& prefix,
                                                  const std::string& keep) {
  std::error_code error;
  if (!keep.empty()) {
    fs::create_directories(keep, error);
    if (error)
      return absl::UnavailableError(absl::StrCat("cannot make ", keep, ": ", error.message()));
    return ScratchFolder(keep, /*kept=*/true);
  }
  std::string path = (fs::temp_directory_path(error) / (prefix + "-XXXXXX")).string();
  if (error || mkdtemp(path.data()) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot make ", path, ": ", error ? error.message() : strerror(errno)));
  }
  return ScratchFolder(std::move(path), /*kept=*/false);
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!kept_) fs::remove_all(path_, ignored);
}

}  // namespace th
