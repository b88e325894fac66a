// The buffers of a worker and what the server knows of them.
#ifndef TH_WORKER_SESSION_BUFFERS_H_
#define TH_WORKER_SESSION_BUFFERS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/weights/shard_layout.h"
#include "th/worker_session/session_state.h"

namespace th::session {

absl::StatusOr<BufferId> AddBuffer(State& state, std::string name, std::string form,
                                   std::shared_ptr<const ShardLayout> layout, absl::Time now);
// A buffer like `original` for a copy in host memory, which becomes one of State::host_copies. The
// driver is not asked for memory yet. All ranks give the copy the same name.
absl::StatusOr<BufferId> AddCopyBuffer(State& state, const Buffer& original, BufferRole role,
                                       std::string name, HostCopy part, absl::Time now);
// Asks the driver for the memory of one of State::host_copies, which has none.
void AskForMemory(State& state, BufferId copy);
// Adds the buffer of a streaming reader: for one update, whose bytes the driver hands on.
absl::StatusOr<BufferId> AddStreamBuffer(State& state, std::string name, std::string form,
                                         std::shared_ptr<const ShardLayout> layout,
                                         const SegmentSet& wanted, absl::Time now);
// In every state: pending calls end CANCELLED, the driver closes what it reads and serves. What the
// driver still reports of it is ignored.
absl::Status RemoveBuffer(State& state, BufferId id, absl::Time now);
absl::Status ResetBuffer(State& state, Buffer& buffer, absl::Time now);
absl::Status CanRebindBuffer(const State& state, const Buffer& buffer);

// Registers what the server was not told of in the join.
void AnnounceNewBuffers(State& state, absl::Time now);
void HandleBufferRegistered(State& state, const BufferRegistered& message, absl::Time now);
void HandleLayoutWanted(State& state, const LayoutWanted& message, absl::Time now);

// "update step-57: filling, 12 of 40 segments from 2 sources; buffer filling 2.17, generation 3".
std::string DescribeBuffer(const Buffer& buffer);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_BUFFERS_H_
