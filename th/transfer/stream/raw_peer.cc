#include "th/transfer/stream/raw_peer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "gtest/gtest.h"

namespace th::stream {
namespace {

void MakeBlocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK); }

bool AwaitReadable(int fd) {
  pollfd poll_fd{.fd = fd, .events = POLLIN};
  return poll(&poll_fd, 1, static_cast<int>(absl::ToInt64Milliseconds(testing::kPatience))) > 0;
}

// Header and payload.
std::string SegmentFrame(const testing::TestShard& shard, SegmentIndex segment) {
  const std::string bytes = shard.BytesOf(segment);
  const RawHeader header =
      EncodeSegmentHeader({.segment = segment,
                           .bytes = static_cast<uint32_t>(bytes.size()),
                           .checksum = ChecksumBytes(bytes.data(), bytes.size()),
                           .generation = BufferGeneration(1)});
  return std::string(reinterpret_cast<const char*>(header.data()), header.size()) + bytes;
}

}  // namespace

RawConnection::RawConnection(Socket socket) : socket_(std::move(socket)) {
  MakeBlocking(socket_.fd());
}

RawConnection RawConnection::To(const std::string& address) {
  absl::StatusOr<SocketAddress> parsed = SocketAddress::Parse(address);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return To(*parsed);
}

RawConnection RawConnection::To(const SocketAddress& address) {
  Socket socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(socket.fd(), address.get(), address.size()), 0);
  return RawConnection(std::move(socket));
}

void RawConnection::Send(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = send(fd(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return;  // the peer is gone: tests look at what it said
    sent += static_cast<size_t>(n);
  }
}

std::optional<Frame> RawConnection::Receive() {
  while (true) {
    absl::StatusOr<std::optional<Frame>> frame = parser_.Next();
    if (!frame.ok()) {
      ADD_FAILURE() << frame.status();
      return std::nullopt;
    }
    if (frame->has_value()) return *std::move(*frame);
    char buffer[4096];
    if (!AwaitReadable(fd())) {
      ADD_FAILURE() << "the peer says nothing";
      return std::nullopt;
    }
    const ssize_t got = recv(fd(), buffer, sizeof(buffer), 0);
    if (got <= 0) return std::nullopt;
    parser_.Append(absl::string_view(buffer, static_cast<size_t>(got)));
  }
}

bool RawConnection::AwaitEnd() {
  char buffer[4096];
  while (AwaitReadable(fd())) {
    if (recv(fd(), buffer, sizeof(buffer), 0) <= 0) return true;
  }
  return false;
}

void RawConnection::SayHelloAndOpen(const PullTarget& target, PullNonce nonce, bool joins) {
  Send(Encode(Hello{OwnHello()}));
  Send(Encode(Open{.joins = joins,
                   .nonce = nonce,
                   .capability = target.capability,
                   .generation = target.generation,
                   .layout = target.layout->digest()}));
}

void RawConnection::Admit(BufferGeneration generation) {
  ReceiveA<Open>();
  Send(Encode(Hello{OwnHello()}));
  Send(Encode(Admitted{generation}));
}

void RawConnection::SendSegment(const testing::TestShard& shard, SegmentIndex segment,
                                bool corrupt) {
  std::string frame = SegmentFrame(shard, segment);
  const size_t payload = frame.size() - kFrameHeaderBytes;
  if (corrupt) frame[kFrameHeaderBytes + payload / 2] ^= 16;
  Send(frame);
}

void RawConnection::SendPartOfSegment(const testing::TestShard& shard, SegmentIndex segment,
                                      size_t bytes) {
  Send(SegmentFrame(shard, segment).substr(0, kFrameHeaderBytes + bytes));
}

void RawConnection::SendRestOfSegment(const testing::TestShard& shard, SegmentIndex segment,
                                      size_t bytes) {
  Send(SegmentFrame(shard, segment).substr(kFrameHeaderBytes + bytes));
}

RawSource::RawSource(std::function<void(RawConnection&)> serve)
    : RawSource(*SocketAddress::Parse("127.0.0.1:0"), std::move(serve)) {}

RawSource::RawSource(const SocketAddress& address, std::function<void(RawConnection&)> serve) {
  absl::StatusOr<Socket> listener = ListenOn(address);
  EXPECT_TRUE(listener.ok()) << listener.status();
  listener_ = *std::move(listener);
  MakeBlocking(listener_.fd());
  address_ = SocketAddress::OfSelf(listener_.fd()).ToString();
  thread_ = std::thread([this, serve = std::move(serve)] { Run(serve); });
}

RawSource::~RawSource() {
  {
    absl::MutexLock lock(&mu_);
    over_ = true;
  }
  shutdown(listener_.fd(), SHUT_RDWR);
  thread_.join();
}

void RawSource::StayQuiet() {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&over_));
}

void RawSource::Run(const std::function<void(RawConnection&)>& serve) {
  while (true) {
    const int fd = accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    RawConnection connection{Socket(fd)};
    serve(connection);
  }
}

void ServeShard(RawConnection& connection, const testing::TestShard& shard,
                const std::function<bool(SegmentIndex)>& sends_corrupt) {
  connection.Admit();
  while (const std::optional<Ask> ask = connection.ReceiveA<Ask>()) {
    for (SegmentIndex i = ask->range.begin; i < ask->range.end; i = i.Next()) {
      connection.SendSegment(shard, i, sends_corrupt(i));
    }
  }
}

}  // namespace th::stream
