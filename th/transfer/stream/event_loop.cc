#include "th/transfer/stream/event_loop.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "th/transfer/monotonic_clock.h"

namespace th::stream {
namespace {

constexpr int kEventsPerWait = 64;
constexpr size_t kScratchBytes = 64 << 10;
constexpr uint64_t kWakeId = 0;
constexpr int kMaxWaitMs = 1000;

}  // namespace

absl::StatusOr<std::shared_ptr<EventLoop>> EventLoop::Start(std::string thread_name) {
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_fd < 0 || wake_fd < 0) {
    if (epoll_fd >= 0) close(epoll_fd);
    if (wake_fd >= 0) close(wake_fd);
    return absl::ResourceExhaustedError("no file descriptor left for a data thread");
  }
  std::shared_ptr<EventLoop> loop(new EventLoop(epoll_fd, wake_fd));
  // A new thread inherits the mask: no signal of the host's is ever handled on it.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  loop->thread_ =
      std::thread([raw = loop.get(), name = std::move(thread_name)] { raw->Run(name); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return loop;
}

EventLoop::EventLoop(int epoll_fd, int wake_fd)
    : epoll_fd_(epoll_fd), wake_fd_(wake_fd), process_(getpid()), scratch_(kScratchBytes) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeId;
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, wake_fd_, &event);
}

EventLoop::~EventLoop() {
  Stop();
  close(epoll_fd_);
  close(wake_fd_);
}

bool EventLoop::Post(std::function<void()> task) {
  absl::MutexLock lock(&mu_);
  if (ended_) return false;
  posted_.push_back(std::move(task));
  if (std::exchange(wake_pending_, true)) return true;
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the loop wakes anyway.
  if (write(wake_fd_, &one, sizeof(one)) < 0) wake_pending_ = true;
  return true;
}

void EventLoop::Stop() {
  if (!thread_.joinable()) return;
  if (getpid() != process_) {
    thread_.detach();
    return;
  }
  {
    absl::MutexLock lock(&mu_);
    ending_ = true;
  }
  Post([] {});
  thread_.join();
}

void EventLoop::Watch(int fd, uint32_t events, std::shared_ptr<Handler> handler) {
  const uint64_t id = next_id_++;
  watched_[fd] = {id, std::move(handler)};
  fd_of_[id] = fd;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
}

void EventLoop::Rewatch(int fd, uint32_t events) {
  const auto it = watched_.find(fd);
  if (it == watched_.end()) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = it->second.id;
  epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::Unwatch(int fd) {
  const auto it = watched_.find(fd);
  if (it == watched_.end()) return;
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
  fd_of_.erase(it->second.id);
  watched_.erase(it);
}

EventLoop::TimerId EventLoop::RunAt(absl::Time when, std::function<void()> task) {
  const TimerId id{when, next_id_++};
  timers_.emplace(id, std::move(task));
  return id;
}

bool EventLoop::Ending() {
  absl::MutexLock lock(&mu_);
  return ending_;
}

void EventLoop::Run(const std::string& thread_name) {
  pthread_setname_np(pthread_self(), thread_name.substr(0, 15).c_str());
  while (!Ending()) {
    Dispatch(TimeoutMs());
    RunTimers();
    RunPosted();
  }
  Wind();
}

// Ends what is watched, until closing one thing posts nothing more.
void EventLoop::Wind() {
  while (true) {
    RunPosted();
    std::vector<std::shared_ptr<Handler>> handlers;
    for (const auto& [fd, watched] : watched_) handlers.push_back(watched.handler);
    for (const auto& handler : handlers) handler->OnLoopStops();
    absl::MutexLock lock(&mu_);
    if (!posted_.empty()) continue;
    ended_ = true;
    break;
  }
  timers_.clear();
}

int EventLoop::TimeoutMs() {
  {
    absl::MutexLock lock(&mu_);
    if (!posted_.empty()) return 0;
  }
  if (timers_.empty()) return kMaxWaitMs;
  const absl::Duration until = timers_.begin()->first.first - MonotonicNow();
  if (until <= absl::ZeroDuration()) return 0;
  // Rounded up: waking early would only mean to wait again.
  const int64_t ms = absl::ToInt64Milliseconds(until + absl::Nanoseconds(999'999));
  return static_cast<int>(std::min<int64_t>(ms, kMaxWaitMs));
}

void EventLoop::Dispatch(int timeout_ms) {
  std::array<epoll_event, kEventsPerWait> events;
  const int count = epoll_wait(epoll_fd_, events.data(), kEventsPerWait, timeout_ms);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWakeId) {
      uint64_t value = 0;
      while (read(wake_fd_, &value, sizeof(value)) > 0) {
      }
      continue;
    }
    const auto fd = fd_of_.find(events[i].data.u64);
    if (fd == fd_of_.end()) continue;
    const std::shared_ptr<Handler> handler = watched_[fd->second].handler;
    handler->OnReady(events[i].events);
  }
}

void EventLoop::RunTimers() {
  const absl::Time now = MonotonicNow();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto timer = timers_.extract(timers_.begin());
    timer.mapped()();
  }
}

void EventLoop::RunPosted() {
  std::deque<std::function<void()>> tasks;
  {
    absl::MutexLock lock(&mu_);
    tasks.swap(posted_);
    wake_pending_ = false;
  }
  for (auto& task : tasks) task();
}

}  // namespace th::stream
