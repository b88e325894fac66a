// A received model as a safetensors folder.
#ifndef TH_WORKER_SAVED_MODEL_H_
#define TH_WORKER_SAVED_MODEL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "th/command_line/stop_signals.h"
#include "th/identifiers/identifiers.h"
#include "th/weights/version.h"
#include "th/worker/model_memory.h"

namespace th {

// OK when `folder` can take so many bytes: it does not exist or is empty (else ALREADY_EXISTS), and
// its file system has room (else RESOURCE_EXHAUSTED naming both figures). NOT_FOUND: no such
// parent. PERMISSION_DENIED or what else the system says: no folder can be made there, as one is
// tried.
absl::Status CheckCanSave(const std::string& folder, uint64_t bytes);

// True when `folder` has this version's whole tensors already, byte by byte. ALREADY_EXISTS naming
// the first tensor that differs; errors of CheckpointFolder::Open and Read.
absl::StatusOr<bool> IsSaved(const ModelMemory& model, const VersionInfo& version,
                             const std::string& folder);

// Keys of the files' metadata that say what was saved.
inline constexpr char kSavedRun[] = "tensorhub.run";
inline constexpr char kSavedModel[] = "tensorhub.model";
inline constexpr char kSavedVersion[] = "tensorhub.version";
inline constexpr char kSavedSequence[] = "tensorhub.sequence";

// Writes the whole tensors, gathered, as a folder; whole or not at all (th/memory). The names of
// the version and its model are in the files' metadata. CANCELLED once a stop is requested; until
// then a second signal waits for what was written to be gone. Errors of WriteCheckpoint.
absl::Status SaveModel(const ModelMemory& model, const VersionInfo& version, const ModelKey& key,
                       const std::string& folder, StopSignals* stop);

}  // namespace th

#endif  // TH_WORKER_SAVED_MODEL_H_
