// What the end of an update means for staged copies (staging.h): its own update's end, or that of
// one that has moved it in. Beside staging.h because every operation's end comes through here,
// while staging begins operations.
#ifndef TH_WORKER_SESSION_STAGED_END_H_
#define TH_WORKER_SESSION_STAGED_END_H_

#include "th/worker_session/session_state.h"
#include "th/worker_session/session_types.h"

namespace th::session {

// `done` is what the caller is about to hear of an operation of `buffer`. Moves the staged copy
// that it ends on to its next phase; a copy that was staged before counts as moved in `done`, since
// to the caller there is no difference. Nothing happens for other kinds than updates.
void NoteStagedEnd(State& state, const Buffer& buffer, OperationDone& done);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_STAGED_END_H_
