// Which update an event is: the one place that knows all messages and all deadlines.
#ifndef TH_REFERENCE_REGISTRY_DISPATCH_H_
#define TH_REFERENCE_REGISTRY_DISPATCH_H_

#include "th/protocol/messages.h"
#include "th/registry_state/registry_types.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// A message of a stream. What does not fit is refused: with the answer that its sender waits for,
// else counted. A stream that has not joined and does not join hears Refused and is closed.
void DispatchMessage(Turn& turn, ConnectionId connection, const WorkerMessage& message);
void DispatchDisconnect(Turn& turn, ConnectionId connection);
// Everything whose time has come.
void DispatchDeadlines(Turn& turn);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_DISPATCH_H_
