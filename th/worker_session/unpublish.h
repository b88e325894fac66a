// Unpublish: drains here within drain_timeout of the drain's start, with or without a server.
//
//   asked ──(leave to drain; kDrop: at once)──► draining
//   asked ──(must_offload, OK)──► copying ──(the copy is held)──► asked, under the next number
//   asked ──(must_offload, an error; or that copy fails)──► ended, still published
//   asked ──(no server for kServerAway, or others ended it well)──► copying alone ──(the copy is
//       received, or there is none)──► draining; without room, or of what no server has named, at
//       once
//   draining ──(the last reader let go)──► drained ──(OperationFinished, or no server)──► ended
#ifndef TH_WORKER_SESSION_UNPUBLISH_H_
#define TH_WORKER_SESSION_UNPUBLISH_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/worker_session/session_state.h"

namespace th::session {

absl::Status BeginUnpublish(State& state, Buffer& buffer, CallId call,
                            const UnpublishRequest& request, absl::Time now);
void PumpUnpublish(State& state, Buffer& buffer, Operation& operation, absl::Time now);
// The server's end of an unpublish that copies alone is recorded only: it goes on (Pump) when its
// copy does. With must_offload and OK the copy becomes one that was asked for.
void NoteEndWhileCopying(Buffer& buffer, Operation& operation, Verdict answer);
// The moment from which it does not wait for the server any longer. InfiniteFuture: it waits for
// none now (it copies, drains, or has its verdict).
absl::Time UnpublishWaitsUntil(const State& state, const Operation& operation);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_UNPUBLISH_H_
