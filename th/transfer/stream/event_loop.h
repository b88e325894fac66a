// One data thread: epoll over sockets, timers, and closures posted from other threads.
//
// Handlers, timers and closures run on the loop's thread, one at a time, and must not block. The
// thread is named, has all signals blocked, and ends in Stop().
#ifndef TH_TRANSFER_STREAM_EVENT_LOOP_H_
#define TH_TRANSFER_STREAM_EVENT_LOOP_H_

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace th::stream {

class EventLoop {
 public:
  // Hears of a descriptor that is watched. The loop keeps it alive until Unwatch.
  class Handler {
   public:
    virtual ~Handler() = default;
    // `events` as of epoll.
    virtual void OnReady(uint32_t events) = 0;
    // The loop ends: close, and unwatch.
    virtual void OnLoopStops() = 0;
  };
  using TimerId = std::pair<absl::Time, uint64_t>;

  // RESOURCE_EXHAUSTED when the system gives no descriptor.
  static absl::StatusOr<std::shared_ptr<EventLoop>> Start(std::string thread_name);
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Any thread. False when the loop has ended: `task` is dropped.
  bool Post(std::function<void()> task);
  // Tells every handler, runs what was posted, and joins; not to be called on the loop's thread.
  // Idempotent. In a forked child, which has no such thread, it does nothing.
  void Stop();

  // ---- on the loop's thread
  void Watch(int fd, uint32_t events, std::shared_ptr<Handler> handler);
  void Rewatch(int fd, uint32_t events);
  void Unwatch(int fd);
  TimerId RunAt(absl::Time when, std::function<void()> task);
  void Cancel(const TimerId& timer) { timers_.erase(timer); }
  // Scratch memory for bytes that nobody wants.
  std::vector<char>& scratch() { return scratch_; }

 private:
  struct Watched {
    uint64_t id = 0;
    std::shared_ptr<Handler> handler;
  };

  EventLoop(int epoll_fd, int wake_fd);
  void Run(const std::string& thread_name);
  void RunPosted();
  void RunTimers();
  void Dispatch(int timeout_ms);
  int TimeoutMs();
  void Wind();
  bool Ending();

  const int epoll_fd_;
  const int wake_fd_;
  const pid_t process_;
  std::thread thread_;

  // The loop's thread only.
  std::unordered_map<int, Watched> watched_;
  std::unordered_map<uint64_t, int> fd_of_;  // by watch id: an event of a closed fd finds nothing
  uint64_t next_id_ = 1;
  std::map<TimerId, std::function<void()>> timers_;
  std::vector<char> scratch_;

  absl::Mutex mu_;
  std::deque<std::function<void()>> posted_ ABSL_GUARDED_BY(mu_);
  bool wake_pending_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

// A task for Post or RunAt: calls `method` of `object`, if that lives by then.
template <typename Object>
std::function<void()> IfAlive(std::weak_ptr<Object> object, void (Object::*method)()) {
  return [object = std::move(object), method] {
    if (const auto alive = object.lock()) (alive.get()->*method)();
  };
}

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_EVENT_LOOP_H_
