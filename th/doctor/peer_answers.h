// The listening side of `th doctor --listen`: answers examining hosts, one at a time.
//
//   TH_ASSIGN_OR_RETURN(const auto answers, PeerAnswers::Start({"10.0.0.2", "7099"}, options));
//   std::cout << "listening on " << answers->address() << "\n";
//   stop.Wait();
#ifndef TH_DOCTOR_PEER_ANSWERS_H_
#define TH_DOCTOR_PEER_ANSWERS_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/doctor/peer_session.h"
#include "th/doctor/route_facts.h"
#include "th/doctor/sockets.h"

namespace th::doctor {

// Peers that wait until it is their turn; further ones are refused by the kernel or time out.
inline constexpr int kPeerBacklog = 16;

struct PeerAnswersOptions {
  AnswerSources sources;
  AnswerLimits limits;
  // Called on the answering thread after each examination, and after each attempt by something else
  // that has sent a byte. Must not destroy the PeerAnswers.
  std::function<void(const AnsweredPeer&)> on_peer;
};

// Answers on a thread of its own from Start to its destruction, which ends what is under way (an
// examination of this host itself is waited for, some seconds).
class PeerAnswers {
 public:
  // The host of `at` is a numeric address of this host. INVALID_ARGUMENT where it is not numeric,
  // UNAVAILABLE where it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<PeerAnswers>> Start(const HostAndPort& at,
                                                            PeerAnswersOptions options);
  ~PeerAnswers();
  PeerAnswers(const PeerAnswers&) = delete;
  PeerAnswers& operator=(const PeerAnswers&) = delete;

  // "10.0.0.2:7099", with the port that was chosen.
  std::string address() const { return LocalEnd(listener_.fd()).ToString(); }
  uint16_t port() const { return LocalEnd(listener_.fd()).Port(); }

 private:
  PeerAnswers(stream::Socket listener, PeerAnswersOptions options);
  void Answer();

  const stream::Socket listener_;
  const PeerAnswersOptions options_;
  const stream::Socket stop_;  // an eventfd: readable once the thread is to end
  std::thread thread_;
};

}  // namespace th::doctor

#endif  // TH_DOCTOR_PEER_ANSWERS_H_
