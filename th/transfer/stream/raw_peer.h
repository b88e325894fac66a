// Peers that speak the data protocol by hand, to do what no transport of ours would. Blocking
// sockets.
#ifndef TH_TRANSFER_STREAM_RAW_PEER_H_
#define TH_TRANSFER_STREAM_RAW_PEER_H_

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "th/protocol/messages.h"
#include "th/transfer/stream/frames.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/test_peers.h"

namespace th::stream {

// One connection, either side.
class RawConnection {
 public:
  explicit RawConnection(Socket socket);
  // Connects to `address`, a transport's endpoint.
  static RawConnection To(const std::string& address);
  static RawConnection To(const SocketAddress& address);

  void Send(const std::string& bytes);
  // The next frame; nullopt at the end of the stream.
  std::optional<Frame> Receive();
  // The next frame of type T; skips others. nullopt at the end.
  template <typename T>
  std::optional<T> ReceiveA() {
    while (std::optional<Frame> frame = Receive()) {
      if (const T* wanted = std::get_if<T>(&*frame)) return *wanted;
    }
    return std::nullopt;
  }
  // Waits until the peer closes. False when it does not in time.
  bool AwaitEnd();
  // A reader's first words.
  void SayHelloAndOpen(const PullTarget& target, PullNonce nonce = {}, bool joins = false);
  // A source's: reads the greeting and the wish, greets and admits.
  void Admit(BufferGeneration generation = BufferGeneration(1));
  // Sends `segment` of `shard`; with a bit flipped on its way when `corrupt`.
  void SendSegment(const testing::TestShard& shard, SegmentIndex segment, bool corrupt = false);
  // Its header and the first `bytes` of it.
  void SendPartOfSegment(const testing::TestShard& shard, SegmentIndex segment, size_t bytes);
  // Sends what is left of the segment after its first `bytes` bytes.
  void SendRestOfSegment(const testing::TestShard& shard, SegmentIndex segment, size_t bytes);
  int fd() const { return socket_.fd(); }

 private:
  Socket socket_;
  FrameParser parser_;
};

// Listens, and runs `serve` for one connection after the other on a thread of its own.
class RawSource {
 public:
  explicit RawSource(std::function<void(RawConnection&)> serve);  // at a port of loopback
  RawSource(const SocketAddress& address, std::function<void(RawConnection&)> serve);
  ~RawSource();
  std::string address() const { return address_; }
  // Returns when the test is over; for `serve`. Holding the connection open and saying nothing is
  // what a stopped process does.
  void StayQuiet();

 private:
  void Run(const std::function<void(RawConnection&)>& serve);

  Socket listener_;
  std::string address_;
  absl::Mutex mu_;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// Admits, and serves `shard` honestly but for what `sends_corrupt` says; until the reader goes.
void ServeShard(RawConnection& connection, const testing::TestShard& shard,
                const std::function<bool(SegmentIndex)>& sends_corrupt);

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_RAW_PEER_H_
