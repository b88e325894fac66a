// The driver's reports of a fill: the first write, progress, the end, a failed source. Reports
// that come when no fill is going on (it was stopped, or is done) are ignored.
#ifndef TH_WORKER_SESSION_FILL_REPORTS_H_
#define TH_WORKER_SESSION_FILL_REPORTS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/worker_session/session_state.h"

namespace th::session {

void NoteFirstWrite(Buffer& buffer);
void NoteProgress(State& state, Buffer& buffer, FillReport report, absl::Time now);
void NoteAllReceived(State& state, Buffer& buffer, absl::Time now);
void NoteFillCost(Buffer& buffer, FillCost cost);
// The shard is received and checked: it is done, unless its root is not the one of the server.
void NoteFillComplete(State& state, Buffer& buffer, const Digest& root, absl::Time now);
void NoteFillFailed(Buffer& buffer, const absl::Status& why);
void NoteFillStopped(Buffer& buffer);
// `endpoint`: where it was read, for the error text.
void NoteSourceFailed(State& state, Buffer& buffer, SourceFailed failed, const Endpoint& endpoint,
                      absl::Time now);
// Without a server nobody hears of it: the fill asks the same source again after a while.
void NoteSourceSuspected(State& state, Buffer& buffer, SourceSuspected suspected, absl::Time now);

// Progress that was held back, at most one message in an interval.
void SendDueProgress(State& state, Buffer& buffer, absl::Time now);
absl::Time NextProgress(const State& state, const Buffer& buffer);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_FILL_REPORTS_H_
