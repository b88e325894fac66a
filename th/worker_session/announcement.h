// A worker's announcement at a join: who it is, what each buffer holds, what it is filling from
// whom, and what it did last. A server without memory builds its state from these.
#ifndef TH_WORKER_SESSION_ANNOUNCEMENT_H_
#define TH_WORKER_SESSION_ANNOUNCEMENT_H_

#include "th/protocol/messages.h"
#include "th/worker_session/session_state.h"

namespace th::session {

AnnouncedBuffer AnnouncementOf(const Buffer& buffer);

// The first message of a stream. A worker that was a member before claims its place and tells of
// every buffer.
JoinRequest JoinRequestOf(const State& state);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_ANNOUNCEMENT_H_
