// A long way between two interfaces: every frame that arrives at one of them leaves by the other
// `latency` later, in both directions. The kernel of a small machine may have no netem.
//
//   TH_ASSIGN_OR_RETURN(auto link, DelayedLink::Start({.network_namespace = hub.fd(),
//                                                      .first = "near0", .second = "near1",
//                                                      .latency = absl::Milliseconds(15)}));
//
// One thread holds the frames, as large as the kernel hands them over (offloads stay on). What it
// cannot hold is lost, as on a link. The rate is not its business: shape the interfaces. It ends
// with this object. Thread-safe.
#ifndef TH_PROCESSES_DELAYED_LINK_H_
#define TH_PROCESSES_DELAYED_LINK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace th {

inline constexpr absl::Duration kLongestLinkLatency = absl::Seconds(1);
// On their way in one direction at most: 100 ms of 5 Gbit/s.
inline constexpr size_t kMaxDelayedBytes = size_t{64} << 20;

class DelayedLink {
 public:
  struct Options {
    int network_namespace = -1;  // of both interfaces, which are up
    std::string first, second;
    absl::Duration latency;  // each way
  };
  // INVALID_ARGUMENT: a latency out of bounds. FAILED_PRECONDITION: what the system refuses.
  static absl::StatusOr<std::unique_ptr<DelayedLink>> Start(const Options& options);
  ~DelayedLink();
  DelayedLink(const DelayedLink&) = delete;
  DelayedLink& operator=(const DelayedLink&) = delete;

  // Frames that were lost because too much was on its way.
  uint64_t frames_lost() const { return frames_lost_.load(std::memory_order_relaxed); }

 private:
  explicit DelayedLink(absl::Duration latency) : latency_(latency) {}
  void Run();

  const absl::Duration latency_;
  int sockets_[2] = {-1, -1};
  int end_ = -1;  // readable when it is over
  std::atomic<uint64_t> frames_lost_ = 0;
  std::thread thread_;
};

}  // namespace th

#endif  // TH_PROCESSES_DELAYED_LINK_H_
