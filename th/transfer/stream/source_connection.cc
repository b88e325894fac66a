#include "th/transfer/stream/source_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "th/transfer/monotonic_clock.h"
#include "th/weights/status_macros.h"

namespace th::stream {
namespace {

// What one connection may send, or read to sum it, before its loop turns to the others.
constexpr uint64_t kBytesPerTurn = uint64_t{4} << 20;
// Requests are small: what one read takes.
constexpr size_t kRequestBytes = 4096;
// Reads a turn, so that a peer that floods us with requests cannot hold the loop.
constexpr int kReadsPerTurn = 16;
// Limits on the segments of one connection that are located and have not landed. A smaller one
// makes readers wait for the next place, a larger one delays the end of a transfer.
constexpr uint64_t kMaxBytesLocated = uint64_t{4} << 20;
constexpr size_t kMaxSegmentsLocated = 64;

ServingConnection NextConnectionNumber() {
  static std::atomic<uint64_t> next{1};
  return ServingConnection(next.fetch_add(1));
}

}  // namespace

SourceConnection::SourceConnection(Socket socket, std::shared_ptr<EventLoop> loop,
                                   std::shared_ptr<const Medium> medium,
                                   std::shared_ptr<ServingTable> table,
                                   const TransportLimits& limits, std::function<void()> gone)
    : socket_(std::move(socket)),
      loop_(std::move(loop)),
      medium_(std::move(medium)),
      table_(std::move(table)),
      gone_(std::move(gone)),
      number_(NextConnectionNumber()),
      session_(limits, MonotonicNow()) {}

void SourceConnection::Start() {
  medium_->Tune(socket_.fd());
  events_ = EPOLLIN | EPOLLRDHUP;
  loop_->Watch(socket_.fd(), events_, shared_from_this());
  words_.push_back(Encode(Hello{OwnHello()}));
  served_ = medium_->Serve(socket_.fd());
  if (served_ != nullptr) OfferMemory();
  Act();
}

void SourceConnection::OfferMemory() {
  const absl::StatusOr<std::string> offer = served_->Offer();
  if (offer.ok()) {
    words_.push_back(Encode(Memory{*offer}));
  } else {
    session_.HandleBroken(std::string(offer.status().message()));
  }
}

void SourceConnection::OnReady(uint32_t events) {
  // The reader's last frames count after it has hung up: a Landed among them is a segment sent.
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) ReadRequests();
  if ((events & EPOLLERR) != 0) return CloseNow();
  if ((events & EPOLLOUT) != 0) Act();
}

// ---- receiving

void SourceConnection::ReadRequests() {
  std::array<char, kRequestBytes> buffer;
  for (int turn = 0; turn < kReadsPerTurn && !closed_; ++turn) {
    const ssize_t got = recv(socket_.fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) return CloseNow();
    parser_.Append(absl::string_view(buffer.data(), static_cast<size_t>(got)));
    // Once the session is ending nothing counts but what lands of that which was located before.
    while (!closed_ && (!session_.ending() || !located_.empty())) {
      absl::StatusOr<std::optional<Frame>> frame = parser_.Next();
      if (frame.ok() && !frame->has_value()) break;
      const absl::Status handled = frame.ok() ? HandleFrame(**frame) : frame.status();
      if (!handled.ok()) {
        ForgetLocated();
        session_.HandleBroken(std::string(handled.message()));
      }
    }
    Act();
    if (session_.ending() && located_.empty()) parser_ = FrameParser();
  }
}

absl::Status SourceConnection::HandleFrame(const Frame& frame) {
  if (std::holds_alternative<Skipped>(frame)) return absl::OkStatus();
  if (const auto* hello = std::get_if<Hello>(&frame)) return HandleHello(*hello);
  if (!greeted_) return absl::InvalidArgumentError("the first frame is no Hello");
  if (const auto* open = std::get_if<Open>(&frame)) return HandleOpen(*open);
  if (const auto* ask = std::get_if<Ask>(&frame)) return HandleAsk(*ask);
  if (const auto* ask = std::get_if<AskSums>(&frame)) return HandleAskSums(*ask);
  if (const auto* landed = std::get_if<Landed>(&frame)) return HandleLanded(*landed);
  if (const auto* memory = std::get_if<Memory>(&frame)) return HandleMemory(*memory);
  if (std::holds_alternative<Alive>(frame)) return absl::OkStatus();
  if (std::holds_alternative<Close>(frame)) {
    CloseNow();
    return absl::OkStatus();
  }
  if (std::holds_alternative<Finish>(frame)) {
    session_.HandleFinish(MonotonicNow());
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("a frame that readers never send");
}

absl::Status SourceConnection::HandleHello(const Hello& hello) {
  if (std::exchange(greeted_, true)) return absl::InvalidArgumentError("a second Hello");
  ProtocolHello own = OwnHello();
  return AgreeOnVersion(own, hello.hello).status();
}

absl::Status SourceConnection::HandleMemory(const Memory& memory) {
  if (served_ == nullptr || open_.has_value()) {
    return absl::InvalidArgumentError("Memory after Open, or on a transport without it");
  }
  TH_ASSIGN_OR_RETURN(std::string reply, served_->HandleAnswer(memory.words));
  if (!reply.empty()) words_.push_back(Encode(Memory{std::move(reply)}));
  return absl::OkStatus();
}

absl::Status SourceConnection::HandleOpen(const stream::Open& open) {
  TH_RETURN_IF_ERROR(session_.HandleOpened(MonotonicNow()));
  open_ = open;
  return absl::OkStatus();
}

absl::Status SourceConnection::HandleAsk(const Ask& ask) {
  TH_RETURN_IF_ERROR(session_.HandleAsk(ask.range, MonotonicNow()));
  StopWaiting();  // this may have arrived
  return absl::OkStatus();
}

absl::Status SourceConnection::HandleAskSums(const AskSums& ask) {
  TH_RETURN_IF_ERROR(session_.HandleAskSums(ask.range, MonotonicNow()));
  StopWaiting();  // they may be known
  return absl::OkStatus();
}

absl::Status SourceConnection::HandleLanded(const Landed& landed) {
  if (located_.empty() || located_.front() != landed.segment) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", landed.segment.value, " has landed, which was not the next one"));
  }
  const uint64_t bytes = transfer_->store->layout().SegmentLength(landed.segment);
  located_.pop_front();
  bytes_located_ -= bytes;
  const absl::Time now = MonotonicNow();
  session_.HandleSent(AllLeft(), now);
  table_->CountSent(*transfer_, std::min(bytes, landed.bytes), now);
  return absl::OkStatus();
}

void SourceConnection::ForgetLocated() {
  located_.clear();
  bytes_located_ = 0;
}

ServingTable::Tell SourceConnection::Teller() {
  return [loop = loop_, weak = weak_from_this()](ServingTable::News news) {
    loop->Post([weak, news = std::move(news)] {
      if (const auto self = weak.lock()) self->HandleNews(news);
    });
  };
}

void SourceConnection::HandleNews(const ServingTable::News& news) {
  const absl::Time now = MonotonicNow();
  if (const auto* transfer = std::get_if<std::shared_ptr<ServingTable::Transfer>>(&news)) {
    if (closed_) return;
    transfer_ = *transfer;
    session_.HandleAdmitted(transfer_->generation, transfer_->store->layout().segment_count(), now);
  } else if (const auto* why = std::get_if<absl::Status>(&news)) {
    session_.HandleRefused(*why, now);
  } else {
    session_.HandleEnd(std::get<ServingEnd>(news), now);
  }
  Act();
}

// ---- what the session decides

void SourceConnection::Act() {
  while (!closed_) {
    while (std::optional<ServingOutput> output = session_.PollOutput()) {
      std::visit([this](const auto& each) { Do(each); }, *output);
    }
    Pump();
    if (!session_.has_output()) return SetTimer();
  }
}

void SourceConnection::Do(const AskToAdmit&) { table_->Open(number_, *open_, Teller()); }

void SourceConnection::Do(const SendAdmitted& admitted) {
  Admitted frame{.generation = admitted.generation, .control = std::nullopt};
  if (served_ != nullptr) frame.control = PlaceOfControl();
  words_.push_back(Encode(frame));
}

ControlPlace SourceConnection::PlaceOfControl() {
  // The block is never written through the pieces below: they only say where it is.
  auto* const control = const_cast<ControlBlock*>(&transfer_->store->control());
  // Without a key no segment has one either, as all are attached together, and none is located.
  return {.address = reinterpret_cast<uintptr_t>(control),
          .life = control->life.load(),
          .key = served_->KeyOf({control, sizeof(*control)}).value_or(0)};
}

void SourceConnection::Do(const SendRefused& refused) {
  words_.push_back(Encode(Refused{refused.why}));
}

void SourceConnection::Do(const SendAlive&) { words_.push_back(Encode(Alive{})); }

void SourceConnection::Do(const SendClose& close) {
  StopWaiting();
  outbox_.DropUnbegun();
  payload_in_outbox_ = std::min(payload_in_outbox_, outbox_.bytes_left());
  words_.push_back(Encode(Close{close.why}));
}

void SourceConnection::Do(const Disconnect& end) {
  // Best effort: when the socket is full or a segment is half sent, the reader hears only the end.
  if (!end.why.empty() && outbox_.empty()) {
    outbox_.AddControl(Encode(Close{end.why}));
    outbox_.Send(socket_.fd(), outbox_.bytes_left());
  }
  CloseNow();
}

void SourceConnection::SetTimer() {
  if (closed_) return;
  const absl::Time due = session_.NextDeadline();
  if (due == absl::InfiniteFuture() || (timer_.has_value() && timer_->first <= due)) return;
  if (timer_.has_value()) loop_->Cancel(*timer_);
  timer_ = loop_->RunAt(due, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->timer_.reset();
    self->session_.HandleTick(MonotonicNow());
    self->Act();
  });
}

// ---- sending

// Sends until there is nothing to send, the socket or the uplink is full, or the turn is over.
void SourceConnection::Pump() {
  if (resting_) return;
  if (retrying_ || wait_ != 0) {
    // Keep-alives still go out at a frame boundary, past the uplink's cap: they are what tells the
    // reader that we live.
    if (!outbox_.empty() || words_.empty()) return;
  }
  uint64_t budget = kBytesPerTurn;
  while (!closed_) {
    if (outbox_.empty()) FillOutbox(&budget);
    if (outbox_.empty()) return WatchFor(EPOLLIN | EPOLLRDHUP);
    if (!SendSome(&budget)) return;
    if (outbox_.empty() && session_.ending() && words_.empty()) {
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
    resting_ = true;
    loop_->Post([self = shared_from_this()] {
      self->resting_ = false;
      self->Act();
    });
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
  session_.HandleSent(AllLeft(), now);
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
    self->Act();
  });
  return 0;
}

void SourceConnection::FillOutbox(uint64_t* budget) {
  payload_in_outbox_ = 0;
  while (!words_.empty()) {
    outbox_.AddControl(std::move(words_.front()));
    words_.pop_front();
  }
  // Words go alone, so that they never wait for the uplink.
  if (!outbox_.empty() || wait_ != 0) return;
  if (AppendSums(budget) || wait_ != 0) return;
  while (!outbox_.full() && AppendNext(budget) && *budget > 0) continue;
}

// Appends the next sums, as words. Those that nobody has taken yet are taken while there is no
// segment to send, which costs the turn what may be read for them: a list of an unsealed shard may
// be many gigabytes of it. False when there are none to be sent now.
bool SourceConnection::AppendSums(uint64_t* budget) {
  if (session_.sums_requested().empty()) return false;
  SegmentStore& store = *transfer_->store;
  if (store.closed()) {
    session_.HandleBufferClosed();
    return false;
  }
  const bool idle = !store.FirstReady(session_.requests()).has_value();
  const auto next = session_.PollSums([&store, idle](SegmentRange asked) {
    return store.SumsOf(asked, kMaxSumsInFrame, /*compute=*/idle);
  });
  if (!next.has_value()) {
    if (idle) WaitForSegments();
    return false;
  }
  if (idle) *budget -= std::min(*budget, kBytesSummedAtOnce);
  outbox_.AddControl(
      Encode(Sums{.first = next->first, .generation = store.generation(), .sums = next->sums}));
  return true;
}

// Appends the next segment. False when there is none to be sent now. A sum that has to be taken for
// one that the reader reads itself costs the turn its bytes: the socket, which bounds those that
// are sent, does not bound these.
bool SourceConnection::AppendNext(uint64_t* budget) {
  if (session_.requests().empty() || !MayLocateMore()) return false;
  SegmentStore& store = *transfer_->store;
  if (store.closed()) {
    session_.HandleBufferClosed();
    return false;
  }
  const std::optional<SegmentIndex> next = session_.PollSegment([&store](SegmentIndex segment) {
    return store.ReadinessOf(segment) == SegmentStore::Readiness::kReady;
  });
  if (!next.has_value()) {
    if (outbox_.empty()) WaitForSegments();
    return false;
  }
  const uint64_t bytes = store.layout().SegmentLength(*next);
  const bool summed = store.IsSummed(*next);
  if (served_ != nullptr && Locate(*next)) {
    if (!summed) *budget -= std::min(*budget, bytes);
    return true;
  }
  outbox_.AddSegment({.segment = *next,
                      .bytes = static_cast<uint32_t>(bytes),
                      .sum = store.SumOf(*next),
                      .generation = store.generation()},
                     store);
  payload_in_outbox_ += bytes;
  return true;
}

// True while the reader may be told of another segment that it has to read itself.
bool SourceConnection::MayLocateMore() const {
  return bytes_located_ < kMaxBytesLocated && located_.size() < kMaxSegmentsLocated;
}

// Tells the reader where the segment lies. False when it is in too many pieces for that, or the
// reader cannot read one of them.
bool SourceConnection::Locate(SegmentIndex segment) {
  SegmentStore& store = *transfer_->store;
  std::vector<iovec> pieces;
  store.AppendPieces(segment, &pieces);
  if (pieces.size() > kMaxLocatedPieces) return false;
  std::vector<Located::Piece> places;
  places.reserve(pieces.size());
  for (const iovec& piece : pieces) {
    const std::optional<uint32_t> key = served_->KeyOf(piece);
    if (!key.has_value()) return false;
    places.push_back({.address = reinterpret_cast<uintptr_t>(piece.iov_base),
                      .bytes = static_cast<uint32_t>(piece.iov_len),
                      .key = *key});
  }
  const Located located{.segment = segment,
                        .sum = store.SumOf(segment),
                        .generation = store.generation(),
                        .pieces = std::move(places)};
  outbox_.AddControl(Encode(located));
  located_.push_back(segment);
  bytes_located_ += store.layout().SegmentLength(segment);
  return true;
}

void SourceConnection::WaitForSegments() {
  const uint64_t turn = ++wait_count_;
  const auto wake = [loop = loop_, weak = weak_from_this(), turn] {
    loop->Post([weak, turn] {
      const auto self = weak.lock();
      if (self == nullptr || self->wait_count_ != turn) return;
      self->wait_ = 0;
      self->Act();
    });
  };
  const SegmentRange sums = session_.sums_requested();
  const auto listed = sums.empty() ? std::nullopt : std::optional(sums.begin);
  wait_ = transfer_->store->NotifyWhenReady(session_.requests(), wake, listed);
  if (wait_ == 0) wake();  // one became ready in between
}

void SourceConnection::StopWaiting() {
  if (wait_ == 0) return;
  transfer_->store->CancelNotify(std::exchange(wait_, 0));
  ++wait_count_;
}

void SourceConnection::WatchFor(uint32_t events) {
  if (closed_ || events == events_) return;
  events_ = events;
  loop_->Rewatch(socket_.fd(), events);
}

// ---- closing

void SourceConnection::CloseNow() {
  if (std::exchange(closed_, true)) return;
  const std::shared_ptr<SourceConnection> self = shared_from_this();  // until the end of this call
  session_.HandleClosed();
  if (timer_.has_value()) loop_->Cancel(*timer_);
  loop_->Unwatch(socket_.fd());
  socket_.Close();
  StopWaiting();
  served_ = nullptr;  // before the transfer is released: nothing is read for it any more
  transfer_.reset();
  table_->Close(number_);
  gone_();
}

}  // namespace th::stream
