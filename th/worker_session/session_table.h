// The steps of a session with one buffer, as data: what is under way on the buffer, what happens,
// what becomes of it and what is put out. Everything else is ignored, or refused without a trace.
// docs/protocol/session.md draws the same table; session_table_test compares both with what a
// session does.
#ifndef TH_WORKER_SESSION_SESSION_TABLE_H_
#define TH_WORKER_SESSION_SESSION_TABLE_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace th {

struct SessionStep {
  absl::string_view phase;    // "update filling, written": see WorkerSession::phases
  absl::string_view event;    // "AssignSources", "the fill fails", "verb Publish"
  absl::string_view becomes;  // "same": neither an operation nor the buffer's state changes
  // In their order, divided by ", "; those for the driver between stars: "*StartFill*,
  // ReadyToFill".
  // "-": nothing.
  absl::string_view outputs;
};

// In the order in which they are drawn.
absl::Span<const SessionStep> SessionSteps();

// The same of a copy in host memory, whose phases are those of WorkerSession::Describe: "staged
// copy filling, memory asked". host_copy_table_test compares them with what a session does.
absl::Span<const SessionStep> HostCopySteps();

}  // namespace th

#endif  // TH_WORKER_SESSION_SESSION_TABLE_H_
