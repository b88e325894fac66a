// Kept copies (host_copy.h): copies of retained versions, made before an unpublish or update takes
// the last replica away, and copies that seed a site.
//
// The first kind is made because the server has asked for it or, for an unpublish, because no
// server is there to ask. It is named "BUFFER.offload-VERSION.GENERATION.OPERATION" and filled by
// an update to exactly that version. Until it is held the operation waits; then it asks the server
// again, or drains if it copies alone. An operation whose copy fails ends, its buffer published as
// before; one that copies alone drains.
//
// A copy that seeds its site, "BUFFER.seed-VERSION.GENERATION.OPERATION", is the same, but that
// nobody waits for it: the update that it answers has ended, and its buffer is served on.
#ifndef TH_WORKER_SESSION_OFFLOAD_H_
#define TH_WORKER_SESSION_OFFLOAD_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/worker_session/session_state.h"

namespace th::session {

// The server does not need this copy any more. Ignored where it is none, or a staged one.
void HandleOffloadReleased(State& state, const OffloadReleased& message);

// ---- for host_copy.h

// Makes buffers for the copies that operations want and for State::site_copies_wanted, and asks for
// their memory.
void BeginWantedCopies(State& state, absl::Time now);
// There is no memory for `copy`, which is kept and idle; its update begins, and fails, once the
// server can hear of it.
void RefuseMemory(HostCopy& copy, absl::Status why, absl::Time now);
// The question for the memory of `copy`, which is kept and idle, is answered: begins the update of
// its `buffer`, or ends it where nobody waits for it any more.
void BeginFilling(State& state, Buffer& buffer, HostCopy& copy, absl::Time now);
// Ends the update of a kept copy that was given up, and drives that of one that is made without a
// server. The copy is filling; its update may have ended afterwards.
void PumpFilling(State& state, BufferId copy, absl::Time now);
// The operation that waits for `copy`, which is held, goes on. False: none waits.
bool ContinueWaiting(State& state, BufferId copy, absl::Time now);
// The operation that waits for `copy`, which came to nothing and is gone, ends with `why`, or
// drains where it copies alone.
void FailWaiting(State& state, BufferId copy, const absl::Status& why, absl::Time now);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_OFFLOAD_H_
