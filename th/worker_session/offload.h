// Copies of retained versions, made before an unpublish or update takes the last replica away:
// because the server has asked for them or, for an unpublish, because no server is there to ask. A
// copy is an ordinary buffer of this worker in host memory, named
// "BUFFER.offload-VERSION.GENERATION.OPERATION", filled by an ordinary update of the whole group to
// exactly that version. While it grows the operation waits; then it asks the server again, or
// drains if it copies alone.
//
// A copy that seeds its site, "BUFFER.seed-VERSION.GENERATION.OPERATION", is the same, but that
// nobody waits for it: the update that it answers has ended, and its buffer is served on.
//
//   allocating ──(memory, or none)──► filling ──(the group holds it)──► held
//   filling ──(the update failed, as it does without memory)──► freed: the operation ends, its
//       buffer published as before; one that copies alone drains
//   held ──(OffloadReleased, or it holds nothing any more)──► releasing ──(drained)──► freed
#ifndef TH_WORKER_SESSION_OFFLOAD_H_
#define TH_WORKER_SESSION_OFFLOAD_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/worker_session/session_state.h"

namespace th::session {

// The driver's answer to AllocateOffload.
void NoteOffloadAllocated(State& state, BufferId copy, const absl::Status& status, absl::Time now);
void HandleOffloadReleased(State& state, const OffloadReleased& message);

// Takes every step that offloads allow now, those that add and remove buffers among them: after
// every event, outside of any walk over the buffers.
void PumpOffloads(State& state, absl::Time now);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_OFFLOAD_H_
