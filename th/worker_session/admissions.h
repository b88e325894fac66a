// Which readers are let in. A capability is checked here, once, at the admission: what was admitted
// outlives the server and its keys.
//
//   epoch of the capability   older: refused   ours: checked   newer: UNAVAILABLE, try again
//   the version is not named yet (publish)     held for kHoldAdmission, then UNAVAILABLE
#ifndef TH_WORKER_SESSION_ADMISSIONS_H_
#define TH_WORKER_SESSION_ADMISSIONS_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/protocol/capability.h"
#include "th/worker_session/session_state.h"

namespace th::session {

// Decides at once, or holds the reader until the version is named.
void AskAdmission(State& state, TransferId transfer, BufferId buffer, const Capability& capability,
                  BufferGeneration generation, absl::Time now);
// Those of the held ones that can be decided now, or have waited long enough.
void DecideHeldAdmissions(State& state, absl::Time now);
absl::Time NextAdmissionDeadline(const State& state);
// The session, or the epoch of their capabilities, is over: nobody is held any longer.
void RefuseHeldAdmissions(State& state, const absl::Status& why);

void NoteReaderBytes(State& state, TransferId transfer, absl::Time now);
// The reader let go, or was cut. Returns its buffer; null when it was never admitted.
Buffer* ReleaseReader(State& state, TransferId transfer);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_ADMISSIONS_H_
