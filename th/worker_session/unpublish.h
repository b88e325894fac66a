// Unpublish: drained here within its own deadline whether or not there is a server, and ended for
// the caller when the server has heard it from every rank, or is away.
//
//   asked ──(the server's leave; none is asked for without retention)──► draining
//      └──(no server)──► copying, where there is room ──► draining
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
// The server's end of an operation that copies without having been asked to.
void AnswerKept(Buffer& buffer, Operation& operation, Verdict answer);
// The moment from which it does not wait for the server any longer. InfiniteFuture: it drains.
absl::Time UnpublishWaitsUntil(const State& state, const Operation& operation);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_UNPUBLISH_H_
