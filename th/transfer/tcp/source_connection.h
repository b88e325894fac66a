// One accepted connection: admits a reader's pull, or joins it, and serves the segments it asks
// for.
//
//   opening -> deciding -> serving -> ending -> closed   (a joining connection is serving at once)
//
// One that ends hears nothing any more: it sends what is begun, then why (refused, or finished),
// and waits for the reader to close. What breaks the rules is closed from wherever it is.
//
// Owned by the loop that watches it; every method runs on that loop unless said otherwise.
#ifndef TH_TRANSFER_TCP_SOURCE_CONNECTION_H_
#define TH_TRANSFER_TCP_SOURCE_CONNECTION_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/transfer/tcp/event_loop.h"
#include "th/transfer/tcp/frames.h"
#include "th/transfer/tcp/outbox.h"
#include "th/transfer/tcp/serving_table.h"
#include "th/transfer/tcp/socket.h"
#include "th/transfer/transport.h"
#include "th/weights/request_queue.h"

namespace th::tcp {

class SourceConnection : public EventLoop::Handler,
                         public std::enable_shared_from_this<SourceConnection> {
 public:
  // Shares loop and table, as a holder may decide after the transport is gone. `gone` is called
  // once, when the connection is closed.
  SourceConnection(Socket socket, std::shared_ptr<EventLoop> loop,
                   std::shared_ptr<ServingTable> table, const TransportLimits& limits,
                   std::function<void()> gone);

  void Start();
  void OnReady(uint32_t events) override;
  void OnLoopStops() override { CloseNow(); }

 private:
  enum class State : uint8_t { kOpening, kDeciding, kServing, kEnding, kClosed };

  // Receiving.
  void ReadRequests();
  absl::Status HandleFrame(const Frame& frame);
  absl::Status HandleHello(const Hello& hello);
  absl::Status HandleOpen(const Open& open);
  absl::Status HandleAsk(const Ask& ask);
  absl::Status HandleAskSums(const AskSums& ask);
  void JoinPull(const Open& open);
  void AskHolder(const Open& open);
  void OnDecided(TransferId transfer, const Admission& admission);
  absl::Status CheckAdmission(const Admission& admission) const;
  void Refuse(const absl::Status& why);
  void BeginServing(std::shared_ptr<ServingTable::Transfer> transfer);

  // Sending.
  void Say(std::string frame);
  void Pump();
  bool SendSome(uint64_t* budget);
  void NoteSent(uint64_t bytes, absl::Time now);
  // Whether what the outbox holds counts against the uplink's cap.
  bool PaysUplink() const { return payload_in_outbox_ > 0 && table_->IsCapped(*transfer_); }
  uint64_t TakeUplink(absl::Time now);
  void FillOutbox();
  bool CheckOpen();
  bool AppendNext();
  bool AppendSums(bool compute);
  void WaitForSegments();
  void StopWaiting();
  void WatchFor(uint32_t events);
  void KeepAlive();

  // Sends no more than the segment that has begun, says `why`, and lets the reader close.
  void Finish(absl::string_view why);
  // `last` is its last word; a reader that does not close in time is closed.
  void End(std::string last, absl::Duration in_time);
  void CloseWith(absl::string_view why);
  void CloseNow();
  ServingTable::Cut MakeCut();

  Socket socket_;
  const std::shared_ptr<EventLoop> loop_;
  const std::shared_ptr<ServingTable> table_;
  const TransportLimits limits_;
  const std::function<void()> gone_;
  const uint64_t number_;  // unique in the process

  State state_ = State::kOpening;
  bool greeted_ = false;
  uint32_t events_ = 0;
  FrameParser parser_;
  std::optional<Open> open_;
  std::shared_ptr<ServingTable::Transfer> transfer_;

  RequestQueue asks_;
  SegmentRange sums_asked_;  // that were not sent
  bool sums_taken_ = false;  // a request for sums, which comes once
  Outbox outbox_;
  std::deque<std::string> controls_;  // for the next frame boundary
  uint64_t payload_in_outbox_ = 0;
  SegmentStore::WaitId wait_ = 0;  // not 0: nothing that was asked has arrived here
  uint64_t wait_count_ = 0;        // a wake of an earlier wait is not ours
  bool retrying_ = false;          // a timer will pump: the uplink is exhausted
  bool keeping_alive_ = false;     // a timer will look
  absl::Time last_sent_;
};

}  // namespace th::tcp

#endif  // TH_TRANSFER_TCP_SOURCE_CONNECTION_H_
