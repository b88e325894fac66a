// Runs the conversation with many rank processes on one thread, until something holds, a deadline
// passes, or the user interrupts.
//
//   TH_ASSIGN_OR_RETURN(auto poller, ProcessPoller::Open());
//   poller->Add(rank.get());
//   TH_RETURN_IF_ERROR(poller->AwaitAnswers({rank.get()}, absl::Seconds(10), "join"));
//
// Not thread-safe; one a process (it takes SIGINT and SIGTERM).
#ifndef TH_CONTROLLED_RANK_PROCESS_POLLER_H_
#define TH_CONTROLLED_RANK_PROCESS_POLLER_H_

#include <csignal>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/controlled_rank/rank_process.h"

namespace th {

class ProcessPoller {
 public:
  static absl::StatusOr<std::unique_ptr<ProcessPoller>> Open();
  ~ProcessPoller();
  ProcessPoller(const ProcessPoller&) = delete;
  ProcessPoller& operator=(const ProcessPoller&) = delete;

  // Not owned; Remove it before it ends.
  void Add(RankProcess* rank) { ranks_.push_back(rank); }
  void Remove(RankProcess* rank);

  // Handles what the processes say until `done()`. CANCELLED after SIGINT or SIGTERM;
  // DEADLINE_EXCEEDED naming `what`.
  absl::Status RunUntil(absl::FunctionRef<bool()> done, absl::Duration timeout,
                        absl::string_view what);
  // Until all have answered: the first error of them, if any. A rank that does not answer in time
  // is named.
  absl::Status AwaitAnswers(const std::vector<RankProcess*>& ranks, absl::Duration timeout,
                            absl::string_view what);
  // Sends the command to all and awaits their answers.
  absl::Status SendToRanks(const std::vector<RankProcess*>& ranks, const nlohmann::json& command,
                           absl::Duration timeout);

 private:
  ProcessPoller(int signal_fd, sigset_t before) : signal_fd_(signal_fd), before_(before) {}
  absl::Status HandleSomeOutput(absl::Duration at_most);

  const int signal_fd_;
  const sigset_t before_;
  std::vector<RankProcess*> ranks_;
};

}  // namespace th

#endif  // TH_CONTROLLED_RANK_PROCESS_POLLER_H_
