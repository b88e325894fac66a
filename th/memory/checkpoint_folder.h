// A model on disk as safetensors: one file, or several with model.safetensors.index.json.
//
//   TH_ASSIGN_OR_RETURN(CheckpointFolder folder, CheckpointFolder::Open("/models/qwen3-8b"));
//   for (const TensorSpec& tensor : folder.tensors()) ...
//   TH_RETURN_IF_ERROR(folder.Read(tensor.name, destination));
//
// Headers are read and checked at Open; bytes at Read, straight into their place. Immutable after
// Open; Read may be called from any thread.
#ifndef TH_MEMORY_CHECKPOINT_FOLDER_H_
#define TH_MEMORY_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "th/memory/file_descriptor.h"
#include "th/weights/safetensors.h"
#include "th/weights/safetensors_index.h"
#include "th/weights/tensor.h"

namespace th {

// The most files of one folder.
inline constexpr size_t kMaxCheckpointFiles = 4096;

class CheckpointFolder {
 public:
  // A folder with an index stands for the files that it names, which must hold exactly what it
  // says; one without, for the one *.safetensors
  // file of the folder. `path` may be such a file itself.
  // NOT_FOUND: no such folder, or nothing of the kind in it. INVALID_ARGUMENT naming file and
  // tensor: hostile or damaged headers, several files without an index, a name in two files.
  static absl::StatusOr<CheckpointFolder> Open(const std::string& path);

  // Sorted by name. Names that a file's metadata ties to another tensor are there as its aliases.
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  uint64_t bytes() const { return bytes_; }

  // The bytes of `tensor` (of its owner, if it is an alias) into `to`. NOT_FOUND: no such tensor.
  // DATA_LOSS: the file was cut off since.
  absl::Status Read(const std::string& tensor, void* to) const;

 private:
  struct Place {
    size_t file = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  absl::StatusOr<SafetensorsHeader> AddFile(const std::string& path);
  absl::Status AddTensors(const SafetensorsHeader& header, size_t file);
  void AddAliases();

  std::vector<FileDescriptor> files_;
  std::vector<TensorSpec> tensors_;
  std::map<std::string, Place> places_;
  SafetensorsMetadata metadata_;
  uint64_t bytes_ = 0;
};

}  // namespace th

#endif  // TH_MEMORY_CHECKPOINT_FOLDER_H_
