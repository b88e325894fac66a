#include "th/processes/delayed_link.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

// A frame with its offload header: the kernel's largest is 64 KiB and headers.
constexpr size_t kLargestFrame = size_t{80} << 10;
// This much may arrive while the thread does not run: 10 ms of 5 Gbit/s.
constexpr int kSocketBufferBytes = 8 << 20;
// Taken from one interface before the other has its turn.
constexpr int kFramesATurn = 64;

absl::Status Refused(absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot make a delayed link: ", what, ": ", strerror(errno)));
}

// A socket that hears every frame that arrives at the interface, with its offload header.
absl::Status Listen(int socket, const std::string& interface) {
  const int on = 1;
  const unsigned index = if_nametoindex(interface.c_str());
  if (index == 0) return Refused(interface);
  if (setsockopt(socket, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof(on)) != 0 ||
      setsockopt(socket, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof(on)) != 0) {
    return Refused("the socket's options");
  }
  // Best effort: a process without the right to it has the system's limit.
  (void)setsockopt(socket, SOL_SOCKET, SO_RCVBUFFORCE, &kSocketBufferBytes, sizeof(int));
  sockaddr_ll address = {};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(index);
  if (bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Refused(absl::StrCat("bind to ", interface));
  }
  return absl::OkStatus();
}

absl::Status Open(const DelayedLink::Options& options, int* sockets) {
  if (setns(options.network_namespace, CLONE_NEWNET) != 0) return Refused("setns");
  const std::string* const interfaces[] = {&options.first, &options.second};
  for (int side = 0; side < 2; ++side) {
    sockets[side] = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (sockets[side] < 0) return Refused("a packet socket");
    TH_RETURN_IF_ERROR(Listen(sockets[side], *interfaces[side]));
  }
  return absl::OkStatus();
}

// One direction: frames in the order in which they arrived.
class Way {
 public:
  Way(int from, int to) : from_(from), to_(to) {}

  // Returns how many were lost for want of room.
  uint64_t Take(absl::Time now, absl::Duration latency) {
    uint64_t lost = 0;
    for (int i = 0; i < kFramesATurn; ++i) {
      const ssize_t size = recv(from_, buffer_.data(), buffer_.size(), 0);
      if (size <= 0) break;
      const auto bytes = static_cast<size_t>(size);
      if (bytes_ + bytes > kMaxDelayedBytes) {
        ++lost;
        continue;
      }
      bytes_ += bytes;
      frames_.push_back(
          {now + latency, std::vector<char>(buffer_.begin(), buffer_.begin() + size)});
    }
    return lost;
  }

  // Sends what is due. A frame that the interface does not take is lost, as on a link.
  void Pass(absl::Time now) {
    while (!frames_.empty() && frames_.front().due <= now) {
      const std::vector<char>& frame = frames_.front().bytes;
      (void)send(to_, frame.data(), frame.size(), 0);
      bytes_ -= frame.size();
      frames_.pop_front();
    }
  }

  absl::Time due() const { return frames_.empty() ? absl::InfiniteFuture() : frames_.front().due; }

 private:
  struct Frame {
    absl::Time due;
    std::vector<char> bytes;
  };
  const int from_, to_;
  std::vector<char> buffer_ = std::vector<char>(kLargestFrame);
  std::deque<Frame> frames_;
  size_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DelayedLink>> DelayedLink::Start(const Options& options) {
  if (options.latency < absl::ZeroDuration() || options.latency > kLongestLinkLatency) {
    return absl::InvalidArgumentError(
        absl::StrCat("a link's latency is from 0 to ", absl::FormatDuration(kLongestLinkLatency),
                     ", not ", absl::FormatDuration(options.latency)));
  }
  std::unique_ptr<DelayedLink> link(new DelayedLink(options.latency));
  link->end_ = eventfd(0, EFD_CLOEXEC);
  if (link->end_ < 0) return Refused("eventfd");
  absl::Status opened;
  // In a thread that ends in that namespace: this one stays where it is.
  std::thread([&] { opened = Open(options, link->sockets_); }).join();
  TH_RETURN_IF_ERROR(opened);
  link->thread_ = std::thread([link = link.get()] { link->Run(); });
  return link;
}

void DelayedLink::Run() {
  std::array<Way, 2> ways = {Way(sockets_[0], sockets_[1]), Way(sockets_[1], sockets_[0])};
  for (;;) {
    const absl::Duration left = std::min(ways[0].due(), ways[1].due()) - MonotonicNow();
    const timespec wait = absl::ToTimespec(std::max(left, absl::ZeroDuration()));
    pollfd waited[] = {{.fd = sockets_[0], .events = POLLIN, .revents = 0},
                       {.fd = sockets_[1], .events = POLLIN, .revents = 0},
                       {.fd = end_, .events = POLLIN, .revents = 0}};
    ppoll(waited, std::size(waited), left == absl::InfiniteDuration() ? nullptr : &wait, nullptr);
    if (waited[2].revents != 0) return;
    const absl::Time now = MonotonicNow();
    for (Way& way : ways) {
      frames_lost_.fetch_add(way.Take(now, latency_), std::memory_order_relaxed);
      way.Pass(now);
    }
  }
}

DelayedLink::~DelayedLink() {
  if (thread_.joinable()) {
    const uint64_t over = 1;
    (void)!write(end_, &over, sizeof(over));
    thread_.join();
  }
  for (const int fd : {sockets_[0], sockets_[1], end_}) {
    if (fd >= 0) close(fd);
  }
}

}  // namespace th
