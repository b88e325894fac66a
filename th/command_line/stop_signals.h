// SIGINT and SIGTERM as something that can be waited for.
//
//   StopSignals stop(130);                   // first, before any thread exists
//   ...                                      // a signal ends the process with 130
//   stop.HoldOff();                          // from here on there is something to clean up
//   PendingResult<absl::StatusOr<UpdateResult>> pending(&stop);
//   buffer.UpdateAsync(version, options, pending.Callback());
//   auto result = pending.Await();           // nullopt: a signal came first
//   if (!result) return Drain();
//
// The second signal, whichever the two are, ends the process at once with kStatusOfSecondSignal:
// whoever sends it twice does not want to wait for a drain. One stop may come as several signals:
// `timeout` signals the process and its group, a terminal's Ctrl-C a script's children and the
// script, which passes it on. What comes within kOneStop of the first is of the same stop.
#ifndef TH_COMMAND_LINE_STOP_SIGNALS_H_
#define TH_COMMAND_LINE_STOP_SIGNALS_H_

#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace th {

inline constexpr int kStatusOfSecondSignal = 130;
inline constexpr absl::Duration kOneStop = absl::Seconds(1);

struct StopOptions {
  // Said before a signal ends the process at once, on a thread of its own: what runs meanwhile may
  // be at any point.
  std::function<void()> last_words;
  absl::Duration one_stop = kOneStop;
  // Tells people that a signal was taken; empty: a line on stderr. Called on the same thread.
  std::function<void(const std::string&)> say;
};

// One a process: it blocks the two signals in the constructing thread (threads made later inherit
// that) and takes them on a thread of its own. Thread-safe.
class StopSignals {
 public:
  // Until HoldOff() a signal ends the process at once with this status: there is nothing to undo,
  // and what blocks (a connect, a large read) need not be waited for.
  explicit StopSignals(int status_at_once, StopOptions options = {});
  // Unblocks the signals again.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // From here on the first signal only requests the stop.
  void HoldOff();
  // There is nothing to undo any more: a signal ends the process at once again, and one that came
  // meanwhile does so now.
  void StopHoldingOff();

  // While one lives a second signal does not end the process at once: what is being undone or
  // finished is short, and must not be left half done.
  class Unbroken {
   public:
    explicit Unbroken(StopSignals* stop);
    ~Unbroken();
    Unbroken(const Unbroken&) = delete;
    Unbroken& operator=(const Unbroken&) = delete;

   private:
    StopSignals* const stop_;
  };

  bool requested() const;
  // The signal that came first; 0: none yet.
  int signal() const;
  void Wait();
  // True when a stop was requested within `timeout`.
  bool WaitFor(absl::Duration timeout);

 private:
  template <typename Result>
  friend class PendingResult;
  void Listen();
  void Take(int signal);
  void Say(const std::string& text) const;
  [[noreturn]] void EndAtOnce(int status);

  const StopOptions options_;
  mutable absl::Mutex mutex_;
  const int status_of_end_;
  std::optional<int> status_at_once_ ABSL_GUARDED_BY(mutex_);
  int unbroken_ ABSL_GUARDED_BY(mutex_) = 0;
  int signal_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time signalled_at_ ABSL_GUARDED_BY(mutex_);
  sigset_t before_;
  // Instead of sigwait, which some kernels let the signal's default action overtake.
  int signal_fd_ = -1;
  int end_fd_ = -1;  // readable: the listener is to end
  std::thread listener_;
};

// A result that a callback brings, waited for together with the stop. `stop` outlives it; the
// callback may come after it is gone.
template <typename Result>
class PendingResult {
 public:
  explicit PendingResult(StopSignals* stop) : stop_(stop), slot_(std::make_shared<Slot>()) {}

  // To be called once, on any thread, while `stop` lives.
  std::function<void(Result)> Callback() {
    return [stop = stop_, slot = slot_](Result result) {
      absl::MutexLock lock(&stop->mutex_);
      slot->result.emplace(std::move(result));
    };
  }

  // The result, or nullopt when a stop is requested before there is one.
  std::optional<Result> Await() { return AwaitFor(absl::InfiniteDuration()); }

  // The same, or nullopt after so long.
  std::optional<Result> AwaitFor(absl::Duration timeout) {
    absl::MutexLock lock(&stop_->mutex_);
    auto over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(stop_->mutex_) {
      return slot_->result.has_value() || stop_->signal_ != 0;
    };
    stop_->mutex_.AwaitWithTimeout(absl::Condition(&over), timeout);
    return std::move(slot_->result);
  }

  // The result even if a stop is requested: for what ends soon by itself.
  Result AwaitResult() {
    absl::MutexLock lock(&stop_->mutex_);
    auto over = [this] { return slot_->result.has_value(); };
    stop_->mutex_.Await(absl::Condition(&over));
    return *std::move(slot_->result);
  }

 private:
  // Shared with the callback, which may outlive the wait.
  struct Slot {
    std::optional<Result> result;
  };
  StopSignals* const stop_;
  std::shared_ptr<Slot> slot_;
};

}  // namespace th

#endif  // TH_COMMAND_LINE_STOP_SIGNALS_H_
