// A folder for the files of one run, gone afterwards.
#ifndef TH_PROCESSES_SCRATCH_FOLDER_H_
#define TH_PROCESSES_SCRATCH_FOLDER_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace th {

class ScratchFolder {
 public:
  // A new one in the system's temporary folder whose name begins with `prefix`; or `keep`, created
  // if need be and kept. UNAVAILABLE naming the folder.
  static absl::StatusOr<ScratchFolder> Make(const std::string& prefix, const std::string& keep);
  ~ScratchFolder();
  ScratchFolder(ScratchFolder&& other) noexcept
      : path_(std::move(other.path_)), kept_(std::exchange(other.kept_, true)) {}
  ScratchFolder& operator=(ScratchFolder&&) = delete;

  const std::string& path() const { return path_; }
  void Keep() { kept_ = true; }

 private:
  ScratchFolder(std::string path, bool kept) : path_(std::move(path)), kept_(kept) {}
  std::string path_;
  bool kept_;
};

}  // namespace th

#endif  // TH_PROCESSES_SCRATCH_FOLDER_H_
