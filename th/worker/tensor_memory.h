// Memory for a set of tensors: one pre-faulted arena, or an allocation a tensor.
//
//   TH_ASSIGN_OR_RETURN(TensorMemory memory, TensorMemory::Allocate(specs));
//   TH_ASSIGN_OR_RETURN(WeightBuffer weights, client->Register(memory.tensors()));
//
// The pages are there when Allocate returns. Movable; the tensors' addresses stay. Not thread-safe.
#ifndef TH_WORKER_TENSOR_MEMORY_H_
#define TH_WORKER_TENSOR_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "th/client/client.h"
#include "th/memory/shared_memory.h"
#include "th/weights/tensor.h"

namespace th {

enum class TensorPlacement {
  kOneArena,
  kSeparately,  // as an allocator hands them out: what a framework's tensors look like
};

class TensorMemory {
 public:
  // `readers_may`: kAttach for the tensors of one buffer (HostArena::Options). An alias shares the
  // memory of the tensor it names. INVALID_ARGUMENT: what CompleteTensorSpec refuses, an alias of a
  // tensor that is not there. RESOURCE_EXHAUSTED: no memory.
  static absl::StatusOr<TensorMemory> Allocate(
      std::vector<TensorSpec> tensors, TensorPlacement placement = TensorPlacement::kOneArena,
      ReadersMay readers_may = ReadersMay::kCopy);

  const std::vector<Tensor>& tensors() const { return tensors_; }
  // The bytes of the storages: what a reader would receive.
  uint64_t bytes() const { return bytes_; }

 private:
  struct Blocks;
  std::shared_ptr<Blocks> blocks_;  // one owner; shared only because Blocks is incomplete here
  std::vector<Tensor> tensors_;
  uint64_t bytes_ = 0;
};

}  // namespace th

#endif  // TH_WORKER_TENSOR_MEMORY_H_
