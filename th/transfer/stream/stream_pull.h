// One pull over a stream transport: a first connection that is admitted, then further ones that
// join it, and the requests spread over them.
//
// Where a connection loses its way to the source's memory (one of several devices has failed, or
// leads nowhere) the others are asked for what it owed. Where no other can be asked, and there is
// another way, the pull begins anew over that: with a first connection that is admitted once more,
// to the same generation.
#ifndef TH_TRANSFER_STREAM_STREAM_PULL_H_
#define TH_TRANSFER_STREAM_STREAM_PULL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "th/pipeline_replicator/request_queue.h"
#include "th/transfer/stream/event_loop.h"
#include "th/transfer/stream/pull_connection.h"
#include "th/transfer/transport.h"
#include "th/weights/segments.h"

namespace th::stream {

// Shards below this go over one connection: a second one would not pay for itself.
inline constexpr uint64_t kMinBytesForMoreConnections = uint64_t{8} << 20;
// Times that a pull begins anew over another way to the source's memory: machines have no more
// devices than that, and each costs what it takes to find out that one leads nowhere.
inline constexpr uint32_t kMaxWaysTried = 8;

// The state of a pull, shared by its handle and its connections. Thread-safe.
class PullState : public PullConnectionOwner, public std::enable_shared_from_this<PullState> {
 public:
  // `bytes_received` outlives the loops. `loops` are used in turn, from `first_loop` on.
  PullState(PullTarget target, PullSink* sink, TransportLimits limits, PullNonce nonce,
            std::shared_ptr<const Medium> medium, std::vector<std::shared_ptr<EventLoop>> loops,
            size_t first_loop, std::shared_ptr<std::atomic<uint64_t>> bytes_received);

  void Start();
  void Ask(SegmentRange range);
  void AskChecksums();
  void AskMapping();
  void Finish();
  void Close(SourceFailure failure, std::string detail);
  const std::string& peer() const { return peer_; }

  void OnConnectionAdmitted(uint32_t connection, BufferGeneration generation,
                            bool lists_checksums) override;
  void OnConnectionChecksums(SegmentIndex first,
                             absl::Span<const SegmentChecksum> checksums) override;
  bool OnConnectionSegmentBegins(SegmentIndex segment, RemoteMemory* writer,
                                 std::vector<iovec>* iov) override;
  void OnConnectionSegment(uint32_t connection, const SegmentHeader& header, bool landed,
                           SegmentChecksum computed) override;
  void OnConnectionAlive() override;
  void OnConnectionMapped(absl::StatusOr<std::shared_ptr<const MappedShard>> shard) override;
  void OnConnectionDeviceHangs(absl::Status why) override;
  void OnConnectionShut(uint32_t connection) override;
  void OnConnectionClosed(uint32_t connection, SourceFailure failure, const std::string& detail,
                          ConnectionEnd end) override;

 private:
  struct Lane {
    bool CanBeAsked() const { return connection != nullptr && admitted && !shut; }
    std::shared_ptr<PullConnection> connection;  // null once closed
    bool admitted = false;
    bool shut = false;         // it answers nothing any more, and may be closed later
    RequestQueue outstanding;  // asked of it, and not answered
    bool was_used = false;
  };
  using Failure = std::pair<SourceFailure, std::string>;
  enum class LaneRole : uint8_t { kFirst, kJoins, kTakesOver };

  void AddLane(LaneRole role) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddFurtherLanes(BufferGeneration generation);
  // True if the first connection was admitted for the first time; false: a further one, or one that
  // took over.
  bool NoteAdmitted(uint32_t connection, BufferGeneration generation);
  // Asks for the rest of the list of sums, once somebody can be asked.
  void AskChecksumsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Asks the connection that owes least; where none can be asked now, the next that can.
  void AskLocked(SegmentRange range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AskMoved() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AskOf(Lane& lane, SegmentRange range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Lane* LaneThatOwesLeast(size_t max_requests) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishLocked(Failure failure) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseLocked(Failure failure) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Asks the other connections for what this one owes. False: there is none that could answer.
  bool MoveToOthers(uint32_t connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Begins anew with another first connection, which is asked for what this one owes. False: it
  // may not.
  bool TakeOtherWay(uint32_t connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeBackFrom(uint32_t connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Decides what follows when a connection has ended. True: the pull goes on over another way.
  bool HandleLaneEnd(uint32_t connection, SourceFailure failure, const std::string& detail,
                     ConnectionEnd end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AllClosed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const PullTarget target_;
  PullSink* const sink_;  // outlives OnClosed
  const TransportLimits limits_;
  const PullNonce nonce_;
  const std::shared_ptr<const Medium> medium_;  // of the transport, which may end before
  const std::vector<std::shared_ptr<EventLoop>> loops_;
  const size_t first_loop_;
  const std::string peer_;
  const absl::StatusOr<SocketAddress> address_;
  const std::shared_ptr<std::atomic<uint64_t>> bytes_received_;

  // Held while the sink is called, to serialise the connections' calls; no entry point takes it, so
  // the sink may call back at will.
  absl::Mutex sink_turn_ ABSL_ACQUIRED_BEFORE(mu_);
  absl::Mutex mu_;
  std::vector<Lane> lanes_ ABSL_GUARDED_BY(mu_);
  // The connection without which there was no pull; later ones take over from it.
  uint32_t first_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t ways_tried_ ABSL_GUARDED_BY(mu_) = 1;
  std::vector<SegmentRange> early_asks_ ABSL_GUARDED_BY(mu_);  // before the admission
  // Owed by connections that have ended, or asked while none could answer, and not asked of another
  // one yet.
  SegmentSet moved_ ABSL_GUARDED_BY(mu_);
  std::optional<BufferGeneration> generation_ ABSL_GUARDED_BY(mu_);
  uint64_t checksums_outstanding_ ABSL_GUARDED_BY(mu_) = 0;  // the last ones of the list
  std::optional<uint32_t> checksums_from_
      ABSL_GUARDED_BY(mu_);                              // the connection that was asked for them
  std::optional<Failure> failure_ ABSL_GUARDED_BY(mu_);  // why it ends: nothing is asked any more
  bool closing_ ABSL_GUARDED_BY(mu_) = false;            // every connection was told to close
  bool closed_reported_ ABSL_GUARDED_BY(mu_) = false;
};

// The reader's handle.
class StreamPull : public Pull {
 public:
  explicit StreamPull(std::shared_ptr<PullState> state) : state_(std::move(state)) {}
  ~StreamPull() override { Close(); }
  void Ask(SegmentRange range) override { state_->Ask(range); }
  void AskChecksums() override { state_->AskChecksums(); }
  void AskMapping() override { state_->AskMapping(); }
  void Finish() override { state_->Finish(); }
  void Close() override { state_->Close(SourceFailure::kClosed, "closed by the reader"); }
  std::string peer() const override { return state_->peer(); }

 private:
  // The connections share the state until the last of them is closed.
  const std::shared_ptr<PullState> state_;
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_STREAM_PULL_H_
