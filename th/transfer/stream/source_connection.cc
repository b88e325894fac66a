// A connection of a source from its beginning to its end: what its session decides, its timers.
#include "th/transfer/stream/source_connection.h"

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "th/transfer/monotonic_clock.h"

namespace th::stream {
namespace {

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
  staging_ = OutgoingStaging::Create(loop_, [weak = weak_from_this()](const absl::Status& status) {
    if (const auto self = weak.lock()) self->HandleStaging(status);
  });
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

// ---- what the session decides

void SourceConnection::Act() {
  while (!closed_) {
    while (std::optional<ServingOutput> output = session_.PollOutput()) {
      std::visit([this](const auto& each) { Do(each); }, *output);
    }
    Pump();
    if (session_.has_output()) continue;
    SetTimer();
    return WatchStall();
  }
}

void SourceConnection::Do(const AskToAdmit&) {
  if (!refusal_.ok()) return session_.HandleRefused(refusal_, MonotonicNow());
  table_->Open(number_, *open_, Teller());
}

void SourceConnection::Do(const SendAdmitted& admitted) {
  if (served_ != nullptr) {
    const absl::Status serves = served_->CheckServes(transfer_->store->regions());
    if (!serves.ok()) return session_.HandleBroken(std::string(serves.message()));
  }
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
  if (!end.why.empty() && transfer_ != nullptr) table_->NoteWhyEnded(*transfer_, end.why);
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
  timer_ = loop_->RunAt(due, IfAlive(weak_from_this(), &SourceConnection::HandleDeadline));
}

void SourceConnection::HandleDeadline() {
  timer_.reset();
  session_.HandleTick(MonotonicNow());
  Act();
}

// True if nothing can leave before the reader takes something.
bool SourceConnection::AwaitsReader() const {
  return (events_ & EPOLLOUT) != 0 || (!located_.empty() && !MayLocateMore());
}

void SourceConnection::WatchStall() {
  if (closed_ || watching_stall_ || !AwaitsReader()) return;
  if (staging_->empty() && !outbox_.keeps_copies()) return;
  const absl::Time now = MonotonicNow();
  stall_.HandleFull(now);
  watching_stall_ = true;
  loop_->RunAt(now + kStallTick, IfAlive(weak_from_this(), &SourceConnection::HandleStall));
}

void SourceConnection::HandleStall() {
  watching_stall_ = false;
  // The socket takes bytes long before epoll says so, and a reader may have spoken while this
  // process did not run.
  ReadRequests();
  Act();
  if (closed_ || !watching_stall_) return;
  const absl::Time now = MonotonicNow();
  const StallWatch::Step step = stall_.HandleTick(now, staging_->IsSlotAwaited());
  if (step == StallWatch::Step::kGiveBack) staging_->Drop();
  if (step != StallWatch::Step::kCut || !outbox_.keeps_copies()) return;
  outbox_.DropUnbegun();
  Do(Disconnect{absl::StrCat("the reader took no bytes for ",
                             absl::FormatDuration(absl::Trunc(stall_.StalledFor(now), kStallTick)),
                             " and kept staging slots that others wait for")});
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
  staging_->Drop();
  served_ = nullptr;  // before the transfer is released: nothing is read for it any more
  transfer_.reset();
  table_->Close(number_);
  gone_();
}

}  // namespace th::stream
