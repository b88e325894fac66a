// One connection of a pull: connects out, is admitted, asks, and receives segments straight into
// their destination, through the socket or out of the source's memory.
//
//   connecting -> opening -> open -> closed
//
// Where a GPU of this process is still at a destination when the connection is closed, its owner
// is told once that has ended: the loop does not wait for it, but looks again now and then. Until
// then the owner hears that this process is alive, and asks this connection for nothing more. A GPU
// that has ended nothing for TransportLimits::own_copy_timeout hangs: the owner is told, and a
// connection that is closed does not wait for it.
//
// Where segments are read out of the source's memory (RemoteMemory), opening includes making that
// memory readable; LocatedReads decides which of what is read counts.
//
// Owned by the loop that watches it; every method runs on that loop unless said otherwise.
#ifndef TH_TRANSFER_STREAM_PULL_CONNECTION_H_
#define TH_TRANSFER_STREAM_PULL_CONNECTION_H_

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/pipeline_replicator/request_queue.h"
#include "th/transfer/stream/event_loop.h"
#include "th/transfer/stream/frames.h"
#include "th/transfer/stream/located_reads.h"
#include "th/transfer/stream/medium.h"
#include "th/transfer/stream/remote_memory.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/transport.h"

namespace th::stream {

// The ways in which a connection ends.
enum class ConnectionEnd : uint8_t {
  kBroken,      // by an error, or because it was told to
  kSaid,        // the source has said that it sends no more, after whole segments
  kMemoryLost,  // the source's memory cannot be read over it (any more); its socket was well
  kWayLost,     // likewise, and another connection would read over other devices
};

// Hears the connections of a pull, on their loops.
class PullConnectionOwner {
 public:
  virtual ~PullConnectionOwner() = default;
  virtual void OnConnectionAdmitted(uint32_t connection, BufferGeneration generation,
                                    bool lists_checksums) = 0;
  virtual void OnConnectionChecksums(SegmentIndex first,
                                     absl::Span<const SegmentChecksum> checksums) = 0;
  // `writer`: the bytes can be written to device memory too, where it can; null: they cannot.
  virtual bool OnConnectionSegmentBegins(SegmentIndex segment, RemoteMemory* writer,
                                         std::vector<iovec>* iov) = 0;
  // `landed`: its bytes were wanted; else they were thrown away.
  virtual void OnConnectionSegment(uint32_t connection, const SegmentHeader& header, bool landed,
                                   SegmentChecksum computed) = 0;
  virtual void OnConnectionAlive() = 0;
  virtual void OnConnectionMapped(absl::StatusOr<std::shared_ptr<const MappedShard>> shard) = 0;
  virtual void OnConnectionDeviceHangs(absl::Status why) = 0;
  // It answers no request any more; what it owes is told of with OnConnectionClosed.
  virtual void OnConnectionShut(uint32_t connection) = 0;
  // The last call of this connection; it touches no memory of the sink any more.
  virtual void OnConnectionClosed(uint32_t connection, SourceFailure failure,
                                  const std::string& detail, ConnectionEnd end) = 0;
};

class PullConnection : public EventLoop::Handler,
                       public std::enable_shared_from_this<PullConnection> {
 public:
  struct Setup {
    uint32_t number = 0;  // within the pull
    // It takes over for one that has lost its way to the source's memory. Until it knows whether
    // its own is better the owner hears that this process is alive: the source has nothing to say.
    bool takes_over = false;
    SocketAddress address;
    Open open;
    std::shared_ptr<const Medium> medium;  // of the transport
    std::shared_ptr<const ShardLayout> layout;
    // As of PullTarget.
    std::shared_ptr<const std::vector<MemoryRegion>> into;
    std::function<std::shared_ptr<const void>(std::string device)> begin_device_write;
    std::shared_ptr<ExtraBytes> extra_bytes;                        // of the pull's fill
    std::shared_ptr<std::atomic<uint64_t>> cut_bytes;               // likewise
    std::shared_ptr<std::atomic<uint64_t>> packing_overhead_bytes;  // likewise
    TransportLimits limits;
  };
  // Shares its owner until it is closed.
  PullConnection(Setup setup, std::shared_ptr<EventLoop> loop,
                 std::shared_ptr<PullConnectionOwner> owner);

  void Start();
  void SendAsk(SegmentRange range);
  void SendAskChecksums(SegmentRange range);
  void SendAskMapping();
  void SendFinish();
  void Shut(SourceFailure failure, std::string detail, ConnectionEnd end = ConnectionEnd::kBroken);
  void OnReady(uint32_t events) override;
  void OnLoopStops() override;

  EventLoop& loop() { return *loop_; }  // any thread

 private:
  enum class State : uint8_t { kConnecting, kOpening, kOpen, kClosed };
  // The sink hears of life this often at most while a segment trickles in.
  static constexpr absl::Duration kAliveInterval = absl::Milliseconds(50);
  class MemoryWatch;

  void FinishConnect();
  void WatchOpening();
  void Send(std::string bytes);
  void Queue(std::string bytes);  // for the next Flush
  void Flush();
  void WatchFor(uint32_t events);

  // ---- pull_connection_receiving.cc: header, then the body of a control frame or the payload of a
  // segment.
  void ReadSome();
  ssize_t Receive(size_t* wanted);
  ssize_t ReceiveControl(size_t* wanted);
  void ConsumeBuffered(absl::Span<const char> received);
  void CopyToDestination(absl::Span<const char> payload);
  void Consume(size_t bytes);
  void ConsumePayload(size_t bytes);
  void ConsumeHeader(size_t bytes);
  void ConsumeBody(size_t bytes);
  absl::Status HandleHeader();
  absl::Status HandleFrame(const Frame& frame);
  absl::Status HandleMemory(const Memory& memory);
  absl::Status HandleAdmitted(const Admitted& admitted);
  absl::Status TakeChecksums(const Checksums& checksums);
  absl::Status TakeMapping(const Mapping& mapping);
  absl::Status BeginSegment(const SegmentHeader& header);

  // ---- pull_connection_memory.cc
  absl::Status StartRead(const Located& located);
  void FollowReads();
  void LoseMemory(std::string detail);
  void FinishRead(const RemoteMemory::Read& read);
  bool ReadsAreUnderWay() const { return reads_.has_value() && !reads_->empty(); }
  void AnswerRead(const LocatedReads::Answer& answer);
  void AnswerSkipped();
  // Tells what was read beside the segments; before those are answered.
  void CountPackingOverhead();
  // Tells the sink of life while this process copies by itself.
  void WatchCopies();
  void HandleCopyTick();
  // The time in which this process did not run, and saw no copy end, does not count.
  void ForgivePause(absl::Time due, absl::Time now);
  // True while what this process itself is at counts as the source's sign of life.
  bool OwnCopiesExcuseSilence(absl::Time now) const;
  // An error unless it was asked, and is as long as it has to be.
  absl::Status TakeSegment(const SegmentHeader& header);
  bool WantsSegment(const SegmentHeader& header, RemoteMemory* writer,
                    std::vector<iovec>* destination);
  void FinishSegment();
  void ShutByEnd(std::string how);
  void ShutAsSaid();
  void ShutForGeneration(BufferGeneration other);
  void NoteAlive(absl::Time now);
  // Tells the owner that it is closed, once no GPU of this process writes for it any more.
  void FollowEnd();
  void ReportClosed();
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
  std::unique_ptr<RemoteMemory> memory_;  // null: payloads come through the socket
  bool asked_to_open_ = false;
  std::optional<LocatedReads> reads_;  // of memory_, from the admission on
  // The end that the owner is told once the memory has ended; the connection is closed.
  struct Reported {
    SourceFailure failure;
    std::string detail;
    ConnectionEnd end;
  };
  std::optional<Reported> to_report_;
  bool watching_end_ = false;     // a timer will look at it
  bool watching_copies_ = false;  // a timer will look at them
  // The source's Close, which came while these are being read: the connection ends after them.
  std::optional<std::string> last_word_;
  BufferGeneration generation_;
  bool lists_checksums_ = false;      // as the source's Hello says
  bool answers_ask_mapping_ = false;  // likewise
  bool mapping_asked_ = false;        // and not answered
  RequestQueue asked_;
  SegmentRange checksums_asked_;  // that have not come
  absl::Duration longest_pause_;  // that has ended, in which nothing was heard of what was asked
  absl::Time started_at_, heard_at_, reported_alive_at_, opening_tick_at_;

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
  size_t bytes_unfollowed_ = 0;  // of reads that were started since the last FollowReads
  size_t bytes_read_ = 0;        // of the source's memory since the last Receive; part of the turn
  uint64_t extra_bytes_reported_ = 0;
  uint64_t packing_overhead_reported_ = 0;
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_PULL_CONNECTION_H_
