// The effect that the end of an update has on copies in host memory (host_copy.h): the end of a
// copy's own update, or of one that has moved a staged copy in. Apart from host_copy.h because the
// end of every operation comes through here, while host_copy.h begins operations.
#ifndef TH_WORKER_SESSION_COPY_END_H_
#define TH_WORKER_SESSION_COPY_END_H_

#include "th/worker_session/session_state.h"
#include "th/worker_session/session_types.h"

namespace th::session {

// `done` is what the caller is about to hear of an operation of `buffer`. Moves the copy that it
// ends on to its next phase; a copy that was staged before counts as moved in `done`, since to the
// caller there is no difference. Nothing happens for other kinds than updates.
void NoteCopyEnd(State& state, const Buffer& buffer, OperationDone& done);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_COPY_END_H_
