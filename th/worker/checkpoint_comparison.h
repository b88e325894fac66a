// The comparison of two models: tensor by tensor by SHA-256, or a folder against the root
// digests that the server keeps of a published version.
#ifndef TH_WORKER_CHECKPOINT_COMPARISON_H_
#define TH_WORKER_CHECKPOINT_COMPARISON_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "th/client/client.h"
#include "th/memory/checkpoint_folder.h"
#include "th/protocol/messages.h"
#include "th/weights/digest.h"
#include "th/weights/shard_layout.h"
#include "th/weights/tensor.h"

namespace th {

struct ChecksummedTensor {
  TensorSpec spec;
  Digest checksum;  // SHA-256 of its bytes
};
// By name.
using ChecksummedModel = std::map<std::string, ChecksummedTensor>;

// Reads every tensor once. Errors of CheckpointFolder::Read.
absl::StatusOr<ChecksummedModel> ChecksumFolder(const CheckpointFolder& folder);
ChecksummedModel ChecksumMemory(const std::vector<Tensor>& tensors);

// A line a tensor that only one side has or that differs in type, shape or bytes; the first
// kMaxDifferences of them, then how many more there are. Aliases are compared by their bytes.
inline constexpr size_t kMaxDifferences = 20;
std::vector<std::string> Differences(const ChecksummedModel& model, const std::string& model_name,
                                     const ChecksummedModel& other, const std::string& other_name);

// The root digest that the folder's tensors would have as this shard. FAILED_PRECONDITION naming
// the first tensor that the folder lacks or has in another shape or type.
absl::StatusOr<Digest> RootOfShard(const CheckpointFolder& folder, const ShardLayout& layout);

}  // namespace th

#endif  // TH_WORKER_CHECKPOINT_COMPARISON_H_
