#include "th/processes/raw_probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

constexpr char kLoopbackCongestionControl[] = "cubic";
// The most pieces of one call (IOV_MAX is 1024).
constexpr size_t kMaxPiecesPerCall = 256;

absl::Status SocketError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("raw probe: ", what, ": ", strerror(errno)));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

bool IsLoopback(const sockaddr_in& address) { return ntohl(address.sin_addr.s_addr) >> 24 == 127; }

// `address`: the sender's.
void Tune(int fd, const sockaddr_in& address) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (!IsLoopback(address)) return;
  // Where it is not to be had the system's choice stays, for the transport too.
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kLoopbackCongestionControl,
             strlen(kLoopbackCongestionControl));
}

std::string CongestionControlOf(int fd) {
  std::array<char, 32> name = {};
  socklen_t size = name.size() - 1;
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) != 0) return "unknown";
  return name.data();
}

absl::StatusOr<sockaddr_in> AddressOf(const std::string& host, uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("raw probe: \"", host, "\" is no IPv4 address such as ", kProbeLoopback));
  }
  return address;
}

// Passes all pieces to `call` (sendmsg or recvmsg), at most kProbeCallBytes at once.
template <typename Call>
absl::Status MoveAll(std::vector<iovec> pieces, absl::string_view what, Call call) {
  size_t first = 0;
  while (first < pieces.size()) {
    std::array<iovec, kMaxPiecesPerCall> some;
    size_t count = 0, bytes = 0;
    for (; first + count < pieces.size() && count < some.size() && bytes < kProbeCallBytes;
         ++count) {
      some[count] = pieces[first + count];
      some[count].iov_len = std::min(some[count].iov_len, kProbeCallBytes - bytes);
      bytes += some[count].iov_len;
    }
    msghdr message = {};
    message.msg_iov = some.data();
    message.msg_iovlen = count;
    const ssize_t moved = call(&message);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return SocketError(what);
    if (moved == 0 && bytes > 0) {
      return absl::UnavailableError(absl::StrCat("raw probe: ", what, ": the other side has gone"));
    }
    for (size_t left = static_cast<size_t>(moved); first < pieces.size();) {
      const size_t taken = std::min(left, pieces[first].iov_len);
      pieces[first].iov_base = static_cast<char*>(pieces[first].iov_base) + taken;
      pieces[first].iov_len -= taken;
      left -= taken;
      if (pieces[first].iov_len > 0) break;
      ++first;
    }
  }
  return absl::OkStatus();
}

absl::Status SendAll(int fd, std::vector<iovec> pieces) {
  return MoveAll(std::move(pieces), "send",
                 [fd](msghdr* message) { return sendmsg(fd, message, MSG_NOSIGNAL); });
}

absl::Status ReceiveAll(int fd, std::vector<iovec> pieces) {
  return MoveAll(std::move(pieces), "receive",
                 [fd](msghdr* message) { return recvmsg(fd, message, 0); });
}

// Which part of the bytes a connection carries.
struct PartRequest {
  uint32_t part = 0;
  uint32_t parts = 0;
};

std::vector<iovec> PiecesOf(const MemoryStream& memory, PartRequest request) {
  return memory.Range(memory.bytes() / request.parts * request.part,
                      request.part + 1 == request.parts
                          ? memory.bytes()
                          : memory.bytes() / request.parts * (request.part + 1));
}

absl::StatusOr<std::string> ReadPart(const MemoryStream& memory, const sockaddr_in& address,
                                     PartRequest request) {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return SocketError("socket");
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return SocketError("connect");
  }
  Tune(socket.get(), address);
  TH_RETURN_IF_ERROR(SendAll(socket.get(), {{.iov_base = &request, .iov_len = sizeof(request)}}));
  TH_RETURN_IF_ERROR(ReceiveAll(socket.get(), PiecesOf(memory, request)));
  return CongestionControlOf(socket.get());
}

}  // namespace

MemoryStream::MemoryStream(std::vector<iovec> pieces) : pieces_(std::move(pieces)) {
  for (const iovec& piece : pieces_) {
    begins_.push_back(bytes_);
    bytes_ += piece.iov_len;
  }
}

std::vector<iovec> MemoryStream::Range(uint64_t begin, uint64_t end) const {
  std::vector<iovec> range;
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), begin);
  for (size_t i = after == begins_.begin() ? 0 : after - begins_.begin() - 1; i < pieces_.size();
       ++i) {
    const uint64_t from = std::max(begin, begins_[i]);
    const uint64_t to = std::min<uint64_t>(end, begins_[i] + pieces_[i].iov_len);
    if (begins_[i] >= end) break;
    if (from >= to) continue;
    range.push_back({.iov_base = static_cast<char*>(pieces_[i].iov_base) + (from - begins_[i]),
                     .iov_len = to - from});
  }
  return range;
}

struct RawProbeSender::State {
  State(const MemoryStream* memory, ProbeShape shape, Descriptor listener, sockaddr_in address)
      : memory(memory), shape(shape), listener(std::move(listener)), address(address) {
    acceptor = std::thread([this] { Accept(); });
  }

  void Accept() {
    for (uint32_t i = 0; i < shape.readers * shape.connections; ++i) {
      const int fd = accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return Note(SocketError("accept"));
      servers.emplace_back([this, fd] { Note(Serve(Descriptor(fd))); });
    }
  }

  absl::Status Serve(Descriptor socket) {
    Tune(socket.get(), address);
    PartRequest request;
    TH_RETURN_IF_ERROR(
        ReceiveAll(socket.get(), {{.iov_base = &request, .iov_len = sizeof(request)}}));
    if (request.part >= request.parts || request.parts > kMaxProbeConnections) {
      return absl::UnavailableError("raw probe: a request for no part");
    }
    return SendAll(socket.get(), PiecesOf(*memory, request));
  }

  void Note(const absl::Status& result) {
    absl::MutexLock lock(&mutex);
    status.Update(result);
  }

  void Join() {
    if (acceptor.joinable()) acceptor.join();
    for (std::thread& server : servers) {
      if (server.joinable()) server.join();
    }
  }

  const MemoryStream* const memory;
  const ProbeShape shape;
  const Descriptor listener;
  const sockaddr_in address;  // listens there
  std::thread acceptor;
  std::deque<std::thread> servers;  // of the acceptor, until it has ended
  absl::Mutex mutex;
  absl::Status status ABSL_GUARDED_BY(mutex);
};

absl::StatusOr<std::unique_ptr<RawProbeSender>> RawProbeSender::Start(const MemoryStream* memory,
                                                                      ProbeShape shape,
                                                                      const std::string& host) {
  const uint64_t connections = uint64_t{shape.readers} * shape.connections;
  if (connections == 0 || connections > kMaxProbeConnections) {
    return absl::InvalidArgumentError(absl::StrCat("raw probe: from 1 to ", kMaxProbeConnections,
                                                   " connections, not ", connections));
  }
  Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  TH_ASSIGN_OR_RETURN(sockaddr_in address, AddressOf(host, 0));
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (listener.get() < 0 || bind(listener.get(), generic, size) != 0 ||
      listen(listener.get(), static_cast<int>(connections)) != 0 ||
      getsockname(listener.get(), generic, &size) != 0) {
    return SocketError("listen");
  }
  return std::unique_ptr<RawProbeSender>(
      new RawProbeSender(std::make_unique<State>(memory, shape, std::move(listener), address)));
}

RawProbeSender::RawProbeSender(std::unique_ptr<State> state) : state_(std::move(state)) {}

RawProbeSender::~RawProbeSender() {
  shutdown(state_->listener.get(), SHUT_RDWR);  // wakes the acceptor
  state_->Join();
}

uint16_t RawProbeSender::port() const { return ntohs(state_->address.sin_port); }

absl::Status RawProbeSender::Await() {
  state_->Join();
  absl::MutexLock lock(&state_->mutex);
  return state_->status;
}

absl::StatusOr<std::string> ReadRawProbe(const MemoryStream& memory, uint16_t port,
                                         uint32_t connections, const std::string& host) {
  if (connections == 0 || connections > kMaxProbeConnections) {
    return absl::InvalidArgumentError("raw probe: no such number of connections");
  }
  TH_ASSIGN_OR_RETURN(const sockaddr_in address, AddressOf(host, port));
  std::vector<absl::StatusOr<std::string>> results(connections, absl::UnknownError("not run"));
  std::vector<std::thread> readers;
  for (uint32_t i = 0; i < connections; ++i) {
    readers.emplace_back(
        [&, i] { results[i] = ReadPart(memory, address, {.part = i, .parts = connections}); });
  }
  for (std::thread& reader : readers) reader.join();
  for (const absl::StatusOr<std::string>& result : results) {
    if (!result.ok()) return result.status();
  }
  return results.front();
}

}  // namespace th
