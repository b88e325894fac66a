// Updating: a replica moves to a version. It is resolved once for the group; each rank says when
// its buffer is drained, is assigned sources, and says when its shard is there; when all are, the
// replica has moved.
#ifndef TH_REFERENCE_REGISTRY_UPDATING_H_
#define TH_REFERENCE_REGISTRY_UPDATING_H_

#include "absl/status/status.h"
#include "th/protocol/messages.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// Takes the replica's update, its first pending operation, as far as it goes. Ends it at once when
// the version is not available or held already; with INVALID_ARGUMENT naming the rank and the first
// differing tensor when nobody holds a rank's shard; with ABORTED when the version that it was
// resolved to before a restart has been withdrawn.
void EvaluateUpdate(Turn& turn, Replica& replica, Transaction& transaction);

// A rank can take bytes.
struct BeginFill {
  BufferAddress buffer;
  ReadyToFill message;

  // FAILED_PRECONDITION: its update is not pending or not resolved yet.
  absl::Status CanApply(const RegistryState& state) const;
  void Apply(Turn& turn) const;
};

// A rank's shard has come as far as this.
struct RecordProgress {
  BufferAddress buffer;
  FillProgress message;

  // FAILED_PRECONDITION: it fills no such version. INVALID_ARGUMENT: segments that its layout
  // lacks, more than kMaxProgressRanges ranges or kMaxThroughputsReported throughputs, or more
  // bytes than it has.
  absl::Status CanApply(const RegistryState& state) const;
  void Apply(Turn& turn) const;
};
inline constexpr size_t kMaxProgressRanges = 4096;

// A rank's shard is there, checked and agreed.
struct CompleteFill {
  BufferAddress buffer;
  RankDone message;

  // FAILED_PRECONDITION: its update is not pending, or it has neither begun to fill nor held it.
  absl::Status CanApply(const RegistryState& state) const;
  void Apply(Turn& turn) const;
};

// The buffer was announced anew: an update in which its rank said that it is done, and whose
// version it does not hold any more, ends with ABORTED naming the rank.
void EndUpdateThatCountsOn(Turn& turn, Buffer& buffer);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_UPDATING_H_
