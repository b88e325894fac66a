// Streaming receives: each is the one update of a buffer that keeps nothing, named
// "stream-GENERATION.N". N counts the receives of a rank, also those that fail before there is
// anything to register: so the ranks of a group always have the same ones in common. The buffer of
// one that has ended stays registered for a while, without memory and writable, for ranks that come
// late, or after a restart of the server, to hear the saved result: until the next has moved, for
// which every rank has come, and kMaxStreamsKept at most.
#ifndef TH_WORKER_SESSION_STREAMING_H_
#define TH_WORKER_SESSION_STREAMING_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/weights/shard_layout.h"
#include "th/worker_session/session_state.h"
#include "th/worker_session/session_types.h"

namespace th::session {

StreamTicket TakeStreamTicket(State& state, absl::Time now);
// ABORTED: the group counts anew since the ticket was taken. Else as AddBuffer.
absl::StatusOr<BufferId> RegisterStream(State& state, const StreamTicket& ticket, std::string form,
                                        std::shared_ptr<const ShardLayout> layout,
                                        const SegmentSet& wanted, absl::Time now);
// Tells the other ranks that this one has nothing to register, with the reason (an error).
void FailStream(State& state, const StreamTicket& ticket, std::string form, const absl::Status& why,
                absl::Time now);
// An update that is under way ends with `why` (an error), and one that was never asked for fails
// with it for the whole group.
void EndStream(State& state, BufferId id, const absl::Status& why, absl::Time now);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_STREAMING_H_
