// A server that has gone silent without closing the stream: its host is off the network, or its
// process hangs. gRPC's keep-alive notices that after many seconds; a trainer that wants its buffer
// back does not wait for it. While an unpublish waits for the server, a silence is answered with a
// question (Heartbeat with `ask`), and where no word comes the stream is given up, so that the rank
// goes on as it does without a server.
//
//   waits ──(kAskAfter without a word)──► asked ──(kAnswerTimeout without a word)──► given up
#ifndef TH_WORKER_SESSION_SERVER_SILENCE_H_
#define TH_WORKER_SESSION_SERVER_SILENCE_H_

#include <optional>

#include "absl/time/time.h"
#include "th/worker_session/session_state.h"

namespace th::session {

// Since when an unpublish of this rank waits and the server has said nothing; none: no unpublish
// waits for it, or the rank is not joined.
std::optional<absl::Time> SilentSince(const State& state);

// When something is due because of the silence: a question, or the end of the stream.
absl::Time SilenceDeadline(const State& state);

// Asks when it is time to.
void AskSilentServer(State& state, absl::Time now);
// True when the server has had its time to answer.
bool IsServerSilent(const State& state, absl::Time now);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_SERVER_SILENCE_H_
