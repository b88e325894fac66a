// Writes a model as a safetensors folder: whole, or not at all.
//
//   TH_RETURN_IF_ERROR(WriteCheckpoint("/models/pulled", tensors, {}));
//
// The folder is written under another name beside its own, fsynced and renamed. On any error what
// was written is removed and nothing else is touched.
#ifndef TH_MEMORY_CHECKPOINT_WRITER_H_
#define TH_MEMORY_CHECKPOINT_WRITER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "th/weights/safetensors.h"
#include "th/weights/tensor.h"

namespace th {

struct CheckpointTensor {
  TensorSpec spec;
  const void* data = nullptr;  // spec.bytes; unused for aliases
};

struct CheckpointWriteOptions {
  SafetensorsMetadata metadata;
  // Files are closed at this size; a larger tensor has a file of its own.
  uint64_t max_file_bytes = uint64_t{5'000'000'000};
  // Asked between pieces of kCheckpointPieceBytes: whether to give up.
  std::function<bool()> cancelled;
};

inline constexpr uint64_t kCheckpointPieceBytes = uint64_t{16} << 20;

// Makes the folder `path`. ALREADY_EXISTS when it exists and is not empty. RESOURCE_EXHAUSTED
// naming the folder, the bytes needed and the bytes free when the disk is full, before or in the
// middle of it. CANCELLED. INVALID_ARGUMENT as PlanSafetensorsFile.
absl::Status WriteCheckpoint(const std::string& path, absl::Span<const CheckpointTensor> tensors,
                             const CheckpointWriteOptions& options);

// In the name of a folder that is being written, or was when its process ended.
inline constexpr absl::string_view kUnfinishedMark = ".unfinished-";

// Removes the folder `path` if WriteCheckpoint left it: if its process was killed while it wrote
// there. False, and nothing is done, where the name is no such name ("FOLDER.unfinished-XXXXXX"),
// or a process writes there still. On a file system without locks nothing is removed.
bool RemoveIfUnfinished(const std::string& path);

}  // namespace th

#endif  // TH_MEMORY_CHECKPOINT_WRITER_H_
