// The answering end of one examination.
#ifndef TH_DOCTOR_PEER_SESSION_H_
#define TH_DOCTOR_PEER_SESSION_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "th/doctor/facts.h"
#include "th/doctor/finding.h"
#include "th/doctor/sockets.h"

namespace th::doctor {

// The end of one examination, or of an attempt at one.
struct AnsweredPeer {
  std::string address;  // numeric
  std::string host;     // as the peer names itself, made printable
  std::string version;  // of its build
  bool spoke = false;   // it has sent a byte
  std::string error;    // why it ended early; empty: the peer closed when it had asked
};

// The bounds of what a peer can have done for it.
struct AnswerLimits {
  absl::Duration greeting = absl::Seconds(5);       // until a connection has said what it wants
  absl::Duration idle = absl::Seconds(20);          // until the next question
  absl::Duration session = absl::Seconds(120);      // in all; the next peer waits meanwhile
  absl::Duration connect = absl::Seconds(3);        // of the way back
  absl::Duration second = absl::Seconds(5);         // until a connection for bytes has come
  absl::Duration bulk_duration = absl::Seconds(5);  // the most that a peer may ask for
  absl::Duration bulk_stall = absl::Seconds(5);     // likewise
};
// Round trips of clocks that are answered in one session. Other questions are answered once.
inline constexpr int kMostClockRounds = 64;
// Questions of one session, with those that only later releases know.
inline constexpr int kMostQuestions = 100;

// The facts of the answering end. Its functions are called on the thread that answers.
struct AnswerSources {
  std::string version;  // of this build
  std::function<HostFacts()> read_facts;
  std::function<std::vector<Finding>()> examine;
};

// Answers the peer at the other end of `connection` until it closes, breaks the protocol, or a
// limit is reached. `listener` brings its connections for bytes; others that come meanwhile are
// told to come again. Connects to no address but that of the peer. Takes whatever the peer sends.
AnsweredPeer AnswerPeer(stream::Socket connection, int listener, const AnswerSources& sources,
                        const AnswerLimits& limits, int stop_fd);

}  // namespace th::doctor

#endif  // TH_DOCTOR_PEER_SESSION_H_
