#include "th/transfer/tcp/source_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "th/transfer/monotonic_clock.h"
#include "th/weights/status_macros.h"

namespace th::tcp {
namespace {

// What one connection may send before its loop turns to the others.
constexpr uint64_t kBytesPerTurn = uint64_t{4} << 20;
// Requests are small: what one read takes.
constexpr size_t kRequestBytes = 4096;
// Reads a turn, so that a peer that floods us with requests cannot hold the loop.
constexpr int kReadsPerTurn = 16;
// Control frames that may wait for a frame boundary.
constexpr size_t kMaxControlsQueued = 16;

uint64_t NextConnectionNumber() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1);
}

}  // namespace

SourceConnection::SourceConnection(Socket socket, std::shared_ptr<EventLoop> loop,
                                   std::shared_ptr<ServingTable> table,
                                   const TransportLimits& limits, std::function<void()> gone)
    : socket_(std::move(socket)),
      loop_(std::move(loop)),
      table_(std::move(table)),
      limits_(limits),
      gone_(std::move(gone)),
      number_(NextConnectionNumber()) {}

void SourceConnection::Start() {
  TuneConnection(socket_.fd(), limits_.congestion_control);
  last_sent_ = MonotonicNow();
  events_ = EPOLLIN | EPOLLRDHUP;
  loop_->Watch(socket_.fd(), events_, shared_from_this());
  // A peer that does not even say what it wants is not kept.
  loop_->RunAt(last_sent_ + limits_.admission_timeout, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self != nullptr && self->state_ == State::kOpening) self->CloseNow();
  });
  Say(Encode(Hello{OwnHello()}));
}

void SourceConnection::OnReady(uint32_t events) {
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) return CloseNow();
  if ((events & (EPOLLIN | EPOLLRDHUP)) != 0) ReadRequests();
  if (state_ != State::kClosed && (events & EPOLLOUT) != 0) Pump();
}

// ---- receiving

void SourceConnection::ReadRequests() {
  std::array<char, kRequestBytes> buffer;
  for (int turn = 0; turn < kReadsPerTurn && state_ != State::kClosed; ++turn) {
    const ssize_t got = recv(socket_.fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) return CloseNow();
    if (state_ == State::kEnding) continue;  // nothing it says counts
    parser_.Append(absl::string_view(buffer.data(), static_cast<size_t>(got)));
    while (state_ < State::kEnding) {
      absl::StatusOr<std::optional<Frame>> frame = parser_.Next();
      if (frame.ok() && !frame->has_value()) break;
      const absl::Status handled = frame.ok() ? HandleFrame(**frame) : frame.status();
      if (!handled.ok()) return CloseWith(handled.message());
    }
  }
}

absl::Status SourceConnection::HandleFrame(const Frame& frame) {
  if (std::holds_alternative<Skipped>(frame)) return absl::OkStatus();
  if (const auto* hello = std::get_if<Hello>(&frame)) return HandleHello(*hello);
  if (!greeted_) return absl::InvalidArgumentError("the first frame is no Hello");
  if (const auto* open = std::get_if<Open>(&frame)) return HandleOpen(*open);
  if (const auto* ask = std::get_if<Ask>(&frame)) return HandleAsk(*ask);
  if (const auto* ask = std::get_if<AskSums>(&frame)) return HandleAskSums(*ask);
  if (std::holds_alternative<Alive>(frame)) return absl::OkStatus();
  if (std::holds_alternative<Close>(frame)) {
    CloseNow();
    return absl::OkStatus();
  }
  if (std::holds_alternative<th::tcp::Finish>(frame)) {
    Finish("as the reader asked");
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("a frame that readers never send");
}

absl::Status SourceConnection::HandleHello(const Hello& hello) {
  if (std::exchange(greeted_, true)) return absl::InvalidArgumentError("a second Hello");
  ProtocolHello own = OwnHello();
  return AgreeOnVersion(own, hello.hello).status();
}

absl::Status SourceConnection::HandleOpen(const Open& open) {
  if (state_ != State::kOpening) return absl::InvalidArgumentError("a second Open");
  open_ = open;
  state_ = State::kDeciding;
  if (open.joins) {
    JoinPull(open);
  } else {
    AskHolder(open);
  }
  return absl::OkStatus();
}

ServingTable::Cut SourceConnection::MakeCut() {
  return [loop = loop_, weak = weak_from_this()](ServingTable::Ending ending) {
    loop->Post([weak, ending] {
      const auto self = weak.lock();
      if (self == nullptr) return;
      if (ending == ServingTable::Ending::kAfterSegment) return self->Finish("the holder leaves");
      self->CloseNow();
    });
  };
}

void SourceConnection::JoinPull(const Open& open) {
  absl::StatusOr<std::shared_ptr<ServingTable::Transfer>> transfer =
      table_->Join(open, number_, MakeCut());
  if (!transfer.ok()) return Refuse(transfer.status());
  BeginServing(*std::move(transfer));
}

void SourceConnection::AskHolder(const Open& open) {
  const TransferId transfer = NextTransferId();
  const WorkerId worker = open.capability.claims.source.worker;
  AdmissionRequest request{.transfer = transfer,
                           .buffer = open.capability.claims.source.buffer,
                           .capability = open.capability,
                           .generation = open.generation};
  KeepAlive();
  const absl::Status asked = table_->Decide(
      request,
      [loop = loop_, table = table_, self = shared_from_this(), transfer, worker](Admission a) {
        const bool admitted = a.status.ok();
        const bool posted =
            loop->Post([self, transfer, a = std::move(a)] { self->OnDecided(transfer, a); });
        if (!posted && admitted) table->ReleaseUnserved(worker, transfer);
      });
  if (!asked.ok()) Refuse(asked);
}

absl::Status SourceConnection::CheckAdmission(const Admission& admission) const {
  if (admission.store == nullptr) return absl::InternalError("admitted without a buffer");
  if (admission.store->layout().digest() == open_->layout) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the layouts differ: this buffer holds ", admission.store->layout().digest().ShortHex(),
      ", the reader's is ", open_->layout.ShortHex()));
}

void SourceConnection::OnDecided(TransferId transfer, const Admission& admission) {
  const bool admitted = admission.status.ok();
  const absl::Status decided = admitted ? CheckAdmission(admission) : admission.status;
  const bool is_deciding = state_ == State::kDeciding;
  if (is_deciding && decided.ok()) {
    auto begun = table_->Begin(transfer, *open_, admission, number_, MakeCut());
    if (begun != nullptr) return BeginServing(std::move(begun));
  }
  if (admitted) table_->ReleaseUnserved(open_->capability.claims.source.worker, transfer);
  if (!is_deciding) return;
  if (!decided.ok()) return Refuse(decided);
  CloseNow();  // the holder left or cut it meanwhile
}

void SourceConnection::BeginServing(std::shared_ptr<ServingTable::Transfer> transfer) {
  transfer_ = std::move(transfer);
  state_ = State::kServing;
  Say(Encode(Admitted{transfer_->generation}));
}

void SourceConnection::Refuse(const absl::Status& why) {
  table_->CountRefused();
  End(Encode(Refused{why}), limits_.admission_timeout);
}

absl::Status SourceConnection::HandleAsk(const Ask& ask) {
  if (state_ != State::kServing) return absl::InvalidArgumentError("asked before it was admitted");
  const uint64_t segment_count = transfer_->store->layout().segment_count();
  TH_RETURN_IF_ERROR(CheckRequest(ask.range, asks_, segment_count, limits_));
  asks_.Push(ask.range);
  KeepAlive();
  StopWaiting();  // this may have arrived
  Pump();
  return absl::OkStatus();
}

absl::Status SourceConnection::HandleAskSums(const AskSums& ask) {
  if (state_ != State::kServing) return absl::InvalidArgumentError("asked before it was admitted");
  if (std::exchange(sums_taken_, true)) {
    return absl::InvalidArgumentError("asked for sums a second time");
  }
  const uint64_t segment_count = transfer_->store->layout().segment_count();
  if (ask.range.end.value > segment_count) {
    return absl::OutOfRangeError(
        absl::StrCat("asked for sums up to segment ", ask.range.end.value, " of ", segment_count));
  }
  sums_asked_ = ask.range;
  KeepAlive();
  StopWaiting();
  Pump();
  return absl::OkStatus();
}

// ---- sending

void SourceConnection::Say(std::string frame) {
  if (state_ == State::kClosed || controls_.size() >= kMaxControlsQueued) return;
  controls_.push_back(std::move(frame));
  Pump();
}

// Sends until there is nothing to send, the socket or the uplink is full, or the turn is over.
void SourceConnection::Pump() {
  if (retrying_ || wait_ != 0) {
    // Keep-alives still go out at a frame boundary, past the uplink's cap: they are what tells the
    // reader that we live.
    if (!outbox_.empty() || controls_.empty()) return;
  }
  uint64_t budget = kBytesPerTurn;
  while (state_ != State::kClosed) {
    if (outbox_.empty()) FillOutbox();
    if (state_ == State::kClosed || outbox_.empty()) return WatchFor(EPOLLIN | EPOLLRDHUP);
    if (!SendSome(&budget)) return;
    if (outbox_.empty() && state_ == State::kEnding && controls_.empty()) {
      // No close yet: that could throw the reason away before the reader has read it.
      shutdown(socket_.fd(), SHUT_WR);
      return WatchFor(EPOLLIN | EPOLLRDHUP);
    }
  }
}

// False when the connection has to wait, or is closed.
bool SourceConnection::SendSome(uint64_t* budget) {
  const absl::Time now = MonotonicNow();
  if (*budget == 0) {
    loop_->Post([self = shared_from_this()] { self->Pump(); });
    return false;
  }
  const uint64_t allowed = TakeUplink(now);
  if (allowed == 0) return false;
  const Outbox::Sent sent = outbox_.Send(socket_.fd(), allowed);
  if (PaysUplink() && sent.bytes < allowed) table_->RefundUplink(allowed - sent.bytes);
  if (sent.error != 0 && sent.error != EAGAIN) {
    CloseNow();
    return false;
  }
  *budget -= std::min(*budget, sent.bytes);
  if (sent.bytes > 0) NoteSent(sent.bytes, now);
  if (sent.bytes == allowed || outbox_.empty()) return true;
  // Less than offered: the socket is full, and trying again would only hear so.
  WatchFor(EPOLLIN | EPOLLRDHUP | EPOLLOUT);
  return false;
}

void SourceConnection::NoteSent(uint64_t bytes, absl::Time now) {
  last_sent_ = now;
  if (payload_in_outbox_ == 0) return;
  const uint64_t payload = std::min(payload_in_outbox_, bytes);
  payload_in_outbox_ = outbox_.empty() ? 0 : payload_in_outbox_ - payload;
  table_->CountSent(*transfer_, payload, now);
}

// How much may go out now. 0: the uplink is exhausted and a timer will pump.
uint64_t SourceConnection::TakeUplink(absl::Time now) {
  if (!PaysUplink()) return outbox_.bytes_left();
  const UplinkBucket::Grant grant = table_->TakeUplink(*transfer_, outbox_.bytes_left(), now);
  if (grant.bytes > 0) return grant.bytes;
  retrying_ = true;
  WatchFor(EPOLLIN | EPOLLRDHUP);
  loop_->RunAt(grant.retry_at, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->retrying_ = false;
    self->Pump();
  });
  return 0;
}

void SourceConnection::FillOutbox() {
  payload_in_outbox_ = 0;
  while (!controls_.empty()) {
    outbox_.AddControl(std::move(controls_.front()));
    controls_.pop_front();
  }
  // Control frames go alone, so that they never wait for the uplink.
  if (!outbox_.empty() || state_ == State::kEnding || wait_ != 0) return;
  if ((asks_.empty() && sums_asked_.empty()) || !CheckOpen()) return;
  // Sums that are known go first: they are small. Those that nobody has taken yet are taken while
  // there is no segment to send.
  const bool idle = !transfer_->store->FirstReady(asks_).has_value();
  if (AppendSums(/*compute=*/idle)) return;
  while (!asks_.empty() && !outbox_.full()) {
    if (!AppendNext()) return;
  }
  if (outbox_.empty()) WaitForSegments();
}

// False when the store is closed. The connection ends then, once what was begun is sent.
bool SourceConnection::CheckOpen() {
  if (!transfer_->store->closed()) return true;
  if (outbox_.empty()) CloseWith("the holder serves this buffer no longer");
  return false;
}

// A frame of its own, as other words. False when the next sum is not known.
bool SourceConnection::AppendSums(bool compute) {
  if (sums_asked_.empty()) return false;
  SegmentStore& store = *transfer_->store;
  Sums next{.first = sums_asked_.begin,
            .sums = store.SumsOf(sums_asked_, kMaxSumsInFrame, compute)};
  next.generation = store.generation();
  if (next.sums.empty()) return false;
  sums_asked_.begin.value += next.sums.size();
  outbox_.AddControl(Encode(next));
  return true;
}

// Appends the next segment asked for that is here. False when there is none yet, or the store
// closed.
bool SourceConnection::AppendNext() {
  SegmentStore& store = *transfer_->store;
  if (!CheckOpen()) return false;
  const std::optional<SegmentIndex> next = store.FirstReady(asks_);
  if (!next.has_value()) {
    if (outbox_.empty()) WaitForSegments();
    return false;
  }
  const uint64_t bytes = store.layout().SegmentLength(*next);
  outbox_.AddSegment({.segment = *next,
                      .bytes = static_cast<uint32_t>(bytes),
                      .sum = store.SumOf(*next),
                      .generation = store.generation()},
                     store);
  payload_in_outbox_ += bytes;
  asks_.Take(*next);
  return true;
}

void SourceConnection::WaitForSegments() {
  const uint64_t turn = ++wait_count_;
  const auto wake = [loop = loop_, weak = weak_from_this(), turn] {
    loop->Post([weak, turn] {
      const auto self = weak.lock();
      if (self == nullptr || self->wait_count_ != turn) return;
      self->wait_ = 0;
      self->Pump();
    });
  };
  const auto listed = sums_asked_.empty() ? std::nullopt : std::optional(sums_asked_.begin);
  wait_ = transfer_->store->NotifyWhenReady(asks_, wake, listed);
  if (wait_ == 0) wake();  // one became ready in between
}

void SourceConnection::StopWaiting() {
  if (wait_ == 0) return;
  transfer_->store->CancelNotify(std::exchange(wait_, 0));
  ++wait_count_;
}

void SourceConnection::WatchFor(uint32_t events) {
  if (state_ == State::kClosed || events == events_) return;
  events_ = events;
  loop_->Rewatch(socket_.fd(), events);
}

// Says that we live whenever something is owed and nothing was sent for a while: while the owner
// decides, while a segment has not arrived here, while the uplink is others' at a frame boundary.
void SourceConnection::KeepAlive() {
  const bool owes = state_ == State::kDeciding ||
                    (state_ == State::kServing && (!asks_.empty() || !sums_asked_.empty()));
  if (!owes || keeping_alive_) return;
  const absl::Time now = MonotonicNow();
  if (now - last_sent_ >= limits_.keep_alive && outbox_.empty()) Say(Encode(Alive{}));
  if (state_ == State::kClosed) return;
  keeping_alive_ = true;
  loop_->RunAt(now + limits_.keep_alive, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->keeping_alive_ = false;
    self->KeepAlive();
  });
}

// ---- closing

void SourceConnection::Finish(absl::string_view why) {
  if (state_ >= State::kEnding) return;
  if (state_ != State::kServing) return CloseWith(why);
  asks_.Clear();
  sums_asked_ = {};
  StopWaiting();
  outbox_.DropUnbegun();
  payload_in_outbox_ = std::min(payload_in_outbox_, outbox_.bytes_left());
  End(Encode(Close{std::string(why)}), limits_.finish_timeout);
}

void SourceConnection::End(std::string last, absl::Duration in_time) {
  state_ = State::kEnding;
  loop_->RunAt(MonotonicNow() + in_time, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->CloseNow();
  });
  Say(std::move(last));
}

void SourceConnection::CloseWith(absl::string_view why) {
  if (state_ == State::kClosed) return;
  // Best effort: when the socket is full or a segment is half sent, the reader hears only the end.
  if (outbox_.empty()) {
    outbox_.AddControl(Encode(Close{std::string(why)}));
    outbox_.Send(socket_.fd(), outbox_.bytes_left());
  }
  CloseNow();
}

void SourceConnection::CloseNow() {
  if (std::exchange(state_, State::kClosed) == State::kClosed) return;
  const std::shared_ptr<SourceConnection> self = shared_from_this();  // until the end of this call
  loop_->Unwatch(socket_.fd());
  socket_.Close();
  if (transfer_ != nullptr) {
    StopWaiting();
    table_->Leave(transfer_, number_);
    transfer_.reset();
  }
  gone_();
}

}  // namespace th::tcp
