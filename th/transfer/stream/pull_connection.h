// One connection of a pull: connects out, is admitted, asks, and receives segments straight into
// their destination, through the socket or out of the source's memory.
//
//   connecting -> opening -> open -> closed
//
// Where segments are read out of the source's memory, opening includes the probe of that memory. A
// segment that is copied from there counts only if the buffer's ControlBlock, read after the bytes,
// still holds the generation and the life of the admission. A reader process that was stopped while
// its source ended the transfer and wrote the memory anew therefore never accepts the new bytes.
//
// Owned by the loop that watches it; every method runs on that loop unless said otherwise.
#ifndef TH_TRANSFER_STREAM_PULL_CONNECTION_H_
#define TH_TRANSFER_STREAM_PULL_CONNECTION_H_

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/transfer/stream/event_loop.h"
#include "th/transfer/stream/frames.h"
#include "th/transfer/stream/medium.h"
#include "th/transfer/stream/peer_memory.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/transport.h"
#include "th/weights/request_queue.h"

namespace th::stream {

// What the connections of a pull tell it. Called on their loops.
class PullConnectionOwner {
 public:
  virtual ~PullConnectionOwner() = default;
  virtual void OnConnectionAdmitted(uint32_t connection, BufferGeneration generation,
                                    bool lists_sums) = 0;
  virtual void OnConnectionSums(SegmentIndex first, absl::Span<const SegmentSum> sums) = 0;
  virtual bool OnConnectionSegmentBegins(SegmentIndex segment, std::vector<iovec>* iov) = 0;
  // `landed`: its bytes were wanted; else they were thrown away.
  virtual void OnConnectionSegment(uint32_t connection, const SegmentHeader& header, bool landed,
                                   SegmentSum computed) = 0;
  virtual void OnConnectionAlive() = 0;
  // The last call of this connection; it touches no memory of the sink any more.
  // `said`: the source has said that it sends no more, after whole segments.
  virtual void OnConnectionClosed(uint32_t connection, SourceFailure failure,
                                  const std::string& detail, bool said) = 0;
};

class PullConnection : public EventLoop::Handler,
                       public std::enable_shared_from_this<PullConnection> {
 public:
  struct Setup {
    uint32_t number = 0;  // within the pull
    SocketAddress address;
    Open open;
    std::shared_ptr<const Medium> medium;  // of the transport
    std::shared_ptr<const ShardLayout> layout;
    std::shared_ptr<ExtraBytes> extra_bytes;           // of the pull's fill
    std::shared_ptr<std::atomic<uint64_t>> cut_bytes;  // likewise
    TransportLimits limits;
  };
  // Shares its owner until it is closed.
  PullConnection(Setup setup, std::shared_ptr<EventLoop> loop,
                 std::shared_ptr<PullConnectionOwner> owner);

  void Start();
  void SendAsk(SegmentRange range);
  void SendAskSums();
  void SendFinish();
  void Shut(SourceFailure failure, std::string detail, bool said = false);
  void OnReady(uint32_t events) override;
  void OnLoopStops() override { Shut(SourceFailure::kClosed, "the transport was shut down"); }

  EventLoop& loop() { return *loop_; }  // any thread

 private:
  enum class State : uint8_t { kConnecting, kOpening, kOpen, kClosed };

  void FinishConnect();
  void WatchOpening();
  void Send(std::string bytes);
  void Flush();
  void WatchFor(uint32_t events);

  // Receiving: header, then the body of a control frame or the payload of a segment.
  void ReadSome();
  ssize_t Receive(size_t* wanted);
  void Consume(size_t bytes);
  void ConsumePayload(size_t bytes);
  void ConsumeHeader(size_t bytes);
  void ConsumeBody(size_t bytes);
  absl::Status HandleHeader();
  absl::Status HandleFrame(const Frame& frame);
  absl::Status HandleMemory(const Memory& memory);
  absl::Status HandleAdmitted(const Admitted& admitted);
  absl::Status TakeSums(const Sums& sums);
  absl::Status BeginSegment(const SegmentHeader& header);
  absl::Status ReadLocated(const Located& located);
  bool ReadPieces(const Located& located);
  bool SourceStillServes();
  // An error unless it was asked, and is as long as it has to be.
  absl::Status TakeSegment(const SegmentHeader& header);
  void FinishSegment();
  SegmentSum SumOfLanded() const;
  void NoteAlive(absl::Time now);
  // Tells what this connection holds beside the destination; after anything that may change it.
  void CountExtraBytes();

  const Setup setup_;
  const std::shared_ptr<EventLoop> loop_;
  std::shared_ptr<PullConnectionOwner> owner_;

  State state_ = State::kConnecting;
  Socket socket_;
  uint32_t events_ = 0;
  std::string unsent_;
  bool greeted_ = false;
  std::optional<PeerMemory> memory_;   // set by the source's Memory, once the probe has succeeded
  std::optional<MemoryWord> control_;  // set at the admission, where memory_ is set
  BufferGeneration generation_;
  bool lists_sums_ = false;  // as the source's Hello says
  RequestQueue asked_;
  SegmentRange sums_asked_;  // that have not come
  absl::Time started_at_, heard_at_, told_alive_at_, opening_tick_at_;

  RawHeader raw_header_{};
  size_t header_have_ = 0;
  FrameHeader header_;
  std::string body_;
  size_t body_left_ = 0;
  SegmentHeader segment_;
  bool landing_ = false;            // the payload is wanted
  std::vector<iovec> destination_;  // of the whole segment
  size_t piece_ = 0;                // where in it the next byte goes
  size_t piece_offset_ = 0;
  uint64_t payload_left_ = 0;
  std::vector<iovec> receive_iov_;
  size_t bytes_copied_ = 0;  // from the source's memory since the last Receive; part of the turn
  uint64_t extra_bytes_told_ = 0;
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_PULL_CONNECTION_H_
