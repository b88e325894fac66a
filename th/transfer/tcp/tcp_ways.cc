#include "th/transfer/tcp/tcp_ways.h"

#include <fcntl.h>
#include <linux/errqueue.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "th/status/status_macros.h"

namespace th::stream {
namespace {

// The bytes that the transport sums at a time: a segment.
constexpr size_t kHandedBytes = size_t{256} << 10;
constexpr uint32_t kMaxConnections = 64;
constexpr uint32_t kMaxKib = 1 << 20;

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "tcp_ways: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

// A connection's part of the buffer, and how far it has got.
struct Stripe {
  int socket = -1;
  char* data = nullptr;
  uint64_t bytes = 0;
  uint64_t done = 0;
  bool finished() const { return done == bytes; }
  size_t NextBytes(const TcpSettings& settings) const {
    return std::min<uint64_t>(settings.request_bytes, bytes - done);
  }
};

std::vector<Stripe> StripesOf(absl::Span<const int> sockets, TcpBuffer buffer) {
  std::vector<Stripe> stripes;
  const uint64_t each = buffer.bytes / sockets.size();
  for (size_t i = 0; i < sockets.size(); ++i) {
    const bool last = i + 1 == sockets.size();
    stripes.push_back({.socket = sockets[i],
                       .data = buffer.data + i * each,
                       .bytes = last ? buffer.bytes - i * each : each});
  }
  return stripes;
}

// Runs `loop` for every settings.loops-th stripe, on as many threads.
void OnLoops(const TcpSettings& settings, std::vector<Stripe>& stripes,
             const std::function<void(std::vector<Stripe*>)>& loop) {
  const bool blocking =
      settings.way == TcpWay::kBlocking || settings.way == TcpWay::kBlockingZeroCopy;
  const size_t loops = blocking ? stripes.size() : std::min<size_t>(settings.loops, stripes.size());
  std::vector<std::vector<Stripe*>> shares(loops);
  for (size_t i = 0; i < stripes.size(); ++i) shares[i % loops].push_back(&stripes[i]);
  std::vector<std::thread> threads;
  threads.reserve(loops);
  for (const std::vector<Stripe*>& share : shares)
    threads.emplace_back([&loop, &share] { loop(share); });
  for (std::thread& thread : threads) thread.join();
}

using OnBytes = absl::FunctionRef<void(const char*, size_t)>;

void HandOver(OnBytes on_bytes, const char* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t part = std::min(kHandedBytes, bytes - done);
    on_bytes(data + done, part);
    done += part;
  }
}

void SetNonblocking(int socket, bool nonblocking) {
  const int flags = fcntl(socket, F_GETFL);
  if (fcntl(socket, F_SETFL, nonblocking ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) != 0) {
    Die("fcntl");
  }
}

// ---- a thread for each connection

// Reads the kernel's words on sends with MSG_ZEROCOPY that it has done with; waits for the first.
uint64_t TakeZeroCopyEnds(int socket, ZeroCopies* zero_copies) {
  pollfd error{.fd = socket, .events = 0, .revents = 0};
  if (poll(&error, 1, -1) < 0) Die("poll");
  uint64_t ended = 0;
  while (true) {
    char control[128];
    msghdr message{};
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    if (recvmsg(socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
      if (errno == EAGAIN) return ended;
      Die("recvmsg of the error queue");
    }
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    if (header == nullptr) Die("no end of a send");
    sock_extended_err end{};
    std::memcpy(&end, CMSG_DATA(header), sizeof(end));
    const uint64_t count = uint64_t{end.ee_data} - end.ee_info + 1;
    ended += count;
    if ((end.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0) zero_copies->copied += count;
  }
}

void SendBlocking(const TcpSettings& settings, Stripe& stripe, ZeroCopies* zero_copies) {
  const bool zero_copy = settings.way == TcpWay::kBlockingZeroCopy;
  const int on = 1;
  if (zero_copy && setsockopt(stripe.socket, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) != 0) {
    Die("SO_ZEROCOPY");
  }
  uint64_t sends = 0, ended = 0;
  while (!stripe.finished()) {
    const ssize_t sent = send(stripe.socket, stripe.data + stripe.done, stripe.NextBytes(settings),
                              MSG_NOSIGNAL | (zero_copy ? MSG_ZEROCOPY : 0));
    // The kernel has no room to note more sends that are under way.
    if (sent < 0 && errno == ENOBUFS && zero_copy) {
      ended += TakeZeroCopyEnds(stripe.socket, zero_copies);
      continue;
    }
    if (sent <= 0) Die("send");
    stripe.done += static_cast<uint64_t>(sent);
    ++sends;
  }
  if (!zero_copy) return;
  zero_copies->sends += sends;
  while (ended < sends) ended += TakeZeroCopyEnds(stripe.socket, zero_copies);
}

void ReceiveBlocking(const TcpSettings& settings, Stripe& stripe, OnBytes on_bytes) {
  while (!stripe.finished()) {
    char* const at = stripe.data + stripe.done;
    const ssize_t got = recv(stripe.socket, at, stripe.NextBytes(settings), 0);
    if (got <= 0) Die("recv");
    HandOver(on_bytes, at, static_cast<size_t>(got));
    stripe.done += static_cast<uint64_t>(got);
  }
}

// ---- loops over sockets that do not block

// `move` returns what its call returned, negative with errno.
void EpollLoop(const std::vector<Stripe*>& share, uint32_t events,
               const std::function<ssize_t(Stripe&)>& move) {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) Die("epoll_create1");
  size_t open = 0;
  for (Stripe* const stripe : share) {
    if (stripe->finished()) continue;
    SetNonblocking(stripe->socket, true);
    epoll_event event{.events = events, .data = {.ptr = stripe}};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, stripe->socket, &event) != 0) Die("epoll_ctl");
    ++open;
  }
  while (open > 0) {
    epoll_event ready[kMaxConnections];
    const int count = epoll_wait(epoll, ready, kMaxConnections, -1);
    if (count < 0 && errno != EINTR) Die("epoll_wait");
    for (int i = 0; i < count; ++i) {
      Stripe& stripe = *static_cast<Stripe*>(ready[i].data.ptr);
      const ssize_t moved = move(stripe);
      if (moved < 0 && errno == EAGAIN) continue;
      if (moved <= 0) Die("send or recv");
      stripe.done += static_cast<uint64_t>(moved);
      if (!stripe.finished()) continue;
      epoll_ctl(epoll, EPOLL_CTL_DEL, stripe.socket, nullptr);
      SetNonblocking(stripe.socket, false);
      --open;
    }
  }
  close(epoll);
}

// ---- io_uring

constexpr uint32_t kReportUsage = 1U << 3;   // IORING_SEND_ZC_REPORT_USAGE, of Linux 6.2
constexpr int32_t kUsageCopied = INT32_MIN;  // IORING_NOTIF_USAGE_ZC_COPIED

// As much of io_uring as one request for each connection needs.
class Ring {
 public:
  explicit Ring(uint32_t entries) {
    io_uring_params params{};
    fd_ = static_cast<int>(syscall(__NR_io_uring_setup, entries, &params));
    if (fd_ < 0) Die("io_uring_setup");
    if ((params.features & IORING_FEAT_SINGLE_MMAP) == 0) Die("io_uring without a single mapping");
    const size_t bytes =
        std::max<size_t>(params.sq_off.array + params.sq_entries * sizeof(uint32_t),
                         params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
    char* const rings = static_cast<char*>(Map(bytes, IORING_OFF_SQ_RING));
    sqes_ =
        static_cast<io_uring_sqe*>(Map(params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
    sq_tail_ = reinterpret_cast<uint32_t*>(rings + params.sq_off.tail);
    sq_mask_ = *reinterpret_cast<uint32_t*>(rings + params.sq_off.ring_mask);
    sq_array_ = reinterpret_cast<uint32_t*>(rings + params.sq_off.array);
    cq_head_ = reinterpret_cast<uint32_t*>(rings + params.cq_off.head);
    cq_tail_ = reinterpret_cast<uint32_t*>(rings + params.cq_off.tail);
    cq_mask_ = *reinterpret_cast<uint32_t*>(rings + params.cq_off.ring_mask);
    cqes_ = reinterpret_cast<io_uring_cqe*>(rings + params.cq_off.cqes);
  }
  ~Ring() {
    for (const auto& [address, bytes] : mapped_) munmap(address, bytes);
    close(fd_);
  }

  io_uring_sqe& Add() {
    const uint32_t tail = *sq_tail_;
    io_uring_sqe& sqe = sqes_[tail & sq_mask_];
    sqe = {};
    sq_array_[tail & sq_mask_] = tail & sq_mask_;
    std::atomic_ref(*sq_tail_).store(tail + 1, std::memory_order_release);
    ++added_;
    return sqe;
  }
  // Submits what was added, and waits for one end at least.
  template <typename Handle>
  void Wait(const Handle& handle) {
    while (syscall(__NR_io_uring_enter, fd_, added_, 1, IORING_ENTER_GETEVENTS, nullptr, 0) < 0) {
      if (errno != EINTR) Die("io_uring_enter");
    }
    added_ = 0;
    uint32_t head = *cq_head_;
    for (; head != std::atomic_ref(*cq_tail_).load(std::memory_order_acquire); ++head) {
      const io_uring_cqe end = cqes_[head & cq_mask_];
      std::atomic_ref(*cq_head_).store(head + 1, std::memory_order_release);
      handle(end);
    }
  }

 private:
  void* Map(size_t bytes, off_t offset) {
    void* const address =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, offset);
    if (address == MAP_FAILED) Die("mmap of io_uring");
    mapped_[address] = bytes;
    return address;
  }

  int fd_ = -1;
  std::map<void*, size_t> mapped_;
  io_uring_sqe* sqes_ = nullptr;
  uint32_t* sq_tail_ = nullptr;
  uint32_t* sq_array_ = nullptr;
  uint32_t* cq_head_ = nullptr;
  uint32_t* cq_tail_ = nullptr;
  io_uring_cqe* cqes_ = nullptr;
  uint32_t sq_mask_ = 0;
  uint32_t cq_mask_ = 0;
  uint32_t added_ = 0;
};

// The kernel goes on by itself until a request is done (MSG_WAITALL).
void UringLoop(const TcpSettings& settings, const std::vector<Stripe*>& share, uint8_t operation,
               ZeroCopies* zero_copies, const OnBytes* on_bytes) {
  Ring ring(kMaxConnections);
  const auto ask = [&](Stripe& stripe) {
    io_uring_sqe& sqe = ring.Add();
    sqe.opcode = operation;
    sqe.fd = stripe.socket;
    sqe.addr = reinterpret_cast<uint64_t>(stripe.data + stripe.done);
    sqe.len = static_cast<uint32_t>(stripe.NextBytes(settings));
    sqe.msg_flags = MSG_WAITALL | (operation == IORING_OP_RECV ? 0 : MSG_NOSIGNAL);
    if (operation == IORING_OP_SEND_ZC) sqe.ioprio = kReportUsage;
    sqe.user_data = reinterpret_cast<uint64_t>(&stripe);
  };
  size_t under_way = 0;
  for (Stripe* const stripe : share) {
    if (stripe->finished()) continue;
    ask(*stripe);
    ++under_way;
  }
  const auto handle = [&](const io_uring_cqe& end) {
    if ((end.flags & IORING_CQE_F_NOTIF) != 0) {
      if (end.res == kUsageCopied) ++zero_copies->copied;
      --under_way;
      return;
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): what `ask` gave.
    Stripe& stripe = *reinterpret_cast<Stripe*>(end.user_data);
    if (end.res <= 0) {
      errno = -end.res;
      Die("io_uring send or recv");
    }
    const bool notified = (end.flags & IORING_CQE_F_MORE) != 0;
    if (notified) ++zero_copies->sends;
    if (on_bytes != nullptr) {
      HandOver(*on_bytes, stripe.data + stripe.done, static_cast<size_t>(end.res));
    }
    stripe.done += static_cast<uint64_t>(end.res);
    if (notified) ++under_way;  // until the kernel is done with the bytes
    if (stripe.finished()) {
      --under_way;
    } else {
      ask(stripe);
    }
  };
  while (under_way > 0) ring.Wait(handle);
}

// One part of a text of settings: a number from `least` to `most`. Absent: what it is already.
absl::Status ReadPart(const std::vector<std::string>& parts, size_t place, const char* name,
                      uint32_t least, uint32_t most, uint32_t* number) {
  if (place >= parts.size()) return absl::OkStatus();
  uint32_t given = 0;
  if (absl::SimpleAtoi(parts[place], &given) && given >= least && given <= most) {
    *number = given;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", parts[place], "' is no number of ", name, " from ", least, " to ", most));
}

}  // namespace

absl::StatusOr<TcpSettings> ParseTcpSettings(const std::string& text) {
  static const auto* const ways =
      new std::map<std::string, TcpWay>{{"blocking", TcpWay::kBlocking},
                                        {"blocking-zerocopy", TcpWay::kBlockingZeroCopy},
                                        {"epoll", TcpWay::kEpoll},
                                        {"uring", TcpWay::kUring},
                                        {"uring-zerocopy", TcpWay::kUringZeroCopy}};
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  const auto way = ways->find(parts[0]);
  if (way == ways->end() || parts.size() > 6) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text,
                     "' is not of the form WAY/CONNECTIONS/LOOPS/REQUEST_KIB/"
                     "SEND_BUFFER_KIB/CONGESTION_CONTROL with WAY one of blocking, "
                     "blocking-zerocopy, epoll, uring, uring-zerocopy"));
  }
  TcpSettings settings{.way = way->second};
  uint32_t request_kib = settings.request_bytes >> 10,
           buffer_kib = settings.send_buffer_bytes >> 10;
  TH_RETURN_IF_ERROR(ReadPart(parts, 1, "connections", 1, kMaxConnections, &settings.connections));
  settings.loops = settings.connections;
  TH_RETURN_IF_ERROR(ReadPart(parts, 2, "loops", 1, kMaxConnections, &settings.loops));
  TH_RETURN_IF_ERROR(ReadPart(parts, 3, "KiB a request", 1, kMaxKib, &request_kib));
  TH_RETURN_IF_ERROR(ReadPart(parts, 4, "KiB of send buffer", 0, kMaxKib, &buffer_kib));
  settings.request_bytes = request_kib << 10;
  settings.send_buffer_bytes = buffer_kib << 10;
  if (parts.size() > 5) {
    if (parts[5].empty() || parts[5].size() >= sizeof(settings.congestion_control)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", parts[5], "' is no congestion control: a name of 1 to ",
                       sizeof(settings.congestion_control) - 1, " characters"));
    }
    std::strcpy(settings.congestion_control, parts[5].c_str());
  }
  return settings;
}

ZeroCopies SendStripes(const TcpSettings& settings, absl::Span<const int> sockets,
                       TcpBuffer buffer) {
  std::vector<Stripe> stripes = StripesOf(sockets, buffer);
  std::atomic<uint64_t> sends{0}, copied{0};
  OnLoops(settings, stripes, [&](const std::vector<Stripe*>& share) {
    ZeroCopies zero_copies;
    switch (settings.way) {
      case TcpWay::kBlocking:
      case TcpWay::kBlockingZeroCopy:
        for (Stripe* const stripe : share) SendBlocking(settings, *stripe, &zero_copies);
        break;
      case TcpWay::kEpoll:
        EpollLoop(share, EPOLLOUT, [&](Stripe& stripe) {
          return send(stripe.socket, stripe.data + stripe.done, stripe.NextBytes(settings),
                      MSG_NOSIGNAL);
        });
        break;
      case TcpWay::kUring:
        UringLoop(settings, share, IORING_OP_SEND, &zero_copies, nullptr);
        break;
      case TcpWay::kUringZeroCopy:
        UringLoop(settings, share, IORING_OP_SEND_ZC, &zero_copies, nullptr);
        break;
    }
    sends += zero_copies.sends;
    copied += zero_copies.copied;
  });
  return {.sends = sends, .copied = copied};
}

void ReceiveStripes(const TcpSettings& settings, absl::Span<const int> sockets, TcpBuffer buffer,
                    OnBytes on_bytes) {
  std::vector<Stripe> stripes = StripesOf(sockets, buffer);
  OnLoops(settings, stripes, [&](const std::vector<Stripe*>& share) {
    switch (settings.way) {
      case TcpWay::kBlocking:
      case TcpWay::kBlockingZeroCopy:
        for (Stripe* const stripe : share) ReceiveBlocking(settings, *stripe, on_bytes);
        break;
      case TcpWay::kEpoll:
        EpollLoop(share, EPOLLIN, [&](Stripe& stripe) {
          char* const at = stripe.data + stripe.done;
          const ssize_t got = recv(stripe.socket, at, stripe.NextBytes(settings), 0);
          if (got > 0) HandOver(on_bytes, at, static_cast<size_t>(got));
          return got;
        });
        break;
      case TcpWay::kUring:
      case TcpWay::kUringZeroCopy:
        UringLoop(settings, share, IORING_OP_RECV, nullptr, &on_bytes);
        break;
    }
  });
}

}  // namespace th::stream
