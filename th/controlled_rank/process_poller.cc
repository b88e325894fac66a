#include "th/controlled_rank/process_poller.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th {

absl::StatusOr<std::unique_ptr<ProcessPoller>> ProcessPoller::Open() {
  sigset_t handled, before;
  sigemptyset(&handled);
  sigaddset(&handled, SIGINT);
  sigaddset(&handled, SIGTERM);
  sigprocmask(SIG_BLOCK, &handled, &before);
  const int fd = signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("signalfd: ", strerror(errno)));
  return std::unique_ptr<ProcessPoller>(new ProcessPoller(fd, before));
}

ProcessPoller::~ProcessPoller() {
  close(signal_fd_);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

void ProcessPoller::Remove(RankProcess* rank) {
  ranks_.erase(std::remove(ranks_.begin(), ranks_.end(), rank), ranks_.end());
}

absl::Status ProcessPoller::RunUntil(absl::FunctionRef<bool()> done, absl::Duration timeout,
                                     absl::string_view what) {
  const absl::Time deadline = MonotonicNow() + timeout;
  while (!done()) {
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat(what, " took longer than ", absl::FormatDuration(timeout)));
    }
    TH_RETURN_IF_ERROR(HandleSomeOutput(left));
  }
  return absl::OkStatus();
}

absl::Status ProcessPoller::HandleSomeOutput(absl::Duration at_most) {
  std::vector<pollfd> waited = {{.fd = signal_fd_, .events = POLLIN, .revents = 0}};
  // A negative descriptor (of an ended process) is skipped by poll.
  for (RankProcess* rank : ranks_) {
    waited.push_back({.fd = rank->process().output_fd(), .events = POLLIN, .revents = 0});
  }
  const auto milliseconds = std::clamp<int64_t>(absl::ToInt64Milliseconds(at_most) + 1, 1, 60'000);
  poll(waited.data(), waited.size(), static_cast<int>(milliseconds));
  if (waited[0].revents != 0) {
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
      return absl::CancelledError(
          absl::StrCat("ended by ", info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM"));
    }
  }
  // A handler may add or remove ranks.
  const std::vector<RankProcess*> ranks = ranks_;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (waited[i + 1].revents != 0) ranks[i]->HandleOutput();
  }
  return absl::OkStatus();
}

absl::Status ProcessPoller::AwaitAnswers(const std::vector<RankProcess*>& ranks,
                                         absl::Duration timeout, absl::string_view what) {
  const auto all_answered = [&] {
    return std::all_of(ranks.begin(), ranks.end(),
                       [](RankProcess* rank) { return rank->answered(); });
  };
  absl::Status status = RunUntil(all_answered, timeout, what);
  if (absl::IsDeadlineExceeded(status)) {
    std::vector<std::string> silent;
    for (RankProcess* rank : ranks) {
      if (!rank->answered()) silent.push_back(rank->name());
    }
    return absl::DeadlineExceededError(
        absl::StrCat(status.message(), "; no answer from ", absl::StrJoin(silent, ", ")));
  }
  TH_RETURN_IF_ERROR(status);
  for (RankProcess* rank : ranks) TH_RETURN_IF_ERROR(rank->answer().status());
  return absl::OkStatus();
}

absl::Status ProcessPoller::SendToRanks(const std::vector<RankProcess*>& ranks,
                                        const nlohmann::json& command, absl::Duration timeout) {
  for (RankProcess* rank : ranks) rank->Send(command);
  return AwaitAnswers(ranks, timeout, command.value("do", "the command"));
}

}  // namespace th
