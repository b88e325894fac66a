// One accepted connection: the socket, the frames and the bytes around a ServingSession, which
// decides everything else and draws the states. What goes out is either words (control frames), at
// frame boundaries and past the uplink's cap, or segments straight from the buffer, some at a time.
// Over a medium whose readers read this process's memory a segment is no payload but the places
// where it lies; it has left when the reader says that it has landed. A segment that is not all in
// host memory leaves as payload, from a copy in pinned memory, of which some are made ahead
// (OutgoingStaging), unless the readers of the medium reach device memory.
//
// A connection that has something to send may have to wait for one of these:
//
//   it waits because           | as it notes in      | until
//   ---------------------------+---------------------+------------------------------------
//   its turn is over           | resting_            | HandleTurn, which it has posted
//   the socket is full         | events_ (EPOLLOUT)  | OnReady
//   the uplink is exhausted    | retrying_           | HandleRetry, by a timer
//   no segment has arrived     | wait_               | the store calls, or more is asked for
//   no copy is in its slot     | staging_            | HandleStaging
//   the reader has to read     | located_            | HandleLanded
//
// source_connection.cc has the connection's way from its beginning to its end,
// source_connection_requests.cc what the reader says, source_connection_sending.cc what goes out.
//
// Owned by the loop that watches it; every method runs on that loop unless said otherwise.
#ifndef TH_TRANSFER_STREAM_SOURCE_CONNECTION_H_
#define TH_TRANSFER_STREAM_SOURCE_CONNECTION_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/pipeline_replicator/served_transfers.h"
#include "th/pipeline_replicator/serving_session.h"
#include "th/transfer/stream/event_loop.h"
#include "th/transfer/stream/frames.h"
#include "th/transfer/stream/located_segments.h"
#include "th/transfer/stream/medium.h"
#include "th/transfer/stream/outbox.h"
#include "th/transfer/stream/outgoing_staging.h"
#include "th/transfer/stream/remote_memory.h"
#include "th/transfer/stream/serving_table.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/stream/stall_watch.h"
#include "th/transfer/transport.h"

namespace th::stream {

class SourceConnection : public EventLoop::Handler,
                         public std::enable_shared_from_this<SourceConnection> {
 public:
  // Shares loop, medium and table, as a holder may decide after the transport is gone. `gone` is
  // called once, when the connection is closed.
  SourceConnection(Socket socket, std::shared_ptr<EventLoop> loop,
                   std::shared_ptr<const Medium> medium, std::shared_ptr<ServingTable> table,
                   const TransportLimits& limits, std::function<void()> gone);

  // Before Start: refuses to admit whoever it is, with this reason.
  void Refuse(absl::Status why) { refusal_ = std::move(why); }
  void Start();
  void OnReady(uint32_t events) override;
  void OnLoopStops() override { CloseNow(); }

 private:
  // The places where a reader finds the bytes of a segment; nullopt: it cannot read them.
  using Places = std::optional<std::vector<Located::Piece>>;

  // Receiving.
  void ReadRequests();
  absl::Status HandleFrame(const Frame& frame);
  absl::Status HandleHello(const Hello& hello);
  void OfferMemory();
  absl::Status HandleMemory(const Memory& memory);
  ControlPlace PlaceOfControl();
  absl::Status HandleOpen(const stream::Open& open);
  absl::Status HandleAsk(const Ask& ask);
  absl::Status HandleAskChecksums(const AskChecksums& ask);
  absl::Status HandleLanded(const Landed& landed);
  absl::Status HandleAskMapping();
  absl::StatusOr<std::string> MapShard();
  ServingTable::Report Teller();  // called on any thread
  void HandleNews(const ServingTable::News& news);

  // Carries out what the session has decided and sends what can be sent. After every event.
  void Act();
  void Do(const AskToAdmit& ask);
  void Do(const SendAdmitted& admitted);
  void Do(const SendRefused& refused);
  void Do(const SendAlive& alive);
  void Do(const SendClose& close);
  void Do(const Disconnect& end);
  void SetTimer();
  void HandleDeadline();

  // Slots that are kept for a reader that takes nothing.
  bool AwaitsReader() const;
  void WatchStall();
  void HandleStall();

  // Sending.
  void Pump();
  bool SendSome(uint64_t* budget);
  void HandleTurn();
  void HandleRetry();
  void NoteSent(uint64_t bytes, absl::Time now);
  // True if the content of the outbox counts against the uplink's cap.
  bool PaysUplink() const { return payload_in_outbox_ > 0 && table_->IsCapped(*transfer_); }
  uint64_t TakeUplink(absl::Time now);
  void FillOutbox(uint64_t* budget);
  bool AppendChecksums(uint64_t* budget);
  bool AppendNext(uint64_t* budget);
  bool MayLeave(SegmentIndex segment, Places* places);
  bool LeavesFromACopy(SegmentIndex segment) const;
  // Has the next segments copied to the host that do not lie there, or summed where they lie.
  void StageAhead();
  void HandleStaging(const absl::Status& status);
  void SendStaged(SegmentIndex segment);
  // True while the reader may be told of another segment that it has to read itself.
  bool MayLocateMore() const;
  Places PlacesOf(SegmentIndex segment);
  void Locate(SegmentIndex segment, std::vector<Located::Piece> places);
  // Everything that was polled has left: the socket's part, and what the reader had to read itself.
  bool AllLeft() const { return outbox_.empty() && words_.empty() && located_.empty(); }
  void WaitForSegments();
  void StopWaiting();
  void WatchFor(uint32_t events);

  void CloseNow();

  Socket socket_;
  const std::shared_ptr<EventLoop> loop_;
  const std::shared_ptr<const Medium> medium_;
  const std::shared_ptr<ServingTable> table_;
  const std::function<void()> gone_;
  const ServingConnection number_;  // unique in the process

  ServingSession session_;
  absl::Status refusal_;  // OK: the holder decides
  bool closed_ = false;
  bool greeted_ = false;
  bool asked_mapping_ = false;
  uint32_t events_ = 0;
  std::unique_ptr<ServedMemory> served_;  // null: payloads go through the socket
  FrameParser parser_;
  std::optional<stream::Open> open_;
  std::shared_ptr<ServingTable::Transfer> transfer_;
  std::optional<EventLoop::TimerId> timer_;  // the session's deadline, or earlier
  StallWatch stall_;
  bool watching_stall_ = false;  // a timer will look at it

  Outbox outbox_;
  // These go out at the next frame boundary; the session says at most one Alive beside its other
  // words.
  std::deque<std::string> words_;
  uint64_t payload_in_outbox_ = 0;
  LocatedSegments located_;
  std::shared_ptr<OutgoingStaging> staging_;  // shared with what it has begun; set by Start
  // Segments in device memory that the reader cannot read where it lies, though it might: they go
  // as copies.
  SegmentSet not_located_;
  SegmentStore::WaitId wait_ = 0;  // not 0: nothing that was asked has arrived here
  uint64_t wait_count_ = 0;        // a wake of an earlier wait is not ours
  bool retrying_ = false;          // a timer will pump: the uplink is exhausted
  bool resting_ = false;           // a posted turn will pump: this one is over, whatever is heard
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_SOURCE_CONNECTION_H_
