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

// Limits the bytes that one connection sends, or reads to sum them, before its loop turns to the
// others.
constexpr uint64_t kBytesPerTurn = uint64_t{4} << 20;
// Requests are small: what one read takes.
constexpr size_t kRequestBytes = 4096;
// Reads a turn, so that a peer that floods us with requests cannot hold the loop.
constexpr int kReadsPerTurn = 16;

// Limits the sums that one call sends: the list of most shards (DefaultSegmentBytes).
constexpr uint64_t kSumBytesPerCall = uint64_t{96} << 10;

// All bytes of the shard, what lies side by side as one run. By storage, not by segment: a shard
// has thousands of segments, and few tensors in most cases.
std::vector<ServedMemory::Run> RunsOf(const SegmentStore& store) {
  std::vector<ServedMemory::Run> runs;
  const std::vector<MemoryRegion> regions = store.regions();
  auto region = regions.begin();  // one of each storage that has bytes, in their order
  for (const ShardLayout::Storage& storage : store.layout().storages()) {
    if (storage.bytes == 0) continue;
    const iovec piece{(region++)->address, storage.bytes};
    if (!runs.empty()) {
      iovec& last = runs.back().memory;
      if (static_cast<char*>(last.iov_base) + last.iov_len == piece.iov_base) {
        last.iov_len += piece.iov_len;
        continue;
      }
    }
    runs.push_back({.stream_offset = storage.stream_offset, .memory = piece});
  }
  return runs;
}

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
  if (std::holds_alternative<AskMapping>(frame)) return HandleAskMapping();
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
  stall_.HandleTaken();
  const absl::Time now = MonotonicNow();
  session_.HandleSent(AllLeft(), now);
  table_->CountSent(*transfer_, std::min(bytes, landed.bytes), now);
  return absl::OkStatus();
}

absl::Status SourceConnection::HandleAskMapping() {
  if (transfer_ == nullptr) return absl::InvalidArgumentError("AskMapping before Admitted");
  if (std::exchange(asked_mapping_, true)) {
    return absl::InvalidArgumentError("asked for a mapping a second time");
  }
  absl::StatusOr<std::string> words = MapShard();
  words_.push_back(Encode(Mapping{words.status(), words.ok() ? *std::move(words) : ""}));
  return absl::OkStatus();
}

absl::StatusOr<std::string> SourceConnection::MapShard() {
  if (served_ == nullptr) {
    return absl::UnimplementedError("this transport maps no memory of the source");
  }
  const SegmentStore& store = *transfer_->store;
  if (store.closed()) return absl::UnavailableError("the source takes its buffer back");
  if (store.device() != nullptr) {
    return absl::FailedPreconditionError(
        "the version lies in the memory of a GPU, which the host cannot map; publish a snapshot of "
        "it, or update a buffer");
  }
  // A fill that has not checked the whole may begin anew in these pages.
  if (!store.complete()) {
    return absl::UnavailableError(absl::StrCat("the source is still receiving the version itself (",
                                               store.held().count(), " of ",
                                               store.layout().segment_count(), " segments)"));
  }
  return served_->Map(RunsOf(store));
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
  timer_ = loop_->RunAt(due, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->timer_.reset();
    self->session_.HandleTick(MonotonicNow());
    self->Act();
  });
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
  loop_->RunAt(now + kStallTick, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->watching_stall_ = false;
    self->HandleStall();
  });
}

void SourceConnection::HandleStall() {
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
  stall_.HandleTaken();
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
  bool sums = false;
  while (outbox_.bytes_left() < kSumBytesPerCall && AppendSums(budget)) sums = true;
  if (sums || wait_ != 0) return;
  while (!outbox_.full() && AppendNext(budget) && *budget > 0) continue;
}

// Appends the next sums, as words. Those that nobody has taken yet are taken while there is nothing
// else to send, which costs the turn what may be read for them: a list of an unsealed shard may be
// many gigabytes of it. False when there are none to be sent now.
bool SourceConnection::AppendSums(uint64_t* budget) {
  if (session_.sums_requested().empty()) return false;
  SegmentStore& store = *transfer_->store;
  if (store.closed()) {
    session_.HandleBufferClosed();
    return false;
  }
  const bool idle = outbox_.empty() && !store.FirstReady(session_.requests()).has_value();
  const auto next = session_.PollSums([&store, idle, budget](SegmentRange asked) {
    std::vector<SegmentSum> known = store.SumsOf(asked, kMaxSumsInFrame, /*compute=*/false);
    if (!known.empty() || !idle) return known;
    *budget -= std::min(*budget, kBytesSummedAtOnce);
    return store.SumsOf(asked, kMaxSumsInFrame, /*compute=*/true);
  });
  if (!next.has_value()) {
    if (idle) WaitForSegments();
    return false;
  }
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
  if (store.device() != nullptr) StageAhead();
  const uint64_t not_located = not_located_.count();
  Places places;
  const std::optional<SegmentIndex> next = session_.PollSegment(
      [this, &places](SegmentIndex segment) { return MayLeave(segment, &places); });
  if (not_located_.count() > not_located) StageAhead();
  if (!next.has_value()) {
    // The copies that are under way call back.
    if (outbox_.empty() && staging_->empty()) WaitForSegments();
    return false;
  }
  if (staging_->IsStaged(*next)) {
    SendStaged(*next);
    return true;
  }
  const uint64_t bytes = store.layout().SegmentLength(*next);
  const bool summed = store.IsSummed(*next);
  if (served_ != nullptr && !places.has_value()) places = PlacesOf(*next);
  if (places.has_value()) {
    Locate(*next, *std::move(places));
    if (!summed) *budget -= std::min(*budget, bytes);
    return true;
  }
  if (store.PlaceOf(*next) != SegmentStore::Place::kHost) {
    session_.HandleBroken("memory of the buffer is not what it was registered as any more");
    return false;
  }
  outbox_.AddSegment({.segment = *next,
                      .bytes = static_cast<uint32_t>(bytes),
                      .sum = store.SumOf(*next),
                      .generation = store.generation()},
                     store);
  payload_in_outbox_ += bytes;
  return true;
}

// True of a segment that is not all in host memory, unless the reader reads it where it lies.
bool SourceConnection::LeavesFromACopy(SegmentIndex segment) const {
  const SegmentStore& store = *transfer_->store;
  if (store.PlaceOf(segment) == SegmentStore::Place::kHost) return false;
  return served_ == nullptr || !served_->serves_devices() || not_located_.Contains(segment);
}

// True once the segment can go out: it is in host memory, its copy is there, or the reader can read
// it in device memory, at `places` then.
bool SourceConnection::MayLeave(SegmentIndex segment, Places* places) {
  const SegmentStore& store = *transfer_->store;
  places->reset();
  if (store.ReadinessOf(segment) != SegmentStore::Readiness::kReady) return false;
  if (store.PlaceOf(segment) == SegmentStore::Place::kHost || staging_->IsStaged(segment))
    return true;
  if (LeavesFromACopy(segment) || !store.IsSummed(segment)) return false;
  *places = PlacesOf(segment);
  if (places->has_value()) return true;
  not_located_.Add(segment);
  return false;
}

void SourceConnection::StageAhead() {
  staging_->StageAhead(transfer_->store, session_.requests(),
                       [this](SegmentIndex segment) { return LeavesFromACopy(segment); });
}

void SourceConnection::HandleStaging(const absl::Status& status) {
  if (closed_) return;
  if (!status.ok()) session_.HandleBroken(std::string(status.message()));
  Act();
}

void SourceConnection::SendStaged(SegmentIndex segment) {
  const StagedSegment staged = staging_->Take(segment);
  // The generation is the one that the bytes were copied in, whatever the store's is by now.
  outbox_.AddSegment({.segment = segment,
                      .bytes = static_cast<uint32_t>(staged.bytes.size()),
                      .sum = staged.copied.sum,
                      .generation = staged.copied.generation},
                     staged.bytes, staged.slot);
  payload_in_outbox_ += staged.bytes.size();
}

// True while the reader may be told of another segment that it has to read itself.
bool SourceConnection::MayLocateMore() const {
  if (served_ == nullptr) return true;
  const ServedMemory::Window window = served_->window();
  return bytes_located_ < window.bytes && located_.size() < window.segments;
}

// Where the reader finds the segment's bytes. Nullopt when it is in too many pieces for that, or
// the reader cannot read one of them.
SourceConnection::Places SourceConnection::PlacesOf(SegmentIndex segment) {
  std::vector<iovec> pieces;
  transfer_->store->AppendPieces(segment, &pieces);
  if (pieces.size() > kMaxLocatedPieces) return std::nullopt;
  std::vector<Located::Piece> places;
  places.reserve(pieces.size());
  for (const iovec& piece : pieces) {
    const std::optional<uint32_t> key = served_->KeyOf(piece);
    if (!key.has_value()) return std::nullopt;
    places.push_back({.address = reinterpret_cast<uintptr_t>(piece.iov_base),
                      .bytes = static_cast<uint32_t>(piece.iov_len),
                      .key = *key});
  }
  return places;
}

// Tells the reader where the segment lies.
void SourceConnection::Locate(SegmentIndex segment, std::vector<Located::Piece> places) {
  SegmentStore& store = *transfer_->store;
  const Located located{.segment = segment,
                        .sum = store.SumOf(segment),
                        .generation = store.generation(),
                        .pieces = std::move(places)};
  outbox_.AddControl(Encode(located));
  located_.push_back(segment);
  bytes_located_ += store.layout().SegmentLength(segment);
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
  staging_->Drop();
  served_ = nullptr;  // before the transfer is released: nothing is read for it any more
  transfer_.reset();
  table_->Close(number_);
  gone_();
}

}  // namespace th::stream
