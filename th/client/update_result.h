// The result of an update, as its caller reads it.
#ifndef TH_CLIENT_UPDATE_RESULT_H_
#define TH_CLIENT_UPDATE_RESULT_H_

#include "absl/status/statusor.h"
#include "th/client/call.h"
#include "th/client/client.h"

namespace th {

// From a call that has finished. The error is the session's, as it composed it.
absl::StatusOr<UpdateResult> ComposeUpdateResult(const Call& call);
// The results of a version received into, or moved in from, `staged_bytes` of spare memory.
absl::StatusOr<UpdateResult> ComposeStageResult(const Call& call, uint64_t staged_bytes);
absl::StatusOr<UpdateResult> ComposeApplyResult(const Call& call, uint64_t staged_bytes);
// The result of an update that was staged first: what the network and the caller's clock saw of
// both.
UpdateResult StagedThenApplied(UpdateResult staged, const UpdateResult& applied);

}  // namespace th

#endif  // TH_CLIENT_UPDATE_RESULT_H_
