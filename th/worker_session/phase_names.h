// The phases that are under way on a buffer, in the words of the table in docs/protocol/session.md:
// for those who watch every step of a session (the simulator) and can afford no text for each.
#ifndef TH_WORKER_SESSION_PHASE_NAMES_H_
#define TH_WORKER_SESSION_PHASE_NAMES_H_

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"

namespace th {

// Phases of a buffer's operations, in the order of their numbers ("update filling"). The names are
// literals. Most buffers have one operation at most.
using PhaseNames = absl::InlinedVector<absl::string_view, 2>;

namespace session {

struct Buffer;

// The phases of the operations that the caller waits for.
PhaseNames PhasesOf(const Buffer& buffer);

}  // namespace session
}  // namespace th

#endif  // TH_WORKER_SESSION_PHASE_NAMES_H_
