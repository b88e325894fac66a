// Copies of versions in host memory. Each is an ordinary buffer of this worker, filled by an
// ordinary update of its whole group, and a source from its first segment on. There are two kinds:
// - A kept copy (offload.h) is made before an operation takes the version away, or to seed the
//   site.
// - A staged copy (staging.h) receives what its original is to move to.
//
// Apart from its phase, each copy has a memory state (CopyMemory). docs/protocol/session.md has the
// steps of both; HostCopySteps (session_table.h) has them as a session shows them.
#ifndef TH_WORKER_SESSION_HOST_COPY_H_
#define TH_WORKER_SESSION_HOST_COPY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/worker_session/session_state.h"

namespace th::session {

// "staged copy filling, memory asked".
std::string DescribeCopy(const HostCopy& copy);

// Handles the driver's answer to AllocateOffload. Ignores an answer that no copy waits for.
void HandleCopyAllocation(State& state, BufferId copy, const absl::Status& status, absl::Time now);

// When PumpHostCopies has something to do at the latest, if nothing happens before.
absl::Time NextCopyDeadline(const State& state);

// Begins the kept copies that are wanted, then lets every copy take the steps that it can take now.
// Some steps remove buffers, so call it after each event, and never while iterating over them.
void PumpHostCopies(State& state, absl::Time now);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_HOST_COPY_H_
