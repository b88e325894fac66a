#include "th/pipeline_replicator/serving_session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "tools/mutation/mutation.h"

namespace th {

absl::Status CheckRequest(SegmentRange range, const RequestQueue& open, uint64_t segment_count,
                          const ServingLimits& limits) {
  if (range.empty()) return absl::OkStatus();
  if (range.end.value > segment_count) {
    return absl::OutOfRangeError(
        absl::StrCat("asked up to segment ", range.end.value, " of ", segment_count));
  }
  if (open.size() >= limits.max_requests_queued) {
    return absl::ResourceExhaustedError(absl::StrCat("asked again while ", open.size(),
                                                     " requests are open; max_requests_queued is ",
                                                     limits.max_requests_queued));
  }
  if (open.segments() + range.count() > limits.max_segments_queued) {
    return absl::ResourceExhaustedError(
        absl::StrCat("asked for ", range.count(), " segments while ", open.segments(),
                     " are open; max_segments_queued is ", limits.max_segments_queued));
  }
  return absl::OkStatus();
}

ServingSession::ServingSession(const ServingLimits& limits, absl::Time now)
    : limits_(limits), close_at_(now + limits.admission_timeout) {}

// ---- the reader

absl::Status ServingSession::HandleOpened(absl::Time now) {
  if (ending()) return absl::OkStatus();
  if (state_ != State::kOpening) return absl::InvalidArgumentError("a second Open");
  state_ = State::kDeciding;
  alive_at_ = now + limits_.keep_alive;
  outputs_.push_back(AskToAdmit{});
  return absl::OkStatus();
}

absl::Status ServingSession::HandleAsk(SegmentRange range, absl::Time now) {
  if (ending()) return absl::OkStatus();
  if (state_ != State::kServing) return absl::InvalidArgumentError("asked before it was admitted");
  TH_RETURN_IF_ERROR(CheckRequest(range, requests_, segment_count_, limits_));
  if (!owes_answer()) alive_at_ = now + limits_.keep_alive;
  requests_.Push(range);
  return absl::OkStatus();
}

absl::Status ServingSession::HandleAskChecksums(SegmentRange range, absl::Time now) {
  if (ending()) return absl::OkStatus();
  if (state_ != State::kServing) return absl::InvalidArgumentError("asked before it was admitted");
  if (asked_for_checksums_) return absl::InvalidArgumentError("asked for sums a second time");
  if (range.end.value > segment_count_) {
    return absl::OutOfRangeError(
        absl::StrCat("asked for sums up to segment ", range.end.value, " of ", segment_count_));
  }
  if (!owes_answer()) alive_at_ = now + limits_.keep_alive;
  asked_for_checksums_ = true;
  checksums_requested_ = range;
  return absl::OkStatus();
}

void ServingSession::HandleFinish(absl::Time now) {
  if (ending()) return;
  if (state_ != State::kServing) return Close("as the reader asked");
  EndWith(SendClose{"as the reader asked"}, now + limits_.finish_timeout);
}

void ServingSession::HandleBroken(std::string why) {
  if (!ending()) Close(std::move(why));
}

void ServingSession::HandleClosed() {
  state_ = State::kClosed;
  requests_.Clear();
  checksums_requested_ = {};
  outputs_.clear();
}

// ---- the admission

void ServingSession::HandleAdmitted(BufferGeneration generation, uint64_t segment_count,
                                    absl::Time now) {
  if (state_ != State::kDeciding) return;  // it has closed meanwhile
  state_ = State::kServing;
  segment_count_ = segment_count;
  Say(SendAdmitted{generation});
}

void ServingSession::HandleRefused(absl::Status why, absl::Time now) {
  if (state_ != State::kDeciding) return;
  EndWith(SendRefused{std::move(why)}, now + limits_.admission_timeout);
}

// ---- the holder

void ServingSession::HandleEnd(ServingEnd end, absl::Time now) {
  if (end == ServingEnd::kNow) {
    if (!closed()) Close("");
  } else if (state_ == State::kServing) {
    EndWith(SendClose{"the holder leaves"}, now + limits_.finish_timeout);
  } else if (!ending()) {
    Close("the holder leaves");
  }
}

void ServingSession::HandleBufferClosed() {
  if (state_ != State::kServing) return;
  buffer_closed_ = true;
  if (!sending_) Close("the holder serves this buffer no longer");
}

// ---- the transport

void ServingSession::HandleSent(bool all, absl::Time now) {
  alive_at_ = now + limits_.keep_alive;
  if (!all) return;
  sending_ = false;
  if (buffer_closed_ && state_ == State::kServing) HandleBufferClosed();
}

void ServingSession::HandleTick(absl::Time now) {
  if (now < NextDeadline()) return;
  if (state_ == State::kOpening || state_ == State::kEnding) return Close("");
  alive_at_ = now + limits_.keep_alive;
  // Bytes that cannot leave say that the reader takes none: another word would only wait behind.
  if (!sending_) Say(SendAlive{});
}

absl::Time ServingSession::NextDeadline() const {
  if (state_ == State::kOpening || state_ == State::kEnding) return close_at_;
  return owes_answer() ? alive_at_ : absl::InfiniteFuture();
}

bool ServingSession::owes_answer() const {
  if (TH_MUTATE(kSayNothingWhileDeciding, state_ == State::kDeciding, false)) return true;
  return state_ == State::kServing && (!requests_.empty() || !checksums_requested_.empty());
}

// ---- what to do

std::optional<ServingSession::ChecksumsToSend> ServingSession::PollChecksums(
    absl::FunctionRef<std::vector<SegmentChecksum>(SegmentRange asked)> get) {
  if (state_ != State::kServing || buffer_closed_ || checksums_requested_.empty())
    return std::nullopt;
  ChecksumsToSend next{.first = checksums_requested_.begin, .checksums = get(checksums_requested_)};
  if (next.checksums.empty()) return std::nullopt;
  checksums_requested_.begin.value += next.checksums.size();
  sending_ = true;
  return next;
}

std::optional<SegmentIndex> ServingSession::PollSegment(
    absl::FunctionRef<bool(SegmentIndex)> ready) {
  if (state_ != State::kServing || buffer_closed_) return std::nullopt;
  const std::optional<SegmentIndex> next = requests_.First(ready);
  if (!next.has_value()) return std::nullopt;
  requests_.Take(*next);
  sending_ = true;
  return next;
}

std::optional<ServingOutput> ServingSession::PollOutput() {
  if (outputs_.empty()) return std::nullopt;
  ServingOutput output = std::move(outputs_.front());
  outputs_.pop_front();
  return output;
}

void ServingSession::Say(ServingOutput output) {
  outputs_.push_back(std::move(output));
  sending_ = true;
}

void ServingSession::EndWith(ServingOutput last, absl::Time by) {
  state_ = TH_MUTATE(kSendOnAfterTheEnd, State::kEnding, State::kServing);
  close_at_ = by;
  requests_.Clear();
  checksums_requested_ = {};
  Say(std::move(last));
}

// Outputs that were not polled are void.
void ServingSession::Close(std::string why) {
  HandleClosed();
  outputs_.push_back(Disconnect{std::move(why)});
}

}  // namespace th
