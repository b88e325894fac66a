// Publish: the buffer is frozen at once, readable when the server has named the version, sealed
// when its sums are done.
//
//   asked ──(OperationFinished OK)──► named ──(event::Sealed)──► sealed
//     └────(error)──► writable again, and `lost` until the next unpublish has told it
#ifndef TH_WORKER_SESSION_PUBLISH_H_
#define TH_WORKER_SESSION_PUBLISH_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/worker_session/session_state.h"

namespace th::session {

absl::Status BeginPublish(State& state, Buffer& buffer, CallId call, PublishRequest request,
                          absl::Time now);
// The verdict on the publish that the server has told: an error where it cannot be the answer to
// this one (INTERNAL), so that the buffer never gets another version's name.
Verdict JudgeFinishedPublish(const Operation& operation, Verdict heard);
// Takes the step that the verdict allows, if there is one.
void PumpPublish(State& state, Buffer& buffer, Operation& operation, absl::Time now);

// The publisher's own sums are done.
void SealPublication(State& state, Buffer& buffer, VersionSequence version,
                     BufferGeneration generation, const Digest& root, absl::Time now);
// The server took back what was published here: it is drained, and told at the next unpublish.
void LosePublication(State& state, Buffer& buffer, VersionSequence version, const absl::Status& why,
                     absl::Time now);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_PUBLISH_H_
