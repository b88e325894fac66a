// All decisions of one connection of a reader at its source: when it is answered, which requests
// are taken, which segment is sent next, when the source says that it is alive, how and when the
// connection ends. ServedTransfers, of which a process has one, decides who is admitted and joins.
//
//   ServingSession serving(limits, now);
//   serving.HandleOpened(now);                 // and what else the reader and the holder have to
//   say while (auto output = serving.PollOutput()) Do(*output);  // after everything that happens
//   if (auto sums = serving.PollChecksums(get_sums)) Send(*sums);             // when there is room
//   while (auto segment = serving.PollSegment(is_ready)) Send(*segment);  // likewise
//   serving.HandleSent(/*all=*/true, now);     // bytes of what was polled have left
//   if (now >= serving.NextDeadline()) serving.HandleTick(now);
//
//   opening -> deciding -> serving -> ending -> closed; from each to closed
//
// A connection that is ending has one last word, Refused or Close, which follows what has been
// begun; then it waits for the reader to close, for a bounded time. A closed one reads no byte of
// the buffer any more and has no output but one Disconnect.
//
// Pure; not thread-safe: the owner serialises calls. Nothing is allocated for a segment but what
// RequestQueue needs.
#ifndef TH_PIPELINE_REPLICATOR_SERVING_SESSION_H_
#define TH_PIPELINE_REPLICATOR_SERVING_SESSION_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/pipeline_replicator/request_queue.h"
#include "th/weights/checksum.h"
#include "th/weights/segments.h"

namespace th {

// The limits of a source, for each connection.
struct ServingLimits {
  // Requests that are not answered, and their open segments. For each segment that it sends the
  // source looks at all that are open: 4,096 are some 10 us.
  uint32_t max_requests_queued = 64;
  uint32_t max_segments_queued = 4096;
  // From the connection to the reader's Open; and for the reader to close once it is refused. The
  // reader waits no longer than this to be admitted.
  absl::Duration admission_timeout = absl::Milliseconds(1000);
  // While it owes something, a source that has sent nothing for so long says that it is alive.
  absl::Duration keep_alive = absl::Milliseconds(100);
  // For the segments that a source has begun to send when a transfer is to end, and its reader to
  // close. Afterwards it is cut.
  absl::Duration finish_timeout = absl::Milliseconds(1000);
};

// How a holder ends a transfer: at once, or where the segment ends that is being sent.
enum class ServingEnd : uint8_t { kNow, kAfterSegment };

// ---- outputs

// Tell ServedTransfers. Answered by HandleAdmitted, HandleRefused or HandleEnd.
struct AskToAdmit {};
struct SendAdmitted {
  BufferGeneration generation;
};
// The last word; the reader closes.
struct SendRefused {
  absl::Status why;
};
struct SendAlive {};
// The last word; the reader closes. The segments that were polled and of which nothing has left yet
// are dropped before it; the rest of the one that has begun goes first.
struct SendClose {
  std::string why;
};
// Close the connection now. Where `why` says something and nothing is half sent, the reader may
// hear it first. The last output; HandleClosed need not follow.
struct Disconnect {
  std::string why;
};
using ServingOutput =
    std::variant<AskToAdmit, SendAdmitted, SendRefused, SendAlive, SendClose, Disconnect>;

// OK when a source takes a request for `range` of its `segment_count` segments while `open` is what
// the connection has open already. OUT_OF_RANGE, RESOURCE_EXHAUSTED.
absl::Status CheckRequest(SegmentRange range, const RequestQueue& open, uint64_t segment_count,
                          const ServingLimits& limits);

class ServingSession {
 public:
  enum class State : uint8_t { kOpening, kDeciding, kServing, kEnding, kClosed };

  // Connected at `now`.
  ServingSession(const ServingLimits& limits, absl::Time now);

  // ---- the reader. Once the session is ending nothing that it says counts.
  // It has said which buffer it wants to read. INVALID_ARGUMENT: a second time.
  absl::Status HandleOpened(absl::Time now);
  // INVALID_ARGUMENT before it was admitted; else as CheckRequest.
  absl::Status HandleAsk(SegmentRange range, absl::Time now);
  // It asks for the sums of these segments. INVALID_ARGUMENT before it was admitted and the second
  // time; OUT_OF_RANGE.
  absl::Status HandleAskChecksums(SegmentRange range, absl::Time now);
  // It wants no more than what has been begun.
  void HandleFinish(absl::Time now);
  // It broke the rules, as `why` says (what the calls above returned, or the transport found).
  void HandleBroken(std::string why);
  // It has closed, or the connection is lost. Idempotent.
  void HandleClosed();

  // ---- the admission
  void HandleAdmitted(BufferGeneration generation, uint64_t segment_count, absl::Time now);
  void HandleRefused(absl::Status why, absl::Time now);

  // ---- the holder
  void HandleEnd(ServingEnd end, absl::Time now);
  // The buffer serves nobody any more: what was polled is sent, then the connection is closed.
  void HandleBufferClosed();

  // ---- the transport
  // Bytes of what was polled, segments or words, have left. `all`: nothing of it is left to send.
  void HandleSent(bool all, absl::Time now);
  void HandleTick(absl::Time now);

  // ---- what to do
  // The sums to send next: of those that were asked for what `get` gives, which are the first ones
  // that are known. To be polled before PollSegment: sums that are known are small, and segments
  // never wait for those that are not.
  struct ChecksumsToSend {
    SegmentIndex first;
    std::vector<SegmentChecksum> checksums;  // at least one
  };
  std::optional<ChecksumsToSend> PollChecksums(
      absl::FunctionRef<std::vector<SegmentChecksum>(SegmentRange asked)> get);
  // The segment to send next: of what was asked the first that is `ready`. To be polled after every
  // event while there is room to send, and when a segment has become ready.
  std::optional<SegmentIndex> PollSegment(absl::FunctionRef<bool(SegmentIndex)> ready);
  std::optional<ServingOutput> PollOutput();
  bool has_output() const { return !outputs_.empty(); }
  // When HandleTick is due; InfiniteFuture while nothing depends on time. HandleSent only moves it
  // later, so that a timer that is set need not be set anew for it.
  absl::Time NextDeadline() const;

  // ---- state
  State state() const { return state_; }
  bool ending() const { return state_ >= State::kEnding; }  // or closed
  bool closed() const { return state_ == State::kClosed; }
  // The segments that were asked for and not polled.
  const RequestQueue& requests() const { return requests_; }
  // Likewise the segments whose sums were.
  SegmentRange checksums_requested() const { return checksums_requested_; }
  // Something is to be answered: the request to be admitted, or one for segments.
  bool owes_answer() const;

 private:
  // The last word, after which the reader has `in_time` to close.
  void EndWith(ServingOutput last, absl::Time by);
  void Say(ServingOutput output);
  void Close(std::string why);

  const ServingLimits limits_;
  State state_ = State::kOpening;
  std::deque<ServingOutput> outputs_;
  uint64_t segment_count_ = 0;  // of the buffer; once admitted
  // One queue for each kind of request. A further kind has its queue here, an event and a Poll
  // beside HandleAsk and PollSegment, and counts in owes_answer and in EndWith.
  RequestQueue requests_;
  SegmentRange checksums_requested_;
  bool asked_for_checksums_ = false;
  bool sending_ = false;  // something that was polled has not left
  bool buffer_closed_ = false;
  absl::Time alive_at_ = absl::InfiniteFuture();  // when Alive is due, while something is owed
  absl::Time close_at_;                           // opening, ending
};

}  // namespace th

#endif  // TH_PIPELINE_REPLICATOR_SERVING_SESSION_H_
